"""`edgellm batch --shard auto` under a real Slurm of one node, which the script starts and ends.

    slurm_test.py PROGRAM MODEL        needs root, and Debian's slurm-wlm and munge (docs/testing.md)
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM, MODEL = (pathlib.Path(word).resolve() for word in sys.argv[1:])
# What Debian's packages bring; slurmctld is in a folder for root.
TOOLS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel"]

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def same(found, expected):
    assert found == expected, f"\nfound:    {found!r}\nexpected: {expected!r}"


def wait_until(is_so, what, seconds=60):
    for _ in range(seconds * 20):
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")


class Slurm:
    """munged, slurmctld and slurmd with a folder, a key and ports of their own."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = []
        host = socket.gethostname().split(".")[0]
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format(
            host=host, folder=folder, cpus=os.cpu_count(), controller_port=free_port(), node_port=free_port()))
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        self.environment = {**os.environ, "SLURM_CONF": str(configuration)}

    def __enter__(self):
        of_munge = [f"--{name}={self.folder}/munge.{name.split('-')[0]}"
                    for name in ("key-file", "socket", "pid-file", "log-file", "seed-file")]
        self.start("munged", "--foreground", *of_munge)
        wait_until((self.folder / "munge.socket").exists, "munged starts")
        self.start("slurmctld", "-D")
        wait_until(lambda: "UP" in self.command("scontrol", "ping"), "slurmctld starts")
        self.start("slurmd", "-D")
        wait_until(lambda: "idle" in self.command("sinfo", "--noheader", "--format=%T"), "slurmd starts")
        return self

    def __exit__(self, *_):
        self.command("scancel", "--user=root", "--signal=KILL")
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            process.kill()

    def start(self, name, *options):
        with (self.folder / f"{name}.log").open("w") as log:
            self.processes.append(subprocess.Popen([name, *options], env=self.environment, stdout=log, stderr=log))

    def command(self, *words):
        return subprocess.run(words, env=self.environment, capture_output=True, text=True).stdout

    def batch(self, name, options, *sbatch, launcher="srun", wait=True):
        """Submits a job of `edgellm batch`; what it says goes to NAME.TASK.log. Returns sbatch's process."""
        script = self.folder / f"{name}.sh"
        script.write_text(f"#!/bin/bash\n{launcher} {PROGRAM} batch {MODEL} -i {self.folder}/in.jsonl "
                          f"-o '{self.folder}/{name}.{{shard}}.jsonl' --shard auto --device cpu --threads 1 {options}\n")
        submitted = subprocess.Popen(["sbatch", "--wait", f"--output={self.folder}/{name}.%a.log", "--open-mode=append",
                                      *sbatch, script], env=self.environment, stdout=subprocess.DEVNULL)
        if wait:
            submitted.wait(timeout=120)
        return submitted

    def log(self, name):
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"{name}.*.log")))

    def lines(self, name):
        return sum(path.read_text().count("\n") for path in self.folder.glob(f"{name}.[0-9]*.jsonl"))

    def merged(self, name):
        """Texts by id, of the outputs of all shards."""
        parts = sorted(self.folder.glob(f"{name}.[0-9].jsonl"))
        joined = self.folder / f"{name}.all.jsonl"
        subprocess.run([PROGRAM, "batch", "--merge", *parts, "-i", self.folder / "in.jsonl", "-o", joined], check=True,
                       stderr=subprocess.DEVNULL)
        return texts(joined)


def texts(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {record["custom_id"]: record["response"]["body"]["choices"][0]["text"] for record in records}


def array_of_jobs(slurm, expected):
    same(slurm.batch("array", "-n 100", "--array=3-7:2").returncode, 0)
    assert "shard 2/3, by SLURM_ARRAY_TASK_ID=5" in slurm.log("array"), slurm.log("array")
    same(slurm.merged("array"), expected)


def array_of_steps(slurm, expected):
    same(slurm.batch("steps", "-n 100", "--array=0-1", "--ntasks=2", "--overcommit").returncode, 0)
    assert all(f"shard {i}/4" in slurm.log("steps") for i in range(1, 5)), slurm.log("steps")
    same(slurm.merged("steps"), expected)


def script_without_srun(slurm, expected):
    """One process is one shard; of a job of several tasks it would be one of several, and the others nobody's."""
    same(slurm.batch("script", "-n 100", "--array=1-2", launcher="").returncode, 0)
    same(slurm.merged("script"), expected)
    assert slurm.batch("lonely", "-n 100", "--array=1-1", "--ntasks=2", "--overcommit", launcher="").returncode != 0
    assert "write srun before edgellm" in slurm.log("lonely"), slurm.log("lonely")


def cancelled(slurm, expected):
    """SIGTERM finishes what is being answered; the same job again answers the rest."""
    options = ("cancelled", "-n 100 --sequences 1 --grace 20", "--array=1-2")
    job = slurm.batch(*options, wait=False)
    wait_until(lambda: slurm.lines("cancelled") >= 4, "the jobs begin to answer")
    slurm.command("scancel", "--user=root")
    assert job.wait(timeout=60) != 0, "the jobs were not cancelled"
    assert "SIGTERM: finishing 1 answer" in slurm.log("cancelled"), slurm.log("cancelled")
    done = slurm.lines("cancelled")
    assert 4 <= done < len(expected), done
    same(slurm.batch(*options).returncode, 0)
    same(slurm.merged("cancelled"), expected)


def main():
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return print(f"[skipped] no {', '.join(missing)} on this machine (Debian's packages slurm-wlm and munge)")
    if os.geteuid() != 0:
        return print("[skipped] slurmd wants root")
    # A short path, as sockets need; munged wants no folder that others may write.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/run") as folder:
        folder = pathlib.Path(folder)
        folder.chmod(0o755)
        requests = [{"id": f"r{i}", "prompt": f"The story of the {i} animals began", "ignore_eos": True}
                    for i in range(60)]
        (folder / "in.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
        subprocess.run([PROGRAM, "batch", MODEL, "-i", folder / "in.jsonl", "-o", folder / "whole.jsonl", "-n", "100",
                        "--device", "cpu"], check=True, stderr=subprocess.DEVNULL)
        expected = texts(folder / "whole.jsonl")
        same(len(expected), 60)
        with Slurm(folder) as slurm:
            for check in array_of_jobs, array_of_steps, script_without_srun, cancelled:
                began = time.monotonic()
                check(slurm, expected)
                print(f"passed: {check.__name__} ({time.monotonic() - began:.1f} s)", flush=True)


main()
