"""Imitate the gcloud commands that launch/cloud_tpu.sh uses, with a directory for each host.

The directory in the environment variable FAKE_GCLOUD contains these files:
  script.json    the planned events: `states` is a list with the states of each queued resource that
                 is created; `ssh` and `scp` are lists with the event of each call, such as "ok"
  calls          the arguments of every call, one JSON list per line
  resource.json  the states that the queued resource will still go through, if it exists
  host-0, ...    the home directories of the hosts
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(os.environ["FAKE_GCLOUD"])
HOSTS = [ROOT / "host-0", ROOT / "host-1"]
RESOURCE = ROOT / "resource.json"
NOT_FOUND, NO_CONNECTION = 1, 255


def next_event(kind: str, default: str = "ok") -> str:
    """Remove the next planned event of a kind from the script, and return it."""
    path = ROOT / "script.json"
    script = json.loads(path.read_text())
    event = script[kind].pop(0) if script.get(kind) else default
    path.write_text(json.dumps(script))
    return event


def kill_hosts() -> None:
    """End the processes of all hosts and delete their files."""
    for host in HOSTS:
        pid = host / "bert_jax_run/pid"
        if pid.exists():
            try:
                os.killpg(int(pid.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(host, ignore_errors=True)


def queued_resources(verb: str, options: list[str]) -> int:
    if verb == "create":
        if RESOURCE.exists():
            print("ALREADY_EXISTS", file=sys.stderr)
            return 1
        states = next_event("states", default=["ACTIVE"])
        RESOURCE.write_text(json.dumps(states))
        for host in HOSTS:
            host.mkdir()
        return 0
    if event := next_event("api", default=""):
        print(event, file=sys.stderr)
        return 1
    if not RESOURCE.exists():
        print("ERROR: (gcloud) NOT_FOUND: Resource was not found", file=sys.stderr)
        return NOT_FOUND
    if verb == "delete":
        assert "--force" in options
        kill_hosts()
        RESOURCE.unlink()
        return 0
    states = json.loads(RESOURCE.read_text())
    print(states[0])
    if len(states) > 1:
        RESOURCE.write_text(json.dumps(states[1:]))
    return 0


def scp(words: list[str]) -> int:
    if next_event("scp") != "ok":
        return NO_CONNECTION
    files = [word for word in words[1:] if not word.startswith("--") and not word.endswith(":")]
    for host in HOSTS:
        for file in files:
            shutil.copy(file, host)
    return 0


def ssh(command: str) -> int:
    event = next_event("ssh")
    if event == "refused" or not all(host.exists() for host in HOSTS):
        return NO_CONNECTION
    processes: list[subprocess.Popen[bytes]] = []

    def kill_all() -> None:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)

    # The handler must not wait for processes, since it may interrupt a call that already does.
    signal.signal(signal.SIGTERM, lambda *_: (kill_all(), os._exit(143)))
    for host in HOSTS:
        environment = os.environ | {"HOME": str(host)}
        processes.append(
            subprocess.Popen(
                ["bash", "-c", command], env=environment, cwd=host, start_new_session=True
            )
        )
    if event == "ok":
        return max(process.wait() for process in processes)
    # Wait until the run has begun, and then lose the connection or the slice.
    deadline = time.monotonic() + 60
    while not all((host / "began").exists() for host in HOSTS):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    kill_all()
    for process in processes:
        process.wait()
    if event == "preempted":
        kill_hosts()
        # The state changes a moment after the hosts have stopped.
        RESOURCE.write_text(json.dumps(["ACTIVE", "SUSPENDING", "SUSPENDED"]))
    return NO_CONNECTION


def main(words: list[str]) -> int:
    with (ROOT / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    assert words[:2] == ["compute", "tpus"]
    if words[2] == "queued-resources":
        return queued_resources(words[3], words[4:])
    assert words[2] == "tpu-vm"
    if words[3] == "scp":
        return scp(words[3:])
    assert words[3] == "ssh"
    (command,) = (word.partition("=")[2] for word in words if word.startswith("--command="))
    return ssh(command)


sys.exit(main(sys.argv[1:]))
