#!/usr/bin/env python3
"""edgellm pull against a Hub of our own (hub_server.py).

    tests/hub/pull_test.py PROGRAM [unittest's arguments]
"""

import contextlib
import json
import os
import pathlib
import pty
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import hub_server

PROGRAM = ""
FIXTURE = pathlib.Path(__file__).parent.parent / "data/fixtures/g2/bitnet-h320-untied"
TOKEN = "hf_averysecrettoken"


def split_weights(folder):
    """model.safetensors as two shards with their index."""
    data = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + n]), data[8 + n:]
    header.pop("__metadata__", None)
    names = sorted(header)
    index = {}
    for i, part in enumerate((names[:len(names) // 2], names[len(names) // 2:])):
        file = f"model-0000{i + 1}-of-00002.safetensors"
        tensors, blob = {}, b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            tensors[name] = {**header[name], "data_offsets": [len(blob), len(blob) + end - begin]}
            blob += body[begin:end]
            index[name] = file
        text = json.dumps(tensors).encode()
        text += b" " * (-len(text) % 8)
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + blob)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "model.safetensors").unlink()


class PullTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.place = pathlib.Path(temporary.name)
        self.repository = self.place / "repositories/org/tiny"
        shutil.copytree(FIXTURE, self.repository)
        # What nobody needs for a conversion.
        for name in ("README.md", "pytorch_model.bin", "onnx/model.onnx", "consolidated.safetensors"):
            path = self.repository / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x" * 5000)
        self.hub = hub_server.Hub(self.place / "repositories")
        self.enterContext(self.hub) if hasattr(self, "enterContext") else self._enter(self.hub)
        self.models = self.place / "data/edgellm/models"
        self.target = self.models / "org/tiny.tmac2"
        self.environment = {
            **{k: v for k, v in os.environ.items()
               if not k.startswith(("HF_", "EDGELLM_")) and not k.lower().endswith("_proxy")},
            "HF_ENDPOINT": self.hub.url, "SSL_CERT_FILE": str(self.hub.certificate),
            "XDG_DATA_HOME": str(self.place / "data"), "EDGELLM_CACHE": str(self.place / "cache")}

    def _enter(self, context):
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def run_program(self, *arguments, **environment):
        result = subprocess.run([PROGRAM, *arguments], env={**self.environment, **environment},
                                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        self.assertNotIn(TOKEN, result.stdout + result.stderr)
        return result

    def pull(self, *arguments, **environment):
        return self.run_program("pull", *(arguments or ("hf:org/tiny",)), **environment)

    def check_pulled(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(self.logits("org/tiny"), self.expected_logits())
        self.assertEqual(list((self.place / "cache/downloads").rglob("*")), [])

    def check_refused(self, result, exit_code, *parts):
        self.assertEqual(result.returncode, exit_code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("edgellm: "), result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)
        self.assertFalse(self.target.exists())

    def logits(self, model):
        ids = self.place / "ids.json"
        ids.write_text("[1, 2, 3, 5]")
        result = self.run_program("logits", model, "--ids-file", str(ids), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["logits_xxh3"]

    def expected_logits(self):
        """Of the folder that the repository was made from, converted by hand."""
        out = self.place / "by_hand.tmac2"
        result = self.run_program("convert", str(FIXTURE), "-o", str(out))
        self.assertEqual(result.returncode, 0, result.stderr)
        return self.logits(str(out))

    @contextlib.contextmanager
    def server(self, *arguments):
        """`edgellm serve`; gives what posts a body and returns the status and the answer's lines. Its `get` returns the
        text of a path."""
        process = subprocess.Popen([PROGRAM, "serve", *arguments, "--port", "0", "--device", "cpu"],
                                   env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        url = process.stdout.readline().strip()

        def post(path, **body):
            request = urllib.request.Request(url + path, json.dumps(body).encode())
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, [json.loads(line) for line in answer.read().splitlines()]
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, [json.loads(error.read())]

        def get(path):
            with urllib.request.urlopen(url + path, timeout=60) as answer:
                return answer.read().decode()
        post.get = get
        try:
            yield post
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(60), 0)
            self.assertNotIn(TOKEN, process.stderr.read())
        finally:
            process.kill()
            process.communicate()

    def requests(self, server, method="GET"):
        return [r for r in self.hub.requests if r["server"] == server and r["method"] == method]

    def fault(self, path, times=1, **what):
        self.hub.faults.append({"path": path, "times": times, **what})

    def part(self):
        parts = list((self.place / "cache/downloads").rglob("*.part"))
        self.assertEqual(len(parts), 1)
        return parts[0]

    # What works.

    def test_plain(self):
        self.check_pulled(self.pull())
        wanted = ["config.json", "generation_config.json", "model.safetensors"]
        asked = sorted(r["path"].rsplit("/", 1)[1] for r in self.requests("hub")[1:])
        self.assertEqual(asked, wanted)
        info = json.loads(self.run_program("show", "org/tiny", "--json").stdout)
        self.assertIn(f"hf:org/tiny@{self.hub.commit}", json.dumps(info))
        self.assertIn("org/tiny ", self.run_program("list").stdout)
        self.assertEqual(self.run_program("rm", "org/tiny").returncode, 0)
        self.assertEqual(list(self.models.iterdir()), [])

    def test_a_second_pull_asks_whether_the_model_has_changed(self):
        self.check_pulled(self.pull())
        self.hub.requests.clear()
        again = self.pull()
        self.assertEqual(again.returncode, 0)
        self.assertIn("up to date", again.stderr)
        self.assertEqual(len(self.hub.requests), 1)
        self.hub.commit = "f" * 40
        self.check_pulled(self.pull())
        self.assertEqual(len(self.requests("cdn")), 1)

    def test_a_server_pulls_and_serves(self):
        other = self.place / "other.tmac2"
        self.assertEqual(self.run_program("convert", str(FIXTURE), "-o", str(other)).returncode, 0)
        ask = {"prompt": [1, 2, 3, 5], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        with self.server(str(other), "--allow-pull") as post:
            expected = post("/v1/completions", **ask)[1][0]["choices"][0]["token_ids"]
            self.assertEqual(post("/v1/completions", model="tiny", **ask)[0], 404)
            status, lines = post("/api/pull", model="hf.co/org/tiny")
            self.assertEqual((status, lines[-1]), (200, {"status": "success"}), lines)
            for one in lines[1:-1]:
                self.assertLessEqual(one["completed"], one["total"])
            self.assertIn("converting", {one["status"] for one in lines})
            for name in ("tiny", "tiny:latest", "hf:org/tiny", "hf.co/org/tiny"):
                status, answer = post("/v1/completions", model=name, **ask)
                self.assertEqual((status, answer[0]["choices"][0]["token_ids"]), (200, expected), name)
            self.assertEqual(post("/api/pull", name="hf:org/tiny", stream=False), (200, [{"status": "success"}]))
            # Another commit is another file of that name.
            self.hub.commit = "f" * 40
            self.assertEqual(post("/api/pull", model="hf:org/tiny")[1][-1], {"status": "success"})
            self.assertEqual(post("/v1/completions", model="tiny", **ask)[1][0]["choices"][0]["token_ids"], expected)
            # What fails says so, in a stream as well, and the server goes on.
            self.fault("/api/models/", times=9, status=404)
            self.assertIn("hf:org/none", post("/api/pull", model="hf:org/none")[1][-1]["error"])
            self.hub.faults.clear()
            self.assertEqual(post("/api/pull", model="llama3")[0], 400)
            self.assertEqual(post("/api/pull", model="hf:../tiny")[0], 400)
            self.assertEqual(post("/v1/completions", **ask)[0], 200)

    def test_a_pulled_update_of_a_servers_first_model_stays_the_first(self):
        other = self.place / "other.tmac2"
        self.assertEqual(self.run_program("convert", str(FIXTURE), "-o", str(other)).returncode, 0)
        self.check_pulled(self.pull())
        ask = {"prompt": [1, 2, 3, 5], "max_tokens": 8, "temperature": 0}
        with self.server("org/tiny", str(other), "--allow-pull") as post:
            before = post("/v1/completions", **ask)[1][0]
            self.hub.commit = "f" * 40
            self.assertEqual(post("/api/pull", model="hf:org/tiny")[1][-1], {"status": "success"})
            after = post("/v1/completions", **ask)[1][0]
            self.assertEqual((before["model"], after["model"]), ("tiny", "tiny"))
            # The metadata names the commit.
            self.assertNotEqual(before["system_fingerprint"], after["system_fingerprint"])
            counted = 'edgellm:requests_total{model_name="tiny"} 2\n'
            until = time.monotonic() + 10
            while counted not in post.get("/metrics") and time.monotonic() < until:
                time.sleep(0.02)
            self.assertIn(counted, post.get("/metrics"))

    def test_a_server_pulls_only_where_it_may(self):
        other = self.place / "other.tmac2"
        self.assertEqual(self.run_program("convert", str(FIXTURE), "-o", str(other)).returncode, 0)
        with self.server(str(other)) as post:
            status, lines = post("/api/pull", model="hf:org/tiny")
            self.assertEqual(status, 403)
            self.assertIn("--allow-pull", lines[0]["error"])
        self.assertEqual(self.hub.requests, [])

    def test_shards_come_by_the_index(self):
        split_weights(self.repository)
        self.hub.lfs_bytes = 100_000  # the shards
        self.check_pulled(self.pull())
        self.assertEqual(len(self.requests("cdn")), 2)

    def test_revisions_and_names(self):
        self.hub.revisions.append("refs/pr/1")
        result = self.pull("hf:org/tiny@refs/pr/1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((self.models / "org/tiny@refs-pr-1.tmac2").exists())
        self.assertIn("/api/models/org/tiny/revision/refs%2Fpr%2F1?", self.hub.requests[0]["path"])
        result = self.pull("hf:org/tiny", "--name", "mine", "--keep")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((self.models / "mine.tmac2").exists())
        self.assertEqual([p.name for p in (self.place / "cache/downloads").rglob("*.safetensors")],
                         ["model.safetensors"])

    def test_a_gguf_file_and_nothing_else(self):
        (self.repository / "q.gguf").write_bytes(b"GGUF" + bytes(9000))
        result = self.pull("hf:org/tiny", "--file", "q.gguf")
        # Its bytes are no model: the conversion says so.
        self.assertIn(result.returncode, (3, 4), result.stderr)
        self.assertIn("q.gguf", result.stderr)
        self.assertEqual(len(self.hub.requests), 3)
        downloaded = list((self.place / "cache/downloads").rglob("q.gguf"))
        self.assertEqual([p.stat().st_size for p in downloaded], [9004])

    def test_files_of_one_name_in_two_folders(self):
        for folder in ("a", "b"):
            (self.repository / folder).mkdir()
            (self.repository / folder / "q.gguf").write_bytes(b"GGUF" + folder.encode() * 9000)
            self.pull("hf:org/tiny", "--file", f"{folder}/q.gguf")  # is no model, and so stays
        downloaded = list((self.place / "cache/downloads").rglob("q.gguf"))
        self.assertEqual({p.read_bytes()[4:5] for p in downloaded}, {b"a", b"b"})

    def test_a_list_without_sizes_and_hashes(self):
        def bare(files):
            for file in files:
                for key in ("size", "blobId", "lfs"):
                    file.pop(key, None)
        self.hub.listing_edit = bare
        self.check_pulled(self.pull())
        self.assertEqual(len(self.requests("hub", "HEAD")), 3)
        self.assertEqual(self.requests("cdn", "HEAD"), [])
        self.run_program("rm", "org/tiny")
        self.hub.wrong_bytes = True
        self.check_refused(self.pull(), 9, "sha256")

    def test_two_at_once(self):
        self.fault("objects", bytes_per_second=4_000_000)
        both = [subprocess.Popen([PROGRAM, "pull", "hf:org/tiny"], env=self.environment, text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                for _ in range(2)]
        said = [p.communicate(timeout=60)[1] for p in both]
        self.assertEqual([p.returncode for p in both], [0, 0], said)
        self.assertEqual(len(self.requests("cdn")), 1)
        self.assertIn("waiting for another edgellm", "".join(said))
        self.assertIn("up to date", "".join(said))

    def test_a_terminal_sees_a_bar(self):
        self.fault("objects", bytes_per_second=1_500_000)
        ours, theirs = pty.openpty()
        process = subprocess.Popen([PROGRAM, "pull", "hf:org/tiny"], env=self.environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 4096):
                seen += data
        except OSError:  # the other end is closed
            pass
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, seen)
        self.assertRegex(seen, rb"\r\[#+\.+\] +[0-9]+% .* of 2\.1 MB, .*/s, 0:0[0-9] left, model\.sa")
        self.assertNotIn(b"\x1b", seen)

    # The token.

    def test_the_token_goes_to_the_hub_only(self):
        self.hub.gated["org/tiny"] = TOKEN
        self.check_pulled(self.pull(HF_TOKEN=TOKEN + "\n", EDGELLM_LOG="trace"))
        self.assertEqual({r["authorization"] for r in self.requests("hub")}, {"Bearer " + TOKEN})
        self.assertEqual({r["authorization"] for r in self.requests("cdn")}, {None})

    def test_the_token_goes_nowhere_without_encryption(self):
        result = self.pull(HF_ENDPOINT="http://hub.example", HF_TOKEN=TOKEN)
        self.check_refused(result, 2, "without encryption")
        self.check_refused(self.pull(HF_TOKEN=TOKEN + "\r\nX: y"), 2, "HF_TOKEN holds a character")

    def test_a_redirect_to_http_is_not_followed(self):
        self.hub.location = self.hub.cdn_url.replace("https", "http") + "/objects/x"
        self.check_refused(self.pull(), 9, "from https to http")
        self.assertEqual(self.requests("cdn"), [])

    def test_hostile_redirects(self):
        for location in ("ftp://x/y", "https://", "x y", "https://me:you@host/x", self.hub.url + "/circle"):
            with self.subTest(location):
                self.hub.location = location
                if location.endswith("circle"):
                    self.hub.faults = [{"path": "circle", "times": 99, "status": 302,
                                        "headers": {"Location": location}}]
                self.check_refused(self.pull(), 9, "redirects")

    # Proxies.

    def proxy(self):
        proxy = hub_server.Proxy()
        self._enter(proxy)
        return proxy

    def test_a_proxy_leads_to_servers_that_only_it_can_find(self):
        proxy = self.proxy()
        proxy.hosts["hub.invalid"] = "127.0.0.1"
        port = self.hub.url.rsplit(":", 1)[1]
        self.check_pulled(self.pull(HF_ENDPOINT=f"https://hub.invalid:{port}",
                                    HTTPS_PROXY="http://" + proxy.host_and_port, HF_TOKEN=TOKEN))
        self.assertEqual({r["method"] for r in proxy.requests}, {"CONNECT"})
        self.assertEqual(len(proxy.requests), len(self.hub.requests))
        self.assertEqual({r["path"] for r in proxy.requests},
                         {f"hub.invalid:{port}", self.hub.cdn_url.removeprefix("https://")})
        self.assertEqual({r["authorization"] for r in self.requests("cdn")}, {None})

    def test_the_password_goes_to_the_proxy_only(self):
        proxy = self.proxy()
        proxy.authorization = "Basic bWU6czNjcmV0IQ=="  # me:s3cret!
        url = f"http://me:s3cret%21@{proxy.host_and_port}"
        result = self.pull(https_proxy=url, EDGELLM_LOG="trace")
        self.check_pulled(result)
        self.assertIn(proxy.host_and_port, result.stderr)
        for secret in ("s3cret", "bWU6"):
            self.assertNotIn(secret, result.stderr)
        for request in self.hub.requests:
            self.assertNotIn("Proxy-Authorization", request["headers"])
        help_text = self.run_program("help", "environment", HTTPS_PROXY=url).stdout
        self.assertNotIn("s3cret", help_text)

    def test_no_proxy(self):
        self.check_pulled(self.pull(ALL_PROXY="http://127.0.0.1:9", NO_PROXY="localhost,127.0.0.0/8"))

    def test_a_proxy_for_http(self):
        proxy = self.proxy()
        proxy.authorization = "Basic dTpw"
        proxy.http_server = self.hub.url
        self.check_pulled(self.pull(HF_ENDPOINT="http://hub.invalid", no_proxy="127.0.0.1",
                                    HTTP_PROXY=f"u:p@{proxy.host_and_port}"))
        self.assertEqual({r["method"] for r in proxy.requests}, {"GET"})
        self.assertTrue(all(r["path"].startswith("http://hub.invalid/") for r in proxy.requests))
        self.check_refused_by(proxy, "HTTP_PROXY", "http://hub.invalid", "other:one@", 0, "407",
                              "does not accept the user name")

    def check_refused_by(self, proxy, variable, endpoint, credentials, status, *parts):
        self.run_program("rm", "org/tiny")
        proxy.status = status
        result = self.pull(HF_ENDPOINT=endpoint, **{variable: f"http://{credentials}{proxy.host_and_port}"})
        self.check_refused(result, 9, proxy.host_and_port, variable, *parts)
        self.assertNotIn("other", result.stderr)

    def test_proxies_that_lead_nowhere(self):
        self.check_refused(self.pull(HTTPS_PROXY="http://127.0.0.1:9"), 9, "nobody answers at the proxy", "NO_PROXY")
        self.check_refused(self.pull(HTTPS_PROXY="http://proxy.invalid:80"), 9, "nobody answers at the proxy")
        self.check_refused(self.pull(HTTPS_PROXY="socks5://me:s3cret@127.0.0.1:9"), 2, "HTTPS_PROXY", "http://")
        proxy = self.proxy()
        self.check_refused_by(proxy, "HTTPS_PROXY", self.hub.url, "", 403, "says 403 to a connection to https://localhost")
        self.assertEqual(len(proxy.requests), 1)
        self.check_refused_by(proxy, "HTTPS_PROXY", self.hub.url, "", 407, "USER:PASSWORD")
        self.check_refused_by(proxy, "HTTPS_PROXY", self.hub.url, "other:one@", 407, "does not accept")
        for garbage in (b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 2"):
            proxy.garbage = garbage
            result = self.pull("hf:org/tiny", "--retries", "0", HTTPS_PROXY="http://" + proxy.host_and_port)
            self.check_refused(result, 9, "is no HTTP proxy")
        self.assertEqual(self.hub.requests, [])

    def test_a_proxy_that_cannot_reach_the_server_for_now(self):
        proxy = self.proxy()
        proxy.status = 503
        url = "http://" + proxy.host_and_port
        self.check_refused(self.pull("hf:org/tiny", "--retries", "1", HTTPS_PROXY=url), 9, "says 503")
        self.assertEqual(len(proxy.requests), 2)

    # Resuming.

    def test_a_cut_connection_is_resumed(self):
        self.fault("objects", cut_after=300_000)
        self.check_pulled(self.pull())
        first, second = self.requests("cdn")
        self.assertIsNone(first["range"])
        self.assertEqual(second["range"], "bytes=300000-")
        self.assertTrue(second["if_range"].startswith('"cdn-'))

    def test_the_next_command_resumes(self):
        self.fault("objects", cut_after=300_000)
        self.check_refused(self.pull("hf:org/tiny", "--retries", "0"), 9, "cut 1 answer in a row",
                           "the same command resumes")
        self.assertEqual(self.part().stat().st_size, 300_000)
        self.hub.requests.clear()
        self.check_pulled(self.pull())
        self.assertEqual([r["range"] for r in self.requests("cdn")], ["bytes=300000-"])
        self.assertEqual(len(self.requests("hub")), 2)  # the small files are there

    def test_a_server_without_ranges(self):
        self.hub.no_ranges = True
        self.fault("objects", cut_after=300_000)
        self.check_pulled(self.pull())
        self.assertEqual(len(self.requests("cdn")), 2)

    def test_a_damaged_part_is_downloaded_anew(self):
        self.fault("objects", cut_after=300_000)
        self.pull("hf:org/tiny", "--retries", "0")
        self.part().write_bytes(bytes(200_000))
        result = self.pull()
        self.assertIn("it is downloaded anew", result.stderr)
        self.check_pulled(result)
        self.assertEqual([r["range"] for r in self.requests("cdn")], [None, "bytes=200000-", None])

    def test_a_part_that_is_too_long(self):
        self.fault("objects", cut_after=300_000)
        self.pull("hf:org/tiny", "--retries", "0")
        self.part().write_bytes(bytes(4_000_000))
        self.check_pulled(self.pull())

    def test_interrupted_and_resumed(self):
        for fault in ({"bytes_per_second": 200_000}, {"cut_after": 300_000, "after_seconds": 20}):
            with self.subTest(fault):
                self.hub.faults.clear()
                self.fault("objects", **fault)
                self.interrupt_and_resume()
                self.run_program("rm", "org/tiny")

    def interrupt_and_resume(self):
        process = subprocess.Popen([PROGRAM, "pull", "hf:org/tiny"], env=self.environment, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while not list((self.place / "cache").rglob("model*.part")) or self.part().stat().st_size == 0:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        at = time.monotonic()
        _, said = process.communicate(timeout=60)
        self.assertLess(time.monotonic() - at, 2)
        self.assertEqual(process.returncode, 130, said)
        self.assertEqual(said, "edgellm: the download was interrupted; the same command resumes it\n")
        self.hub.requests.clear()
        self.check_pulled(self.pull())
        self.assertRegex(self.requests("cdn")[0]["range"], "bytes=[1-9][0-9]*-")

    def test_interrupted_while_the_list_is_awaited(self):
        self.fault("/api/", silent_seconds=20)
        process = subprocess.Popen([PROGRAM, "pull", "hf:org/tiny"], env=self.environment, text=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 30
        while not self.hub.requests:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        at = time.monotonic()
        process.communicate(timeout=60)
        self.assertLess(time.monotonic() - at, 2)
        self.assertEqual(process.returncode, 130)

    # What goes wrong.

    def test_a_server_that_takes_its_time(self):
        self.fault("/api/", silent_seconds=7)
        self.check_pulled(self.pull("hf:org/tiny", "--retries", "0"))

    def test_wrong_contents(self):
        self.hub.wrong_bytes = True
        self.check_refused(self.pull(), 9, "model.safetensors arrived with the sha256 ", ", expected ")
        self.assertEqual(list((self.place / "cache/downloads").rglob("*.part")), [])

    def test_status_codes_of_the_list(self):
        self.check_refused(self.pull("hf:org/none"), 9, "401", "check it", "into HF_TOKEN")
        self.check_refused(self.pull("hf:org/none", HF_TOKEN=TOKEN), 9, "401", "HF_TOKEN is not accepted")
        self.hub.gated["org/tiny"] = "another"
        self.check_refused(self.pull(HF_TOKEN=TOKEN), 9, "403", f"terms at {self.hub.url}/org/tiny")
        self.hub.gated.clear()
        self.check_refused(self.pull("hf:org/tiny@dev"), 9, "404", "no revision 'dev'")
        self.fault("/api/", status=404, times=1)
        self.check_refused(self.pull(), 9, "404", "no such model")
        self.fault("/api/", status=418, times=1)
        self.check_refused(self.pull(), 9, "418")

    def test_status_codes_of_a_file(self):
        self.fault("resolve.*safetensors", status=404, code="EntryNotFound")
        self.check_refused(self.pull(), 9, "404", "no file model.safetensors")
        self.fault("resolve.*safetensors", status=403)
        self.check_refused(self.pull(), 9, "403", "access is restricted")

    def test_an_expired_signature_is_made_anew(self):
        self.fault("objects", status=403, server="cdn")
        self.check_pulled(self.pull())
        self.assertEqual(len(self.requests("cdn")), 2)

    def test_too_many_requests(self):
        self.fault("/api/", status=429, headers={"Retry_After": "1"})
        self.check_pulled(self.pull())
        first, second = self.requests("hub")[:2]
        self.assertGreaterEqual(second["at"] - first["at"], 1)
        self.run_program("rm", "org/tiny")
        self.fault("/api/", status=429, headers={"Retry_After": "3600"})
        self.check_refused(self.pull(), 9, "429", "again in 3600 s")

    def test_faults_of_the_server(self):
        self.fault("resolve.*safetensors", status=503, times=2)
        self.fault("/api/", status=500, times=1)
        self.check_pulled(self.pull())
        self.run_program("rm", "org/tiny")
        self.hub.requests.clear()
        self.fault("/api/", status=500, times=99)
        self.check_refused(self.pull("hf:org/tiny", "--retries", "1"), 9, "500", "also in 1 more attempt;")
        self.assertEqual(len(self.hub.requests), 2)

    def test_no_network(self):
        self.check_refused(self.pull(HF_ENDPOINT="https://127.0.0.1:9"), 9, "nobody answers", "HF_ENDPOINT")
        self.check_refused(self.pull(HF_ENDPOINT="https://no-such-host.invalid"), 9, "nobody answers")

    def test_a_certificate_that_nobody_trusts(self):
        self.check_refused(self.pull(SSL_CERT_FILE="/dev/null"), 9, "no certificate that this machine trusts")
        self.check_refused(self.pull(HF_ENDPOINT=self.hub.impostor_url), 9, "no certificate that this machine trusts")
        self.assertEqual(self.hub.requests, [])

    def test_a_model_that_cannot_be_converted_is_refused_before_its_weights(self):
        config = json.loads((FIXTURE / "config.json").read_text())
        (self.repository / "config.json").write_text(json.dumps({**config, "architectures": ["Gpt9"]}))
        self.check_refused(self.pull(), 4, "Gpt9")
        self.assertEqual(self.requests("cdn"), [])
        (self.repository / "config.json").unlink()
        self.check_refused(self.pull(), 4, "holds no config.json")
        (self.repository / "q.gguf").write_bytes(b"GGUF")
        self.check_refused(self.pull(), 4, "type: edgellm pull hf:org/tiny --file q.gguf")
        self.check_refused(self.pull("hf:org/tiny", "--file", "no.gguf"), 3, "no file no.gguf; it has q.gguf")

    def test_a_model_of_another_source_is_not_replaced(self):
        self.target.parent.mkdir(parents=True)
        self.run_program("convert", str(FIXTURE), "-o", str(self.target))
        before = self.target.read_bytes()
        result = self.pull()
        self.assertEqual(result.returncode, 1)
        self.assertIn("was not pulled from hf:org/tiny", result.stderr)
        self.assertEqual(self.target.read_bytes(), before)

    def test_references(self):
        for name in ("tiny", "hf:tiny", "hf:../tiny", "hf:org/..", "hf:org/tiny@../x", "hf:org/a/b", "hf:/x"):
            with self.subTest(name):
                self.check_refused(self.pull(name), 2, "expected hf:ORG/NAME")
        self.check_refused(self.pull("https://huggingface.co/org/tiny/tree/main"), 2, "type: edgellm pull hf:org/tiny")
        self.check_refused(self.pull("hf:org/tiny", "--name", "../x"), 2, "is not a name")
        self.check_refused(self.pull("hf:org/tiny", "--file", "x.bin"), 2, "is not a GGUF file")
        self.assertEqual(self.hub.requests, [])

    def test_hostile_lists(self):
        def sets(key, value):
            return lambda files: [f.update({key: value}) for f in files if f["rfilename"] == "config.json"]
        edits = {"a negative size": sets("size", -1), "a size that is no number": sets("size", "9"),
                 "a size that is too large": sets("size", 2**62),
                 "another size": sets("size", 5), "another hash": sets("blobId", "0" * 40),
                 "a name that is no text": sets("rfilename", 7),
                 "not an entry": lambda files: files.append(7)}
        for what, edit in edits.items():
            with self.subTest(what):
                self.hub.listing_edit = edit
                result = self.pull("hf:org/tiny", "--retries", "0")
                self.assertIn(result.returncode, (1, 9), result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.hub.listing_edit = None
        self.hub.commit = "../../x"
        self.check_refused(self.pull(), 9, "sha is")

    def test_names_lead_nowhere(self):
        split_weights(self.repository)
        index = self.repository / "model.safetensors.index.json"
        good = json.loads(index.read_text())
        outside = self.place / "outside.safetensors"
        for name in ("../outside.safetensors", str(outside), "onnx/model.onnx", ".", "a\nb.safetensors"):
            with self.subTest(name):
                index.write_text(json.dumps({"weight_map": {**good["weight_map"], "x": name}}))
                # The server says that there is such a file.
                self.hub.listing_edit = lambda files: files.append({"rfilename": name, "size": 3, "blobId": "0" * 40})
                self.check_refused(self.pull("hf:org/tiny", "--retries", "0"), 9, "hf:org/tiny: ")
                self.assertFalse(outside.exists())
                shutil.rmtree(self.place / "cache")
        self.hub.listing_edit = lambda files: files.append({"rfilename": "a/\x01.gguf", "size": 3, "blobId": "0" * 40})
        self.check_refused(self.pull("hf:org/tiny", "--file", "a/\x01.gguf"), 9, "\\x01")


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("[skipped] no openssl")
        sys.exit(0)
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
