"""A server that speaks the Hugging Face Hub's protocol over TLS, for tests.

Two servers in one: the Hub, which lists the files of a model and redirects to large files, and the
CDN that it redirects to, which listens on another port under another host name. Both show one
certificate that is made anew each time; SSL_CERT_FILE of a client has to name `certificate`.

A Proxy stands between a client and the two.

Repositories are folders: FOLDER/ORG/NAME. Files of `lfs_bytes` and more are LFS objects. Faults are
set through `Hub.faults`, requests can be read from `Hub.requests`.
"""

import contextlib
import hashlib
import http.server
import json
import pathlib
import re
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: "Hub"
    server_name = ""  # "hub" or "cdn"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status, code="", **headers):
        if code:
            headers["X_Error_Code"] = code
        self.answer(status, json.dumps({"error": code}).encode(), **headers)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        with self.hub.lock:
            self.hub.requests.append({
                "server": self.server_name, "method": self.command, "path": self.path,
                "authorization": self.headers.get("Authorization"),
                "headers": list(self.headers.keys()), "range": self.headers.get("Range"), "if_range": self.headers.get("If-Range"),
                "at": time.monotonic()})
        if self.fail():
            return
        if self.server_name == "hub":
            self.serve_hub()
        else:
            self.serve_cdn()

    def fail(self) -> bool:
        """Answers as the first fault for this address says that has not run out."""
        for fault in self.hub.faults:
            if fault.get("server", "hub") != self.server_name or fault["times"] <= 0:
                continue
            if not re.search(fault["path"], self.path) or not {"status", "silent_seconds"} & set(fault):
                continue
            fault["times"] -= 1
            if "silent_seconds" in fault:
                time.sleep(fault["silent_seconds"])
                return False
            self.error(fault["status"], fault.get("code", ""), **fault.get("headers", {}))
            return True
        return False

    def fault_of_body(self) -> dict:
        """What shall go wrong with the body of this answer: cut_after, with after_seconds perhaps,
        bytes_per_second."""
        for fault in self.hub.faults:
            if not {"status", "silent_seconds"} & set(fault) and fault["times"] > 0 and re.search(fault["path"], self.path):
                fault["times"] -= 1
                return fault
        return {}

    def serve_hub(self):
        path = urllib.parse.urlparse(self.path).path
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(?:revision|tree)/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = listing or file
        if not match:
            return self.error(404)
        match = [urllib.parse.unquote(part or "") for part in (match[0], *match.groups())]
        repository = self.hub.folder / match[1]
        if not repository.is_dir():
            return self.error(401, "RepoNotFound")
        if match[1] in self.hub.gated and self.headers.get("Authorization") != "Bearer " + self.hub.gated[match[1]]:
            return self.error(401 if not self.headers.get("Authorization") else 403, "GatedRepo")
        if (match[2] or "main") not in (*self.hub.revisions, self.hub.commit):
            return self.error(404, "RevisionNotFound")
        if listing:
            body = self.hub.tree(repository) if "/tree/" in path else self.hub.listing(repository)
            return self.answer(200, body, Content_Type="application/json")
        path = repository / match[3]
        if not path.is_file():
            return self.error(404, "EntryNotFound")
        self.serve_file(path)

    def serve_file(self, path):
        data = path.read_bytes()
        if len(data) < self.hub.lfs_bytes:
            return self.answer(200, data, ETag=f'"{git_blob(data)}"', X_Repo_Commit=self.hub.commit)
        sha256 = hashlib.sha256(data).hexdigest()
        self.hub.objects[sha256] = path
        location = self.hub.location or f"{self.hub.cdn_url}/objects/{sha256}?signature=a%2Fb%3D&x=1"
        self.answer(302, b"Found", Location=location, X_Linked_ETag=f'"{sha256}"',
                    X_Linked_Size=str(len(data)), X_Repo_Commit=self.hub.commit, ETag='"of-the-redirect"')

    def serve_cdn(self):
        url = urllib.parse.urlparse(self.path)
        if url.query != "signature=a%2Fb%3D&x=1":
            return self.error(403)
        sha256 = url.path.removeprefix("/objects/")
        data = self.hub.objects[sha256].read_bytes()
        if self.hub.wrong_bytes:
            data = bytes([data[0] ^ 1]) + data[1:]
        etag = f'"cdn-{sha256[:8]}"'
        begin, status, headers = 0, 200, {}
        wanted = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("Range", ""))
        if wanted and not self.hub.no_ranges and self.headers.get("If-Range", etag) == etag:
            begin, status = int(wanted[1]), 206
            if begin >= len(data):
                return self.error(416)
            headers["Content_Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        body = data[begin:]
        fault = self.fault_of_body()
        cut, pace = fault.get("cut_after"), fault.get("bytes_per_second")
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), "ETag": etag, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut is not None:
            self.wfile.write(body[:cut])
            self.wfile.flush()
            time.sleep(fault.get("after_seconds", 0))
            self.close_connection = True
            self.connection.shutdown(2)
            return
        step = len(body) if pace is None else max(1, pace // 20)
        with contextlib.suppress(OSError):  # a client that goes away in mid-answer
            for at in range(0, len(body), step):
                self.wfile.write(body[at:at + step])
                if pace is not None:
                    self.wfile.flush()
                    time.sleep(0.05)


class ProxyHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: "Proxy"

    def log_message(self, *args):
        pass

    def refuses(self) -> bool:
        with self.proxy.lock:
            self.proxy.requests.append({"method": self.command, "path": self.path,
                                        "authorization": self.headers.get("Proxy-Authorization")})
        status = self.proxy.status
        if self.proxy.authorization and self.headers.get("Proxy-Authorization") != self.proxy.authorization:
            status = 407
        if self.proxy.garbage:
            self.wfile.write(self.proxy.garbage)
        elif status:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        self.close_connection = True
        return bool(status or self.proxy.garbage)

    def do_CONNECT(self):
        if self.refuses():
            return
        host, port = self.path.rsplit(":", 1)
        with socket.create_connection((self.proxy.hosts.get(host, host), int(port))) as server:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\nX-Proxy: yes\r\n\r\n")
            back = threading.Thread(target=self.copy, args=(server, self.connection), daemon=True)
            back.start()
            self.copy(self.connection, server)
            back.join()

    @staticmethod
    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def do_GET(self):
        """Of a server of http: the Hub behind it speaks TLS alone."""
        if self.refuses():
            return
        path = self.path.split("/", 3)[3]
        request = urllib.request.Request(f"{self.proxy.http_server}/{path}")
        for name in ("Range", "If-Range"):
            if name in self.headers:
                request.add_header(name, self.headers[name])
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), PassRedirects,
            urllib.request.HTTPSHandler(context=ssl._create_unverified_context()))
        with contextlib.closing(opener.open(request)) as answer:
            body = answer.read()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name not in ("Server", "Date"):
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)


class PassRedirects(urllib.request.HTTPErrorProcessor):
    def http_response(self, request, response):
        return response

    https_response = http_response


class Proxy:
    """An HTTP proxy. Runs while it is a context."""

    def __init__(self):
        self.lock = threading.Lock()
        self.requests = []
        self.hosts = {}          # name: address, of servers that it alone can find
        self.authorization = ""  # what Proxy-Authorization has to be
        self.status = 0          # answers with it, and nothing else
        self.garbage = b""       # likewise
        self.http_server = ""    # where pages of http come from

    def __enter__(self):
        self._server = Server(("127.0.0.1", 0), type("proxy", (ProxyHandler,), {"proxy": self}))
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.host_and_port = f"127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *exception):
        self._server.shutdown()
        self._server.server_close()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that goes away


class Hub:
    """Runs while it is a context."""

    commit = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.lock = threading.Lock()
        self.requests = []
        self.faults = []      # {"path": REGEX, "times": N, "status": 503 | "cut_after": N | ...}
        self.gated = {}       # "ORG/NAME": token
        self.revisions = ["main"]
        self.lfs_bytes = 4096
        self.objects = {}
        self.wrong_bytes = False
        self.no_ranges = False
        self.location = ""    # redirects lead there
        self.listing_edit = None  # called with the list of files, which it may change
        self._temporary = tempfile.TemporaryDirectory()
        self.certificate = pathlib.Path(self._temporary.name) / "certificate.pem"

    def __enter__(self):
        key = self.certificate.with_name("key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                        "-nodes", "-days", "2", "-subj", "/CN=a test's own authority",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:hub.invalid",
                        "-keyout", key, "-out", self.certificate],
                       check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._servers = []
        ports = {}
        # The third has an address that the certificate is not for.
        for name, host in (("hub", "127.0.0.1"), ("cdn", "127.0.0.1"), ("impostor", "127.0.0.2")):
            handler = type(name, (Handler,), {"hub": self, "server_name": name})
            server = Server((host, 0), handler)
            # The handshake belongs to the thread of the connection, not to the one that accepts.
            server.socket = context.wrap_socket(server.socket, server_side=True,
                                                do_handshake_on_connect=False)
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            self._servers.append(server)
            ports[name] = server.server_address[1]
        self.url = f"https://localhost:{ports['hub']}"
        self.cdn_url = f"https://127.0.0.1:{ports['cdn']}"
        self.impostor_url = f"https://127.0.0.2:{ports['impostor']}"
        return self

    def __exit__(self, *exception):
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._temporary.cleanup()

    def tree(self, repository) -> bytes:
        """The other form of the list."""
        return json.dumps([
            {"type": "file", "path": file["rfilename"], "size": file["size"], "oid": file["blobId"],
             **({"lfs": {"oid": file["lfs"]["sha256"], **file["lfs"]}} if "lfs" in file else {})}
            for file in self.files(repository)]).encode()

    def files(self, repository) -> list:
        files = []
        for path in sorted(p for p in repository.rglob("*") if p.is_file()):
            data = path.read_bytes()
            entry = {"rfilename": str(path.relative_to(repository)), "size": len(data),
                     "blobId": git_blob(data)}
            if len(data) >= self.lfs_bytes:
                sha256 = hashlib.sha256(data).hexdigest()
                pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {len(data)}\n"
                entry["blobId"] = git_blob(pointer.encode())
                entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": len(pointer)}
            files.append(entry)
        return files

    def listing(self, repository) -> bytes:
        files = self.files(repository)
        if self.listing_edit:
            self.listing_edit(files)
        name = str(repository.relative_to(self.folder))
        return json.dumps({"_id": "0", "id": name, "modelId": name, "sha": self.commit, "private": False,
                           "gated": name in self.gated, "disabled": False, "downloads": 0, "likes": 0,
                           "tags": [], "siblings": files}).encode()
