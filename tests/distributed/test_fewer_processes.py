"""Test that a run of eight processes, one of which is killed, is resumed by four processes."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest

from .conftest import STEPS
from .test_processes import process_of, reported

pytestmark = pytest.mark.slow


@pytest.mark.skipif(sys.platform != "linux", reason="this test finds processes through /proc")
def test_four_processes_resume_the_run_of_eight_after_one_was_killed(
    bert_jax, short_run, one_device, assert_same_history, tmp_path
):
    words = short_run(tmp_path)
    launcher = bert_jax.start(*words, launcher=8, killed=True)
    bert_jax.wait_for(launcher, lambda: reported(6, tmp_path))
    os.kill(process_of(launcher, 5), signal.SIGKILL)
    killed = bert_jax.finish(launcher)
    # The launcher returns the code of the process that ended first.
    assert killed.code == 128 + signal.SIGKILL, killed.errors
    assert "[0] devices    8 x cpu (8 data)" in killed.output
    assert f"step {STEPS}/" not in killed.output
    assert "run the same command again on all processes" in killed.errors

    finished = bert_jax(*words, launcher=4)
    assert "[0] devices    4 x cpu (4 data)" in finished.output
    assert re.search(r"\[0\] start      this run's checkpoint at step [48]\n", finished.output)
    assert_same_history(tmp_path, one_device)
