"""Test what is saved, printed and returned when data workers are killed or hang."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..commands import TIMEOUT, Finished

BEYOND = 100_000  # No run in this file reaches this many steps.


def disturb(work_dir: Path, done: threading.Event, *, kill: bool) -> None:
    """Kill the run's worker after a few steps, or pause it and then ask the run to stop."""
    log = work_dir / "metrics.jsonl"
    deadline = time.monotonic() + TIMEOUT
    while not (log.exists() and '"step": 4,' in log.read_text()):
        if done.wait(0.05) or time.monotonic() > deadline:
            return
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL if kill else signal.SIGSTOP)
    # Wait until the run is blocked on a batch; a run that is not blocked would stop in any case.
    if not kill and not done.wait(2):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize(("kill", "code"), [(True, 2), (False, 143)], ids=["killed", "hangs"])
def test_a_failing_worker_loses_no_step(
    bert_jax_here: Callable[..., Finished],
    tiny_config: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kill: bool,
    code: int,
) -> None:
    work_dir, done = tmp_path / "run", threading.Event()
    words = [
        *("pretrain", "--config", tiny_config, f"--config.work_dir={work_dir}"),
        *("--config.loader.num_workers=1", "--config.loader.prefetch=1"),
        *(
            f"--config.phases.phase1.num_steps={BEYOND}",
            f"--config.checkpoint.every_steps={BEYOND}",
        ),
        f"--config.evaluation.every_steps={BEYOND}",
    ]
    disturbing = threading.Thread(target=disturb, args=(work_dir, done), kwargs={"kill": kill})
    disturbing.start()
    try:
        finished = bert_jax_here(*words)
    finally:
        done.set()
        disturbing.join()
    assert finished.code == code, finished.errors
    if kill:
        assert "bert-jax: error: data worker 1 of 1 was killed by SIGKILL, " in finished.errors
    saved = re.search(r"saved step ([\d,]+)", finished.output + caplog.text)
    assert saved is not None
    step = saved[1].replace(",", "")
    assert [path.name for path in (work_dir / "checkpoints").glob("[0-9]*")] == [step]
    assert f'"step": {step},' in (work_dir / "metrics.jsonl").read_text()
    assert not multiprocessing.active_children()
