"""Test launch/local.sh with fake `bert-jax` processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..commands import TIMEOUT

LAUNCHER = Path(__file__).resolve().parents[2] / "launch/local.sh"

# This script replaces the Python interpreter. It finds a port as the real interpreter would, but
# runs the verb as a shell script.
FAKE_PYTHON = """#!/bin/sh
[ "$1" = -c ] && exec "{python}" "$@"
[ "$1 $2" = "-m bert_jax.cli.main" ] || exit 99
eval "$3"
"""


@pytest.fixture
def launch(tmp_path):
    """Return a function that launches processes to run a shell script."""
    fake_python = tmp_path / "python"
    fake_python.write_text(FAKE_PYTHON.format(python=sys.executable))
    fake_python.chmod(0o755)

    def start(count: int | str, *words: str) -> subprocess.Popen[str]:
        # A test suite that runs in the background ignores SIGINT, and a shell cannot trap a signal
        # that was already ignored when it started.
        enable_sigint = "import os, signal as s, sys; s.signal(s.SIGINT, s.SIG_DFL); "
        enable_sigint += "os.execv(sys.argv[1], sys.argv[1:])"
        return subprocess.Popen(
            [sys.executable, "-c", enable_sigint, str(LAUNCHER), str(count), *words],
            env={**os.environ, "PYTHON": str(fake_python), "GRACE": "1", "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def end(launcher: subprocess.Popen[str]) -> tuple[int, list[str], list[str]]:
    output, errors = launcher.communicate(timeout=TIMEOUT)
    return launcher.returncode, sorted(output.splitlines()), sorted(errors.splitlines())


def test_processes_get_their_numbers_and_prefix_their_lines(launch):
    words = (
        'echo "$JAX_PROCESS_ID of $JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS"; printf end >&2'
    )
    code, output, errors = end(launch(3, words))
    assert code == 0
    assert errors == ["[0] end", "[1] end", "[2] end"]
    address = output[0].rpartition(" ")[2]
    assert address.startswith("127.0.0.1:")
    assert output == [f"[{i}] {i} of 3 at {address}" for i in range(3)]


def test_a_failed_process_ends_the_others_and_determines_the_exit_code(launch):
    words = """
    case $JAX_PROCESS_ID in
      0) trap "echo asked; exit 143" TERM;;  # ends on SIGTERM
      1) trap "" TERM;;                      # ignores it
      2) sleep 2; exit 7;;                   # after the others set their traps
    esac
    while :; do sleep 0.1; done
    """
    start = time.monotonic()
    code, output, _ = end(launch(3, words))
    assert code == 7
    assert output == ["[0] asked"]
    assert time.monotonic() - start < 15


def test_a_finished_process_does_not_end_the_others(launch):
    code, output, _ = end(launch(2, "[ $JAX_PROCESS_ID = 0 ] || sleep 2; echo done"))
    assert (code, output) == (0, ["[0] done", "[1] done"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_reach_every_process(launch, number, code):
    words = 'trap "echo TERM; exit 143" TERM; trap "echo INT; exit 130" INT; echo ready; '
    launcher = launch(2, words + "while :; do sleep 0.1; done")
    for _ in range(2):
        assert launcher.stdout.readline().endswith("ready\n")
    launcher.send_signal(number)
    name = number.name.removeprefix("SIG")
    assert end(launcher)[:2] == (code, [f"[0] {name}", f"[1] {name}"])


@pytest.mark.parametrize("words", [["0", "true"], ["two", "true"], ["2"]])
def test_wrong_arguments_are_refused(launch, words):
    code, _, errors = end(launch(*words))
    assert code == 2
    assert errors[0].startswith("usage: launch/local.sh N VERB")
