"""Starts `bert-jax` in processes of its own, waits for them, and tells of what they said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# A process that has not got there by then hangs: the slowest here takes a minute of a busy machine.
HANGS = 600


def xla_flags(devices: int) -> str:
    """So many devices of the CPU, and programs compiled in less than half of the time.

    They run slower, which tests of this size never notice.
    """
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    if version("jaxlib").startswith("0.10."):  # one that does not know a flag ends the process
        flags += " --xla_cpu_use_fusion_emitters=false"
    return flags


@dataclass(frozen=True)
class Finished:
    """A command that has ended: its exit code and what it wrote."""

    code: int
    output: str
    errors: str


class Command:
    """Starts `bert-jax` with the interpreter of the tests, on devices of the CPU.

    Compiled programs are kept for the session, those that took `seconds` or more. A run that is
    to be killed only reads them: JAX writes an entry in place, and half a one would break the runs
    after it.
    """

    def __init__(self, cache: Path, *, seconds: float = 0.1):
        self._cache = cache
        self._seconds = seconds

    def environment(self, *, devices: int = 1, killed: bool = False) -> dict[str, str]:
        """What the process finds in its environment."""
        return {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self._cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9" if killed else str(self._seconds),
            "XLA_FLAGS": xla_flags(devices),
            "PYTHON": sys.executable,
            # Processes that look for each other through a proxy would wait for ever.
            "no_proxy": "127.0.0.1,localhost",
            "PYTHONFAULTHANDLER": "1",
        }

    def start(
        self, *words: str | Path, devices: int = 1, killed: bool = False, launcher: int = 0
    ) -> subprocess.Popen[str]:
        """Starts a command in a session of its own; with `launcher`, that many processes of it."""
        program = [sys.executable, "-m", "bert_jax.cli.main"]
        if launcher:
            program = [str(REPOSITORY / "launch/local.sh"), str(launcher)]
        return subprocess.Popen(
            [*program, *map(str, words)],
            env=self.environment(devices=devices, killed=killed),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            start_new_session=True,
        )

    def wait_for(self, process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
        """Waits until something has happened, which the command has to be alive for."""
        deadline = time.monotonic() + HANGS
        while not happened():
            assert process.poll() is None, "".join(process.communicate())
            assert time.monotonic() < deadline, self._aborted(process)
            time.sleep(0.001)

    def finish(self, process: subprocess.Popen[str]) -> Finished:
        """Waits for the end of a command."""
        try:
            output, errors = process.communicate(timeout=HANGS)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._aborted(process)) from None
        return Finished(process.returncode, output, errors)

    def __call__(
        self, *words: str | Path, devices: int = 1, launcher: int = 0, code: int = 0
    ) -> Finished:
        """Runs a command to its end, which must have this exit code."""
        finished = self.finish(self.start(*words, devices=devices, launcher=launcher))
        assert finished.code == code, finished.output + finished.errors
        return finished

    def _aborted(self, process: subprocess.Popen[str]) -> str:
        """Ends a command that hangs, and what it says: where each of its threads was, among it."""
        for each in _of_session(process.pid):
            os.kill(each, signal.SIGABRT)
        try:
            output, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
        return f"hangs for {HANGS} s:\n{output}{errors}"


def _of_session(leader: int) -> Iterator[int]:
    """Yields the processes of a session that run our command, where /proc lists them."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(stat.read_text().rpartition(")")[2].split()[3])
            words = (stat.parent / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if session == leader and b"bert_jax.cli.main" in words:
            yield int(stat.parent.name)
