"""Test launch/cloud_tpu.sh with a fake gcloud, whose hosts are directories on this machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

import pytest

from ..commands import REPOSITORY

pytestmark = pytest.mark.slow

TIMEOUT = 120

FAKE = Path(__file__).with_name("fake_gcloud.py")
# This script imitates uv: it records its arguments, and "installs" a program that the test
# provides.
FAKE_UV = """#!/bin/bash
echo "$*" >> "$HOME/uv"
[[ $1 == venv ]] || exit 0
mkdir -p .venv/bin
cp "$FAKE_GCLOUD/program" .venv/bin/bert-jax
touch .venv/bin/python
chmod +x .venv/bin/*
"""
# This script is a fake bert-jax. A test ends the fake run by creating the file `end`, which
# contains the exit code. After SIGTERM, the script exits like a run that has saved a checkpoint.
PROGRAM = """#!/bin/bash
echo "$*" >> "$FAKE_GCLOUD/runs"
trap 'echo saved; exit 143' TERM
touch "$HOME/began"
echo "running on ${HOME##*/}"
until [[ -e $FAKE_GCLOUD/end ]]; do sleep 0.05; done
exit "$(head -n 1 "$FAKE_GCLOUD/end")"
"""
CREATE = (
    "queued-resources create tpu --zone=z1 --quiet --node-id=tpu --accelerator-type=v5litepod-8 "
    "--runtime-version=v2-alpha-tpuv5-lite --spot"
)
DESCRIBE = "queued-resources describe tpu --zone=z1 --quiet --format=value(state.state)"
DELETE = "queued-resources delete tpu --zone=z1 --quiet --force"
SSH = "tpu-vm ssh tpu --zone=z1 --quiet --worker=all --ssh-flag=-oServerAliveInterval=30 "
SSH += "--ssh-flag=-oServerAliveCountMax=6 --command=bash cloud_tpu_host.sh "


@dataclass
class Cloud:
    """The fake cloud and a small checkout with the script.

    Args:
      root: the directory of the fake gcloud.
      checkout: a git repository with launch/ and a file that git ignores.
      processes: the scripts that were started.
    """

    root: Path
    checkout: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def plan(self, **events: list[Any]) -> None:
        (self.root / "script.json").write_text(json.dumps(events))

    def end(self, code: int) -> None:
        (self.root / "end").write_text(f"{code}\n")

    def start(
        self, *words: str, options: tuple[str, ...] = ("--type", "v5litepod-8")
    ) -> subprocess.Popen[str]:
        script = self.checkout / "launch/cloud_tpu.sh"
        command = [script, *options, "tpu", "z1", *(words or ("pretrain", "--config", "a b.py"))]
        with self.log.open("w") as log:
            process = self._open(command, log)
        self.processes.append(process)
        return process

    def _open(self, command: list[Any], log: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", *map(str, command)],
            env={
                **os.environ,
                "PATH": f"{self.root}/bin:{os.environ['PATH']}",
                "FAKE_GCLOUD": str(self.root),
                "POLL_SECONDS": "0.05",
                "LC_ALL": "C",
            },
            stdout=log,
            stderr=log,
            text=True,
        )

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for the end of the script, and return its exit code and output."""
        process.wait(TIMEOUT)
        return process.returncode, self.log.read_text()

    def run(self, *words: str, **options: Any) -> tuple[int, str]:
        return self.finish(self.start(*words, **options))

    def wait_until_running(self) -> None:
        deadline = time.monotonic() + 60
        while not all((self.root / f"host-{index}/began").exists() for index in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait_for_output(self, text: str, count: int = 1) -> None:
        deadline = time.monotonic() + TIMEOUT
        while self.log.read_text().count(text) < count:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    @property
    def log(self) -> Path:
        return self.root / "output"

    @property
    def calls(self) -> list[str]:
        """The calls of gcloud, without "compute tpus" and with placeholders for temporary names."""
        lines = [
            " ".join(json.loads(line)[2:])
            for line in (self.root / "calls").read_text().splitlines()
        ]
        short = []
        for line in lines:
            for long, name in ((CREATE, "create"), (DESCRIBE, "describe"), (DELETE, "delete")):
                line = name if line == long else line
            if line.startswith(SSH):
                words = line.removeprefix(SSH).split()
                line = words[0] if words[0] in ("start", "follow") else " ".join(words)
            short.append("scp" if line.startswith("tpu-vm scp") else line)
        return short

    @property
    def runs(self) -> list[str]:
        return (self.root / "runs").read_text().splitlines()


@pytest.fixture
def cloud(tmp_path) -> Iterator[Cloud]:
    root, checkout = tmp_path / "cloud", tmp_path / "checkout"
    (root / "bin").mkdir(parents=True)
    gcloud = f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n'
    for name, text in (("bin/gcloud", gcloud), ("bin/uv", FAKE_UV), ("program", PROGRAM)):
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    shutil.copytree(REPOSITORY / "launch", checkout / "launch")
    (checkout / ".gitignore").write_text("ignored.txt\n")
    for name in ("ignored.txt", "new file.py", "deleted.py"):
        (checkout / name).write_text("text\n")
    for words in (["init", "--quiet"], ["add", "launch", "deleted.py"]):
        subprocess.run(["git", *words], cwd=checkout, check=True)
    (checkout / "deleted.py").unlink()
    made = Cloud(root, checkout)
    made.plan()
    yield made
    for process in made.processes:
        with process:
            process.kill()
    for pid in root.glob("host-*/bert_jax_run/pid"):
        try:
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            pass


SETUP = ["scp", "setup ''", "start", "follow"]


def test_a_new_slice_is_requested_then_set_up_and_used(cloud):
    cloud.plan(states=[["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]])
    cloud.end(0)
    code, output = cloud.run()
    assert code == 0, output
    assert cloud.calls == ["describe", "create", "describe", "describe", "describe", *SETUP]
    assert cloud.runs == ["pretrain --config a b.py --distributed"] * 2
    assert "running on host-0" in output and "running on host-1" in output
    assert "tpu still exists, and costs money" in output
    host = cloud.root / "host-1/bert_jax"
    assert (host / "new file.py").exists() and (host / "launch/cloud_tpu.sh").exists()
    assert not (host / "ignored.txt").exists() and not (host / "deleted.py").exists()
    assert (cloud.root / "host-0/uv").read_text().splitlines() == [
        "venv --quiet --python 3.11 .venv",
        "pip install --quiet --python .venv/bin/python --require-hashes "
        "--requirements launch/docker/requirements-tpu.lock",
        "pip install --quiet --python .venv/bin/python --no-deps --editable .",
    ]


def test_an_existing_slice_is_used_with_all_options(cloud):
    cloud.plan(states=[["ACTIVE"]])
    options = ["--type", "v6e-8", "--on-demand", "--create-flag", "--network=n 1", "--delete"]
    options += ["--setup", "echo 'mounted $HOME' > mounted"]
    cloud.end(0)
    code, output = cloud.run(options=tuple(options))
    assert code == 0, output
    assert cloud.calls[1] == (
        "queued-resources create tpu --zone=z1 --quiet --node-id=tpu --accelerator-type=v6e-8 "
        "--runtime-version=v2-alpha-tpuv6e --network=n 1"
    )
    assert cloud.calls[-1] == "delete"
    cloud.plan(states=[["ACTIVE"]])
    (cloud.root / "resource.json").write_text('["ACTIVE"]')
    for index in (0, 1):
        (cloud.root / f"host-{index}").mkdir()
    before = len(cloud.calls)
    code, output = cloud.run(options=("--setup", "echo 'mounted $HOME' > mounted"))
    assert code == 0, output
    assert cloud.calls[before] == "describe" and "create" not in cloud.calls[before:]
    assert (cloud.root / "host-0/bert_jax/mounted").read_text() == "mounted $HOME\n"


def test_a_preempted_slice_is_requested_again_and_the_run_resumed(cloud):
    cloud.plan(ssh=["ok", "ok", "preempted"])
    process = cloud.start()
    cloud.wait_until_running()
    cloud.wait_for_output("deleting tpu")
    cloud.wait_until_running()
    cloud.end(0)
    code, output = cloud.finish(process)
    assert code == 0, output
    # The state is still ACTIVE at first, so the script tries to reconnect once.
    lost = ["describe", "follow", "describe", "describe", "delete", "describe", "create"]
    assert cloud.calls == ["describe", "create", "describe", *SETUP, *lost, "describe", *SETUP]
    assert cloud.runs == ["pretrain --config a b.py --distributed"] * 4
    assert "restart 1 of at most 20" in output


def test_a_lost_connection_does_not_end_the_run(cloud):
    cloud.plan(ssh=["ok", "ok", "dropped", "refused"])
    process = cloud.start()
    cloud.wait_for_output("the connection was lost; the run continues", 2)
    cloud.end(0)
    code, output = cloud.finish(process)
    assert code == 0, output
    again = ["describe", "follow"]
    assert cloud.calls == ["describe", "create", "describe", *SETUP, *again, *again]
    assert len(cloud.runs) == 2  # There is one run on each host.


def test_the_setup_is_repeated_after_a_lost_connection(cloud):
    cloud.plan(scp=["refused"], ssh=["refused", "ok", "refused"])
    cloud.end(0)
    code, output = cloud.run()
    assert code == 0, output
    setup = ["scp", "describe", "scp", "setup ''", "describe", "scp", "setup ''"]
    assert cloud.calls[3:] == [*setup, "start", "describe", "start", "follow"]
    assert len(cloud.runs) == 2


def test_repeated_failures_end_the_script(cloud):
    cloud.plan(scp=["refused"] * 9)
    code, output = cloud.run()
    assert code == 255
    assert cloud.calls.count("scp") == 5 and "cannot be set up" in output
    assert "tpu still exists, and costs money" in output

    (cloud.root / "calls").unlink()
    cloud.plan(api=["ERROR: (gcloud) PERMISSION_DENIED"] * 9)
    code, output = cloud.run()
    assert code == 1 and "PERMISSION_DENIED" in output
    assert cloud.calls == ["describe"] * 5

    (cloud.root / "calls").unlink()
    cloud.plan(api=["ERROR: connection reset"] * 2)
    cloud.end(0)
    assert cloud.run()[0] == 0
    assert cloud.calls == ["describe"] * 3 + SETUP


def test_a_new_slice_that_cannot_be_used_is_deleted_if_asked(cloud):
    delete = ("--type", "v5litepod-8", "--delete")
    cloud.plan(scp=["refused"] * 5)
    code, output = cloud.run(options=delete)
    assert code == 255 and "cannot be set up" in output
    assert cloud.calls[-1] == "delete" and not (cloud.root / "resource.json").exists()

    # A slice that existed before may be used by another run.
    (cloud.root / "resource.json").write_text('["ACTIVE"]')
    cloud.plan(scp=["refused"] * 5)
    code, output = cloud.run(options=delete)
    assert code == 255 and "tpu still exists, and costs money" in output
    assert cloud.calls[-1] == "describe"


def test_a_run_is_not_followed_after_a_restart_of_its_host(tmp_path):
    """Use this test's process ID: after a restart, an ID may belong to another process."""
    run = tmp_path / "bert_jax_run"
    run.mkdir()
    for name, content in (("id", "1"), ("pid", os.getpid()), ("log", "step 3")):
        (run / name).write_text(f"{content}\n")
    done = subprocess.run(
        ["bash", REPOSITORY / "launch/cloud_tpu_host.sh", "follow", "1"],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (137, "step 3\n")
    assert "the run was killed" in done.stderr


def test_the_number_of_failed_requests_is_limited(cloud):
    cloud.plan(states=[["PROVISIONING", "FAILED"]] * 9)
    code, output = cloud.run(options=("--type", "v5litepod-8", "--restarts", "2"))
    assert code == 1 and "stopping after 2 restarts" in output
    failed = ["create", "describe", "describe", "delete", "describe"]
    assert cloud.calls == ["describe", *failed * 3]


def test_a_failed_run_is_not_repeated(cloud):
    cloud.end(2)
    code, output = cloud.run()
    assert code == 2, output
    assert cloud.calls == ["describe", "create", "describe", *SETUP, *["describe"] * 4]


def test_a_stopped_run_is_resumed_on_the_same_slice(cloud):
    process = cloud.start()
    cloud.wait_until_running()
    for index in (0, 1):
        (cloud.root / f"host-{index}/began").unlink()
        pid = int((cloud.root / f"host-{index}/bert_jax_run/pid").read_text())
        os.kill(pid, signal.SIGTERM)
    cloud.wait_until_running()
    cloud.end(0)
    code, output = cloud.finish(process)
    assert code == 0, output
    assert cloud.calls == ["describe", "create", "describe", *SETUP, *["describe"] * 5, *SETUP]
    assert "stopped with code 143; restart 1 of" in output and "saved" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_script_leaves_the_run_alone(cloud, interrupts_enabled, number):
    process = cloud.start()
    cloud.wait_for_output("running on host-0")
    cloud.wait_for_output("running on host-1")
    process.send_signal(number)
    code, output = cloud.finish(process)
    assert code == 130, output
    assert "the run continues on tpu" in output and "delete" not in cloud.calls

    # The same command follows the run again. A different command is refused.
    code, output = cloud.run("pretrain", "--config", "other")
    assert (code, "another run is in progress" in output) == (3, True), output
    process = cloud.start()
    cloud.wait_for_output("running on host-1")
    cloud.end(0)
    code, output = cloud.finish(process)
    assert code == 0, output
    assert len(cloud.runs) == 2 and "running on host-0" in output


def test_ctrl_c_saves_and_deletes_if_asked(cloud, interrupts_enabled):
    process = cloud.start(options=("--type", "v5litepod-8", "--delete"))
    cloud.wait_for_output("running on host-0")
    cloud.wait_for_output("running on host-1")
    process.send_signal(signal.SIGINT)
    code, output = cloud.finish(process)
    assert code == 130, output
    assert cloud.calls[-2:] == ["stop", "delete"]
    assert not (cloud.root / "resource.json").exists()


def test_mistakes_are_refused_before_anything_is_requested(cloud):
    for options in (("--restarts", "many"), ("--spot",)):
        code, output = cloud.run(options=options)
        assert code == 2, output
    code, output = cloud.run(options=("--help",))
    assert code == 0 and "--restarts N" in output and "set -uo" not in output
    assert not (cloud.root / "calls").exists()
    code, output = cloud.run(options=())
    assert code == 2 and "add --type" in output
    assert cloud.calls == ["describe"]
    shutil.rmtree(cloud.checkout / ".git")
    code, output = cloud.run()
    assert code == 2 and "git checkout" in output
    assert cloud.calls == ["describe"]


class FakeApi(BaseHTTPRequestHandler):
    """A server that handles the requests of the real gcloud as the Cloud TPU API does."""

    exists = False

    def do_GET(self) -> None:
        if self.path.partition("?")[0].endswith("/queuedResources/tpu") and self.exists:
            self.answer(200, {"name": "tpu", "state": {"state": "ACTIVE"}})
        elif "/operations/" in self.path:
            self.answer(200, {"name": "projects/p/locations/z1/operations/o", "done": True})
        else:
            error = {"code": 404, "message": "Resource was not found", "status": "NOT_FOUND"}
            self.answer(404, {"error": error})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).created = body
        type(self).exists = True
        self.answer(200, {"name": "projects/p/locations/z1/operations/o"})

    def do_DELETE(self) -> None:
        assert "force=True" in self.path
        type(self).exists = False
        self.answer(200, {"name": "projects/p/locations/z1/operations/o"})

    def answer(self, code: int, body: dict[str, Any]) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.skipif(not shutil.which("gcloud"), reason="needs gcloud")
def test_the_real_gcloud_accepts_the_same_calls(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeApi)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "token").write_text("secret")
    environment = os.environ | {
        "CLOUDSDK_CONFIG": str(tmp_path / "config"),
        "CLOUDSDK_CORE_PROJECT": "p",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU": f"http://127.0.0.1:{server.server_port}/",
        "no_proxy": "127.0.0.1",
    }

    def gcloud(words: str) -> subprocess.CompletedProcess[str]:
        command = ["gcloud", "compute", "tpus", *words.split(" ")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    try:
        missing = gcloud(DESCRIBE)
        assert missing.returncode == 1 and "NOT_FOUND" in missing.stderr
        created = gcloud(CREATE)
        assert created.returncode == 0, created.stderr
        (spec,) = FakeApi.created["tpu"]["nodeSpec"]
        assert spec["nodeId"] == "tpu" and "spot" in FakeApi.created
        assert spec["node"]["acceleratorType"] == "v5litepod-8"
        assert spec["node"]["runtimeVersion"] == "v2-alpha-tpuv5-lite"
        assert gcloud(DESCRIBE).stdout == "ACTIVE\n"
        # There is no slice, but the options are checked before it is looked up.
        scp = "tpu-vm scp token tpu: --zone=z1 --quiet --worker=all"
        for words in (SSH.replace("--command=bash cloud_tpu_host.sh ", "--command=ls"), scp):
            assert "NOT_FOUND" in gcloud(words).stderr
        deleted = gcloud(DELETE)
        assert deleted.returncode == 0, deleted.stderr
    finally:
        server.shutdown()
        server.server_close()
