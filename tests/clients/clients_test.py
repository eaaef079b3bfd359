"""Unmodified clients and judges from PyPI against `edgellm serve` (make test-clients).

    clients_test.py PROGRAM MODEL [CHECK...]

Each check prints a line; the first that fails ends the script with 1.
"""

import asyncio
import contextlib
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import urllib.request

from serving import BIN, MODEL, NAME, PROGRAM, ROOT, Server, alone, messages, run_checks, same

PROMPT = "Once upon a time"
QUESTION = "Tell me a story about a wolf."
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


# ---- openai ------------------------------------------------------------------------------------


def openai_sync(server):
    from openai import BadRequestError, NotFoundError, OpenAI
    client = OpenAI(base_url=server.url + "/v1", api_key="none")
    same([model.id for model in client.models.list()], [NAME])
    same(client.models.retrieve(NAME).owned_by, "edgellm")
    text = alone(PROMPT, "-n", "20")["text"]
    answer = client.completions.create(model=NAME, prompt=PROMPT, temperature=0, max_tokens=20)
    same(answer.choices[0].text, text)
    same(answer.usage.completion_tokens, 20)
    stream = client.completions.create(model=NAME, prompt=PROMPT, temperature=0, max_tokens=20, stream=True)
    same("".join(chunk.choices[0].text for chunk in stream), text)
    said = alone("--chat", QUESTION, "--temp", "0.7", "--seed", "3", "-n", "30")["text"]
    chat = dict(model=NAME, messages=messages(QUESTION), temperature=0.7, seed=3, max_completion_tokens=30)
    same(client.chat.completions.create(**chat).choices[0].message.content, said)
    many = client.chat.completions.create(**{**chat, "n": 2})
    same([choice.index for choice in many.choices], [0, 1])
    same(many.choices[0].message.content, said)
    for wrong, kind in ({"model": "gpt-4"}, NotFoundError), ({"messages": []}, BadRequestError), \
            ({"response_format": {"type": "json_object"}}, BadRequestError):
        try:
            client.chat.completions.create(**{**chat, **wrong})
        except kind as error:
            assert error.body["message"] and error.body["code"], error.body
        else:
            raise AssertionError(f"{wrong} was accepted")


def openai_stream(server):
    from openai import OpenAI
    client = OpenAI(base_url=server.url + "/v1", api_key="none")
    chat = dict(model=NAME, messages=messages(QUESTION), temperature=0, max_tokens=25, logprobs=True, top_logprobs=3)
    whole = client.chat.completions.create(**chat)
    text, reason, logprobs, usage = "", None, [], None
    for chunk in client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}):
        if chunk.usage:
            usage = chunk.usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
            logprobs += choice.logprobs.content if choice.logprobs else []
    same(text, whole.choices[0].message.content)
    same(reason, whole.choices[0].finish_reason)
    same(usage.completion_tokens, whole.usage.completion_tokens)
    same(logprobs, whole.choices[0].logprobs.content)
    assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in logprobs)  # greedy
    with client.chat.completions.stream(model=NAME, messages=messages(QUESTION), temperature=0,
                                        max_tokens=25) as events:
        parts = [event.delta for event in events if event.type == "content.delta"]
    same("".join(parts), text)


def openai_async_and_cancelled(server):
    from openai import AsyncOpenAI

    async def reaches(name, value):
        for _ in range(500):
            if server.metric(name) == value:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{name} did not become {value}")

    async def many():
        client = AsyncOpenAI(base_url=server.url + "/v1", api_key="none")
        chat = dict(model=NAME, messages=messages(QUESTION), temperature=0, max_tokens=20)
        answers = await asyncio.gather(*(client.chat.completions.create(**chat) for _ in range(20)))
        same({answer.choices[0].message.content for answer in answers},
             {alone("--chat", QUESTION, "-n", "20")["text"]})
        before = server.metric("requests_cancelled_total")
        forever = dict(model=NAME, prompt=PROMPT, max_tokens=1900, extra_body={"ignore_eos": True})
        stream = await client.completions.create(**forever, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await reaches("requests_cancelled_total", before + 1)
        task = asyncio.create_task(client.completions.create(**forever))
        await reaches("num_requests_running", 1)  # the answer takes less than half a second
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await reaches("requests_cancelled_total", before + 2)

    asyncio.run(many())


def openai_key(_):
    from openai import AuthenticationError, OpenAI
    server = Server(key="secret")
    try:
        same(len(OpenAI(base_url=server.url + "/v1", api_key="secret").models.list().data), 1)
        try:
            OpenAI(base_url=server.url + "/v1", api_key="wrong").models.list()
        except AuthenticationError:
            pass
        else:
            raise AssertionError("a wrong key was accepted")
    finally:
        same(server.stop(), 0)


def openai_embeddings(server):
    from openai import OpenAI
    client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    texts = [PROMPT, QUESTION]
    packed = client.embeddings.create(model=NAME, input=texts)  # the client asks for base64
    plain = client.embeddings.create(model=NAME, input=texts, encoding_format="float")
    same([one.embedding for one in packed.data], [one.embedding for one in plain.data])
    same([one.index for one in plain.data], [0, 1])
    for one in plain.data:
        assert abs(sum(value * value for value in one.embedding) - 1) < 1e-5
    same(client.embeddings.create(model=NAME, input=QUESTION).data[0].embedding, packed.data[1].embedding)
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 10


# ---- ollama ------------------------------------------------------------------------------------


def ollama_client(server):
    from ollama import Client, ResponseError
    client = Client(host=server.url)
    same([model.model for model in client.list().models], [NAME + ":latest"])
    same(client.show(NAME).details.format, "tmac2")
    same(len(client.ps().models), 1)
    options = {"temperature": 0, "num_predict": 20}
    said = alone("--chat", QUESTION, "-n", "20")["text"]
    answer = client.generate(NAME, QUESTION, options=options)
    same(answer.response, said)
    assert answer.eval_count == 20 and answer.eval_duration > 0 and answer.total_duration > answer.eval_duration
    same(client.generate(NAME, PROMPT, raw=True, options=options).response, alone(PROMPT, "-n", "20")["text"])
    parts = list(client.chat(NAME, messages=messages(QUESTION), options=options, stream=True))
    same("".join(part.message.content for part in parts), said)
    assert parts[-1].done and parts[-1].done_reason == "length" and not any(part.done for part in parts[:-1])
    try:
        client.generate("llama3", QUESTION)
    except ResponseError as error:
        same(error.status_code, 404)
    else:
        raise AssertionError("another model's name was accepted")


def ollama_embed(server):
    from ollama import Client
    client = Client(host=server.url)
    both = client.embed(NAME, [PROMPT, QUESTION])
    same(len(both.embeddings), 2)
    same(client.embeddings(NAME, QUESTION).embedding, both.embeddings[1])
    same(client.generate(NAME, "", keep_alive="5m").done_reason, "load")
    same(client.generate(NAME, "", keep_alive=-1).done_reason, "load")


# ---- LangChain ---------------------------------------------------------------------------------


def langchain_clients(server):
    from langchain_ollama import ChatOllama, OllamaEmbeddings
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    said = alone("--chat", QUESTION, "-n", "20")["text"]
    openai = ChatOpenAI(base_url=server.url + "/v1", api_key="none", model=NAME, temperature=0, max_tokens=20)
    same(openai.invoke(QUESTION).content, said)
    same("".join(chunk.content for chunk in openai.stream(QUESTION)), said)
    same([answer.content for answer in openai.batch([QUESTION] * 3)], [said] * 3)
    ollama = ChatOllama(base_url=server.url, model=NAME, temperature=0, num_predict=20)
    same(ollama.invoke(QUESTION).content, said)
    same("".join(chunk.content for chunk in ollama.stream(QUESTION)), said)
    # Its embeddings of OpenAI would count tokens with a vocabulary from the network.
    vectors = OpenAIEmbeddings(base_url=server.url + "/v1", api_key="none", model=NAME,
                               check_embedding_ctx_length=False).embed_documents([PROMPT, QUESTION])
    same(OllamaEmbeddings(base_url=server.url, model=NAME).embed_documents([PROMPT, QUESTION]), vectors)


# ---- Judges ------------------------------------------------------------------------------------

TASK = """
task: fables
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{target}}}}"
target_delimiter: ""
metric_list:
  - metric: perplexity
    aggregation: perplexity
    higher_is_better: false
"""

FABLES = [
    ("A lion was asleep in the forest when a mouse ran", " over his nose and woke him."),
    ("The fox looked at the grapes and said that they", " were surely sour."),
    ("One day the king called his three sons", " and sent them into the world."),
]


def lm_eval_loglikelihood(server):
    """lm-eval's log-likelihoods are those of `edgellm perplexity`, to 1e-6 a token."""
    import numpy

    def ids_of(text):
        body = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
        with urllib.request.urlopen(urllib.request.Request(server.url + "/tokenize", body)) as answer:
            return json.load(answer)["tokens"]

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        data = folder / "fables.jsonl"
        data.write_text("".join(json.dumps({"text": text, "target": target}) + "\n" for text, target in FABLES))
        (folder / "fables.yaml").write_text(TASK.format(data=data))
        arguments = f"model={NAME},base_url={server.url}/v1/completions,tokenizer_backend=remote,num_concurrent=2"
        run = subprocess.run([BIN / "lm_eval", "run", "--model", "local-completions", "--model_args", arguments,
                              "--tasks", "fables", "--include_path", folder, "--log_samples", "--output_path",
                              folder / "out", "--batch_size", "2"],
                             env={**OFFLINE, "HF_HOME": str(folder / "hf")}, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr[-3000:]
        samples = [json.loads(line) for path in (folder / "out").rglob("samples_*.jsonl")
                   for line in path.read_text().splitlines()]
        same(len(samples), len(FABLES))
        for sample in samples:
            found = float(sample["resps"][0][0][0])
            text, target = sample["doc"]["text"], sample["doc"]["target"]
            prompt, whole = ids_of(text), ids_of(text + target)
            same(whole[:len(prompt)], prompt)
            (folder / "ids.json").write_text(json.dumps(whole))
            subprocess.run([PROGRAM, "perplexity", MODEL, "--ids-file", folder / "ids.json", "--device", "cpu",
                            "--logprobs", folder / "logprobs.npy"], check=True, stdout=subprocess.DEVNULL)
            logprobs = numpy.load(folder / "logprobs.npy").astype(float).ravel()
            expected = logprobs[len(prompt) - 1:].sum()
            n_tokens = len(whole) - len(prompt)
            assert abs(found - expected) <= 1e-6 * n_tokens, (found, expected, n_tokens)


def guidellm_sweep(server):
    """A sweep from one client to as many as the server bears, without an error."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tokenizer = folder / "tokenizer"  # only makes the words of the prompts
        tokenizer.mkdir()
        packed = ROOT / "tests/data/tokenizers/llama3_tokenizer.json.gz"
        (tokenizer / "tokenizer.json").write_bytes(gzip.decompress(packed.read_bytes()))
        (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        run = subprocess.run([BIN / "guidellm", "run", "--backend", f"kind=openai_http,target={server.url}",
                              "--profile", "kind=sweep,sweep_size=3",
                              "--constraint", "kind=max_requests,count=20", "--constraint",
                              "kind=max_duration,seconds=20",
                              "--tokenizer", f"kind=hf_auto,model={tokenizer}",
                              "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
                              "--output", f"kind=json,path={folder / 'out.json'}", "--disable-progress"],
                             env=OFFLINE, cwd=folder, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
        report = json.loads((folder / "out.json").read_text())
        same(len(report["benchmarks"]), 3)
        for benchmark in report["benchmarks"]:
            totals = benchmark["metrics"]["request_totals"]
            assert totals["successful"] > 0 and totals["errored"] == 0, totals


def schemathesis_fuzz(server):
    """No bytes bring a status of 5xx, and every answer is one that docs/openapi.json names."""
    run = subprocess.run([BIN / "schemathesis", "run", ROOT / "docs/openapi.json", "--url", server.url,
                          "--max-examples", "25", "--no-color", "--seed", "1", "--request-timeout", "60", "--checks",
                          "not_a_server_error,status_code_conformance,content_type_conformance,"
                          "response_schema_conformance"],
                         env=OFFLINE, capture_output=True, text=True, cwd=tempfile.gettempdir())
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]


def stops(page, server, answers):
    """Whether the next answer on the page, which has `answers`, can be stopped before it ends."""
    before = server.metric("requests_cancelled_total")
    page.focus("#message")
    page.keyboard.type("And then?")
    page.keyboard.press("Enter")
    ended = f"document.querySelectorAll('.figures').length > {answers}"
    page.wait_for_function(
        f"() => {ended} || document.querySelectorAll('.turn.assistant')[{answers}]?.textContent.length > 20")
    page.keyboard.press("Escape")
    page.wait_for_function(f"() => {ended}")
    if page.locator(".figures").last.inner_text() != "stopped":
        return False
    server.await_metric("requests_cancelled_total", before + 1)
    return True


def page_in_chromium(server):
    """The page at `/`: by keyboard alone a question is asked, answered, and the next answer stopped."""
    from playwright.sync_api import sync_playwright
    chromium = shutil.which("chromium")
    if not chromium:
        return "no chromium on this machine (Debian's package chromium brings it)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800}, color_scheme="dark")
        complaints, asked = [], []
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.url + "/")
        page.wait_for_function(f"() => document.getElementById('model').textContent.startsWith('{NAME} on')")
        same(page.evaluate("document.documentElement.dataset.theme"), "dark")
        page.fill("#temperature", "0")
        page.fill("#max_tokens", "25")
        page.focus("#message")
        page.keyboard.type(QUESTION)
        page.keyboard.press("Enter")
        page.wait_for_selector(".figures")
        same(page.inner_text(".turn.assistant"), alone("--chat", QUESTION, "-n", "25")["text"].strip())
        assert page.inner_text(".figures").startswith("25 tokens, "), page.inner_text(".figures")
        page.fill("#temperature", "1")
        page.fill("#max_tokens", "1500")
        # One answer in a hundred ends after eight tokens, before it can be stopped.
        assert any(stops(page, server, answers) for answers in range(1, 6)), "no answer was stopped"
        page.wait_for_function("() => document.querySelectorAll('#charts polyline')[0].getAttribute('points')")
        same(complaints, [])
        same([url for url in asked if not url.startswith(server.url)], [])
        browser.close()


CHECKS = [openai_sync, openai_stream, openai_async_and_cancelled, openai_key, openai_embeddings, ollama_client,
          ollama_embed, langchain_clients, page_in_chromium, schemathesis_fuzz, lm_eval_loglikelihood, guidellm_sweep]


def main():
    server = Server()
    run_checks(CHECKS, server)
    for name in "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "requests_failed_total":
        same(server.metric(name), 0)
    same(server.stop(), 0)
    print("passed: nothing is left running, and the server ends with exit code 0")


main()
