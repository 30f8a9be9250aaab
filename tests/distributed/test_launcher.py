"""launch/local.sh itself, with processes that only play their parts."""

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

# In the interpreter's place: finds the port as it would, and plays a verb made of shell words.
ACTOR = """#!/bin/sh
[ "$1" = -c ] && exec "{python}" "$@"
[ "$1 $2" = "-m bert_jax.cli.main" ] || exit 99
eval "$3"
"""


@pytest.fixture
def launch(tmp_path):
    """Starts processes that run some shell words."""
    actor = tmp_path / "python"
    actor.write_text(ACTOR.format(python=sys.executable))
    actor.chmod(0o755)

    def start(count: int | str, *words: str) -> subprocess.Popen[str]:
        # A suite run in the background ignores SIGINT; a shell that inherits this cannot trap it.
        heed = "import os, signal as s, sys; s.signal(s.SIGINT, s.SIG_DFL); "
        heed += "os.execv(sys.argv[1], sys.argv[1:])"
        return subprocess.Popen(
            [sys.executable, "-c", heed, str(LAUNCHER), str(count), *words],
            env={**os.environ, "PYTHON": str(actor), "GRACE": "1", "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def end(launcher: subprocess.Popen[str]) -> tuple[int, list[str], list[str]]:
    output, errors = launcher.communicate(timeout=TIMEOUT)
    return launcher.returncode, sorted(output.splitlines()), sorted(errors.splitlines())


def test_processes_know_each_other_and_lines_their_process(launch):
    words = (
        'echo "$JAX_PROCESS_ID of $JAX_NUM_PROCESSES at $JAX_COORDINATOR_ADDRESS"; printf end >&2'
    )
    code, output, errors = end(launch(3, words))
    assert code == 0
    assert errors == ["[0] end", "[1] end", "[2] end"]
    address = output[0].rpartition(" ")[2]
    assert address.startswith("127.0.0.1:")
    assert output == [f"[{i}] {i} of 3 at {address}" for i in range(3)]


def test_when_one_fails_the_others_are_ended_and_its_exit_code_is_that_of_all(launch):
    words = """
    case $JAX_PROCESS_ID in
      0) trap "echo asked; exit 143" TERM;;  # ends when asked
      1) trap "" TERM;;                      # does not
      2) sleep 2; exit 7;;                   # when the others have their traps
    esac
    while :; do sleep 0.1; done
    """
    began = time.monotonic()
    code, output, _ = end(launch(3, words))
    assert code == 7
    assert output == ["[0] asked"]
    assert time.monotonic() - began < 15


def test_one_that_finishes_leaves_the_others_alone(launch):
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
def test_nonsense_is_refused(launch, words):
    code, _, errors = end(launch(*words))
    assert code == 2
    assert errors[0].startswith("usage: launch/local.sh N VERB")
