"""Run `bert-jax` in subprocesses, wait for them and collect their output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# A program that runs multiple commands in one process, without drawing training curves.
RUN_ALL = """
import json, sys
from bert_jax.cli.main import main
from bert_jax.training import reporting
reporting.draw_curves = lambda *_, **__: None
for words in json.loads(sys.argv[1]):
    if code := main(words):
        sys.exit(code)
"""
# The number of seconds after which a process is considered to be stuck. The slowest commands take a
# minute or two.
TIMEOUT = 600


def xla_flags(devices: int) -> str:
    """Return XLA flags that set the number of CPU devices and make compilation fast.

    Compilation takes less than half the usual time. The compiled programs are slower, which does
    not matter for such small tests. By default, XLA splits code generation into parts, but this
    takes 10% longer when every core runs its own test, so it is disabled here.
    """
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    # Set the flag only for this version, since XLA exits on unknown flags.
    if version("jaxlib").startswith("0.10."):
        flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    return flags


@dataclass(frozen=True)
class Finished:
    """The exit code and output of a command that has ended."""

    code: int
    output: str
    errors: str


class Command:
    """An object that runs `bert-jax` on CPU devices, with the tests' own Python interpreter.

    Args:
      cache: the directory for the compilation cache, which all commands share.
      seconds: the minimum compilation time. Programs that compile faster are not cached.
    """

    def __init__(self, cache: Path, *, seconds: float = 0.1):
        self._cache = cache
        self._seconds = seconds

    def environment(self, *, devices: int = 1, killed: bool = False) -> dict[str, str]:
        """Return the environment variables for a process.

        Args:
          devices: the number of CPU devices.
          killed: whether the process is going to be killed. If so, it only reads from the
            compilation cache: JAX writes entries in place, and a half-written entry would break
            later commands.
        """
        return {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self._cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9" if killed else str(self._seconds),
            "XLA_FLAGS": xla_flags(devices),
            "PYTHON": sys.executable,
            # Processes that try to reach each other through a proxy would wait forever.
            "no_proxy": "127.0.0.1,localhost",
            "PYTHONFAULTHANDLER": "1",
        }

    def start(
        self, *words: str | Path, devices: int = 1, killed: bool = False, launcher: int = 0
    ) -> subprocess.Popen[str]:
        """Start a command in its own session.

        Args:
          words: the arguments for `bert-jax`.
          devices, killed: see `environment`.
          launcher: the number of processes to start with `launch/local.sh`, or 0 to start a single
            process without it.
        """
        program = [sys.executable, "-m", "bert_jax.cli.main"]
        if launcher:
            program = [str(REPOSITORY / "launch/local.sh"), str(launcher)]
        return self._open(
            [*program, *map(str, words)], self.environment(devices=devices, killed=killed)
        )

    def _open(self, words: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            start_new_session=True,
        )

    def wait_for(self, process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, and fail if the command ends first."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert process.poll() is None, "".join(process.communicate())
            assert time.monotonic() < deadline, self._aborted(process)
            time.sleep(0.001)

    def finish(self, process: subprocess.Popen[str]) -> Finished:
        """Wait for a command to end."""
        try:
            output, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._aborted(process)) from None
        return Finished(process.returncode, output, errors)

    def __call__(
        self, *words: str | Path, devices: int = 1, launcher: int = 0, code: int = 0
    ) -> Finished:
        """Run a command and check its exit code."""
        finished = self.finish(self.start(*words, devices=devices, launcher=launcher))
        assert finished.code == code, finished.output + finished.errors
        return finished

    def run_all(self, commands: Sequence[Sequence[str | Path]]) -> None:
        """Run commands one after another in one process, and check that they all succeed."""
        words = json.dumps([[str(word) for word in command] for command in commands])
        program = [sys.executable, "-c", RUN_ALL, words]
        finished = self.finish(self._open(program, self.environment()))
        assert finished.code == 0, finished.output + finished.errors

    def _aborted(self, process: subprocess.Popen[str]) -> str:
        """Abort a hanging command, and return its output with a traceback for each thread."""
        for process_id in _processes_of_session(process.pid):
            os.kill(process_id, signal.SIGABRT)
        try:
            output, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
        return f"timed out after {TIMEOUT} s:\n{output}{errors}"


def _processes_of_session(leader: int) -> Iterator[int]:
    """Yield the IDs of the processes in a session that run `bert-jax`, if /proc exists."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            words = (stat.parent / "cmdline").read_bytes()
        except OSError:  # The process has just ended.
            continue
        if session == leader and b"bert_jax.cli.main" in words:
            yield int(stat.parent.name)
