"""Starts `bert-jax` in processes of its own, waits for them, and tells of what they said."""

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
# What a process does that runs several commands, without pictures of their curves.
IN_TURN = """
import json, sys
from bert_jax.cli.main import main
from bert_jax.training import reporting
reporting.draw_curves = lambda *_, **__: None
for words in json.loads(sys.argv[1]):
    if code := main(words):
        sys.exit(code)
"""
# A process that has not got there by then hangs: the slowest take a minute or two.
HANGS = 600


def xla_flags(devices: int) -> str:
    """So many devices of the CPU, and programs compiled in less than half of the time.

    They run slower, which tests of this size never notice. Code is made in one part: several,
    the default, take 10 % longer where every core has a test of its own.
    """
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    if version("jaxlib").startswith("0.10."):  # one that does not know a flag ends the process
        flags += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
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

    def in_turn(self, commands: Sequence[Sequence[str | Path]]) -> None:
        """Runs commands one after another in one process until one fails, which none may."""
        words = json.dumps([[str(word) for word in command] for command in commands])
        program = [sys.executable, "-c", IN_TURN, words]
        finished = self.finish(self._open(program, self.environment()))
        assert finished.code == 0, finished.output + finished.errors

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
