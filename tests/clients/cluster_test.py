"""Routers and Ray Data from PyPI in front of two `edgellm serve` (make test-clients).

    cluster_test.py PROGRAM MODEL [CHECK...]

Workers are killed while they answer. Each check prints a line; the first that fails ends the script with 1.
"""

import atexit
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from serving import MODEL, NAME, PROGRAM, ROOT, Server, alone, messages, run_checks, same

PROMPT = "Once upon a time"
QUESTION = "Tell me a story about a wolf."
N_TOKENS = 60
PROMPTS = [f"The story of the {i} animals begins" for i in range(24)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(url, path, body=None):
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def completion(url, prompt, n_tokens=N_TOKENS):
    return ask(url, "/v1/completions", {"model": NAME, "prompt": prompt, "max_tokens": n_tokens, "temperature": 0})


def answers_of_batch(prompts, n_tokens, *options):
    """What `edgellm batch` answers, in the order of the prompts."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = pathlib.Path(folder) / "in.jsonl", pathlib.Path(folder) / "out.jsonl"
        source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        subprocess.run([PROGRAM, "batch", MODEL, "-i", source, "-o", output, "-n", str(n_tokens), "--ordered",
                        "--device", "cpu", *options], check=True, stderr=subprocess.DEVNULL)
        choices = [json.loads(line)["response"]["body"]["choices"][0] for line in output.read_text().splitlines()]
        return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]


@contextlib.contextmanager
def two_servers():
    servers = [Server("--threads", "1") for _ in range(2)]
    try:
        yield servers
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()


class Router:
    """sglang-router in front of servers."""

    def __init__(self, servers, policy):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port),
             "--prometheus-port", str(free_port()), "--policy", policy, "--log-level", "warn",
             "--cb-failure-threshold", "2",  # docs/cluster.md
             "--worker-urls", *(server.url for server in servers)], stdout=self.log, stderr=self.log)
        atexit.register(self.process.kill)  # where a check fails
        for _ in range(600):
            with contextlib.suppress(OSError):
                if ask(self.url, "/readiness")["healthy_workers"] == len(servers):
                    return
            assert self.process.poll() is None, pathlib.Path(self.log.name).read_text()
            time.sleep(0.1)
        raise AssertionError("the router found no workers:\n" + pathlib.Path(self.log.name).read_text())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def kill_when_busy(server):
    """SIGKILL while the server makes answers."""
    for _ in range(5000):
        if server.metric("num_requests_running") >= 1:
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
            return
        time.sleep(0.005)
    raise AssertionError("the server never had enough to do")


# ---- sglang-router -----------------------------------------------------------------------------


def sglang_router_answers():
    """Whole and streamed answers through the router are those of `run`."""
    with two_servers() as servers, Router(servers, "round_robin") as router:
        same([model["id"] for model in ask(router.url, "/v1/models")["data"]], [NAME])
        same(completion(router.url, PROMPT, 20)["choices"][0]["text"], alone(PROMPT, "-n", "20")["text"])
        body = {"model": NAME, "messages": messages(QUESTION), "max_tokens": 20, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}
        request = urllib.request.Request(router.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
        same(events[-1], "[DONE]")
        chunks = [json.loads(event) for event in events[:-1]]
        same("".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]),
             alone("--chat", QUESTION, "-n", "20")["text"])
        same(chunks[-1]["usage"]["completion_tokens"], 20)
        assert all(server.metric("requests_total") > 0 for server in servers), "one server had nothing to do"


def cached_tokens(policy, topics):
    """Prompt tokens that were in a cache, where the questions about each topic come again and again."""
    with two_servers() as servers, Router(servers, policy) as router:
        for i in range(3):
            for topic in topics:
                completion(router.url, topic + f" Question {i}:", 1)
        return sum(server.metric("prompt_tokens_cached_total") for server in servers)


def sglang_router_cache_aware():
    """Prompts that begin alike go to one server, which has their beginning in its KV cache."""
    topics = [f"Chapter {i}. " + f"The animals of the {i}th forest were wise and slow. " * 20 for i in range(5)]
    spread, aware = cached_tokens("round_robin", topics), cached_tokens("cache_aware", topics)
    assert aware > 1.5 * spread, (aware, spread)


def sglang_router_retries():
    """A server is killed while it answers: the other answers its requests, and nobody notices."""
    expected = answers_of_batch(PROMPTS, N_TOKENS)
    with two_servers() as servers, Router(servers, "round_robin") as router, \
            concurrent.futures.ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(completion, router.url, prompt) for prompt in PROMPTS]
        kill_when_busy(servers[0])
        same([answer.result()["choices"][0]["text"] for answer in answers], expected)


# ---- LiteLLM -----------------------------------------------------------------------------------


def litellm_router():
    """LiteLLM's router, whole and streamed; a server is killed while it answers."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # nothing from the network
    import litellm
    litellm.suppress_debug_info = True
    expected = answers_of_batch(PROMPTS, N_TOKENS, "--chat")
    with two_servers() as servers, concurrent.futures.ThreadPoolExecutor(8) as clients:
        router = litellm.Router(
            model_list=[{"model_name": NAME, "litellm_params": {
                "model": f"openai/{NAME}", "api_base": server.url + "/v1", "api_key": "none"}} for server in servers],
            num_retries=4, allowed_fails=0, cooldown_time=60)

        def text(prompt):
            return router.completion(model=NAME, messages=messages(prompt), max_tokens=N_TOKENS,
                                     temperature=0).choices[0].message.content

        stream = router.completion(model=NAME, messages=messages(PROMPTS[0]), max_tokens=N_TOKENS, temperature=0,
                                   stream=True)
        same("".join(chunk.choices[0].delta.content or "" for chunk in stream), expected[0])
        answers = [clients.submit(text, prompt) for prompt in PROMPTS]
        kill_when_busy(servers[0])
        same([answer.result() for answer in answers], expected)


# ---- Ray Data ----------------------------------------------------------------------------------


def ray_data(form):
    """examples/ray_batch.py, of whose two servers one is killed: every row once, as `batch` has it."""
    import pyarrow
    import pyarrow.parquet
    n_rows = 96
    prompts = [f"The story of the {i} animals begins" for i in range(n_rows)]
    table = pyarrow.table({"id": [f"r{i}" for i in range(n_rows)], "prompt": prompts})
    expected = answers_of_batch(prompts, 100)
    with tempfile.TemporaryDirectory() as folder, two_servers() as servers, Router(servers, "round_robin") as router:
        folder = pathlib.Path(folder)
        source, output = folder / f"in.{form}", folder / "out"
        if form == "parquet":
            pyarrow.parquet.write_table(table, source)
        else:
            source.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
        with (folder / "log").open("w") as log:
            job = subprocess.Popen([sys.executable, ROOT / "examples/ray_batch.py", source, router.url, NAME, output],
                                   stdout=log, stderr=log, cwd=folder,
                                   env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"})
        atexit.register(job.kill)
        while job.poll() is None and sum(server.metric("requests_total") for server in servers) < n_rows / 4:
            time.sleep(0.01)
        kill_when_busy(servers[0])
        same((job.wait(timeout=300), (folder / "log").read_text()[-3000:] if job.returncode else ""), (0, ""))
        rows = []
        for part in sorted(output.iterdir()):
            if form == "parquet":
                rows += pyarrow.parquet.read_table(part).to_pylist()
            else:
                rows += [json.loads(line) for line in part.read_text().splitlines()]
        same(len(rows), n_rows)
        same({row["id"]: row["text"] for row in rows}, {f"r{i}": text for i, text in enumerate(expected)})


def ray_data_parquet():
    ray_data("parquet")


def ray_data_jsonl():
    ray_data("jsonl")


# ---- Kubernetes --------------------------------------------------------------------------------


def kubernetes_job():
    """examples/kubernetes_job.yaml is what Kubernetes' schema says, and its command line answers everything."""
    import kubernetes_validate
    import yaml
    job = yaml.safe_load((ROOT / "examples/kubernetes_job.yaml").read_text())
    kubernetes_validate.validate(job, "1.34", strict=True)
    try:
        kubernetes_validate.validate({**job, "spec": {**job["spec"], "completionmode": "Indexed"}}, "1.34", strict=True)
    except kubernetes_validate.ValidationError:
        pass
    else:
        raise AssertionError("the schema takes what is no field")
    [container] = job["spec"]["template"]["spec"]["containers"]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "in.jsonl"
        source.write_text("".join(json.dumps({"prompt": prompt, "max_tokens": 4}) + "\n" for prompt in PROMPTS))
        (pathlib.Path(folder) / "model.tmac2").symlink_to(pathlib.Path(MODEL).resolve())
        words = [word.replace("/data/", f"{folder}/") for word in container["args"]]
        for index in range(job["spec"]["completions"]):
            subprocess.run([PROGRAM, *words, "--device", "cpu"], check=True, stderr=subprocess.DEVNULL,
                           env={**os.environ, "JOB_COMPLETION_INDEX": str(index)})
        subprocess.run([PROGRAM, "batch", "--merge", *pathlib.Path(folder).glob("out.?.jsonl"), "-i", source,
                        "-o", f"{folder}/all.jsonl"], check=True, stderr=subprocess.DEVNULL)


run_checks([kubernetes_job, sglang_router_answers, sglang_router_cache_aware, sglang_router_retries, litellm_router,
            ray_data_jsonl], only_by_name=[ray_data_parquet])
