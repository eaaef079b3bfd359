#!/usr/bin/env python3
"""Does hub_server.py speak as the Hugging Face Hub does? Asks it with the huggingface_hub package.

    python3 -m venv venv && venv/bin/pip install huggingface_hub
    venv/bin/python tests/hub/client_check.py
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import hub_server

FIXTURE = pathlib.Path(__file__).parent.parent / "data/fixtures/g2/bitnet-h320-untied"

# Run with the environment of the server: the package reads it when it is imported.
CLIENT = """
import json, sys
from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub import constants, errors

constants.DOWNLOAD_CHUNK_SIZE = 65536  # it resumes behind a whole chunk
name, gated, target = sys.argv[1:]
said = {}
info = HfApi().model_info(name, files_metadata=True)
said["commit"] = info.sha
said["files"] = {f.rfilename: [f.size, f.blob_id, f.lfs and f.lfs.sha256] for f in info.siblings}
said["revision"] = HfApi().model_info(name, revision="refs/pr/1").sha
try:
    snapshot_download(name, local_dir=target)
except Exception:  # before version 1 a connection that is cut ends it
    snapshot_download(name, local_dir=target)
said["one"] = hf_hub_download(name, "config.json", revision="refs/pr/1")

def error(call):
    try:
        call()
    except errors.HfHubHTTPError as problem:
        return type(problem).__name__
    return "none"

said["errors"] = [
    error(lambda: HfApi().model_info("org/none")),
    error(lambda: HfApi().model_info(name, revision="dev")),
    error(lambda: hf_hub_download(name, "no.json")),
    error(lambda: HfApi().model_info(gated, token=False)),
    error(lambda: HfApi().model_info(gated)),
]
print(json.dumps(said))
"""


def main() -> int:
    try:
        import huggingface_hub
    except ImportError:
        print("[skipped] no huggingface_hub")
        return 0
    with tempfile.TemporaryDirectory() as place, hub_server.Hub(pathlib.Path(place) / "repositories") as hub:
        for name in ("org/tiny", "org/gated"):
            shutil.copytree(FIXTURE, hub.folder / name)
        hub.revisions.append("refs/pr/1")
        hub.gated["org/gated"] = "hf_right"
        hub.faults.append({"path": "objects", "times": 1, "cut_after": 300_000})  # the client resumes
        target = pathlib.Path(place) / "target"
        client = subprocess.run(
            [sys.executable, "-c", CLIENT, "org/tiny", "org/gated", str(target)],
            env={**os.environ, "HF_ENDPOINT": hub.url, "SSL_CERT_FILE": str(hub.certificate),
                 "REQUESTS_CA_BUNDLE": str(hub.certificate), "HF_HOME": place + "/home",
                 "HF_TOKEN": "hf_right", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
            stdout=subprocess.PIPE, text=True)
        assert client.returncode == 0, "the client failed"
        said = json.loads(client.stdout)
        assert said["commit"] == said["revision"] == hub.commit, said
        for path in FIXTURE.iterdir():
            data = path.read_bytes()
            assert (target / path.name).read_bytes() == data, path
            size, blob, sha256 = said["files"][path.name]
            assert size == len(data), path
            assert (sha256 is not None) == (len(data) >= hub.lfs_bytes), path
        assert pathlib.Path(said["one"]).exists()
        # A gated model without a token is refused as one that is not there.
        expected = ["RepositoryNotFoundError", "RevisionNotFoundError", "EntryNotFoundError",
                    "GatedRepoError", "none"]
        # Before version 1 the third is not called Remote.
        assert [e.removeprefix("Remote") for e in said["errors"]] == expected, said["errors"]
        resumed = [r for r in hub.requests if r["server"] == "cdn" and r["range"]]
        assert resumed, "the client did not resume"
        assert all(r["authorization"] is None for r in hub.requests if r["server"] == "cdn")
        print(f"client_check: huggingface_hub {huggingface_hub.__version__} understands the server")
    return 0


if __name__ == "__main__":
    sys.exit(main())
