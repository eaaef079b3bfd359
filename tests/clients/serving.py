"""What the scripts of this folder share: PROGRAM, MODEL and the checks asked for by name, the server,
and what `edgellm run` says."""

import atexit
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(sys.executable).parent  # of the environment that pip has filled
PROGRAM, MODEL, *CHOSEN = sys.argv[1:]
NAME = pathlib.Path(MODEL).stem


class Server:
    """`edgellm serve` at a port of its own."""

    def __init__(self, *options, key=None):
        environment = {**os.environ, **({"EDGELLM_API_KEY": key} if key else {})}
        self.process = subprocess.Popen([PROGRAM, "serve", MODEL, "--port", "0", "--device", "cpu", *options],
                                        stdout=subprocess.PIPE, text=True, env=environment)
        atexit.register(self.process.kill)  # where a check fails
        self.url = self.process.stdout.readline().strip()

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(f"edgellm:{name}{{"):
                    return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def await_metric(self, name, value):
        """A client may know of an end sooner than the server's engine."""
        for _ in range(100):
            if self.metric(name) == value:
                return
            time.sleep(0.05)
        same(self.metric(name), value)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def alone(*options):
    """What `edgellm run` says."""
    out = subprocess.run([PROGRAM, "run", MODEL, "--json", "--device", "cpu", *options], check=True,
                         capture_output=True, stdin=subprocess.DEVNULL).stdout
    return json.loads(out)


def same(found, expected):
    assert found == expected, f"\nfound:    {found!r}\nexpected: {expected!r}"


def messages(text):
    return [{"role": "user", "content": text}]


def run_checks(checks, *arguments, only_by_name=()):
    for check in [*checks, *only_by_name]:
        if check.__name__ not in CHOSEN if CHOSEN else check in only_by_name:
            continue
        began = time.monotonic()
        reason = check(*arguments)
        if reason:
            print(f"skipped: {check.__name__}: {reason}", flush=True)
        else:
            print(f"passed: {check.__name__} ({time.monotonic() - began:.1f} s)", flush=True)
