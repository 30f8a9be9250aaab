"""Log a run to Weights & Biases."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, assert_never

from bert_jax.goodput.entries import EndState
from bert_jax.tracking.tracker import DEFAULT_PROJECT, TrackedRun


class WandbTracker:
    """A run in Weights & Biases, configured by environment variables such as WANDB_MODE.

    A resumed run logs the steps after its checkpoint again. However, the service accepts rows only
    in ascending order of their step numbers, even when it merges files that several starts wrote
    offline. Therefore, a row's step number is the time at which it is logged. The optimizer step is
    logged as a metric, which the charts use as their x-axis.
    """

    def __init__(self, tracked: TrackedRun) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
            name=os.environ.get("WANDB_NAME") or tracked.name,
            id=tracked.tracked_id,
            resume="allow",
            dir=os.environ.get("WANDB_DIR") or str(tracked.work_dir),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.config.update(dict(tracked.config), allow_val_change=True)
        self._row = 0
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    @property
    def tracked_id(self) -> str:
        """The ID of the tracked run."""
        return str(self._run.id)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics of a step."""
        self._row = max(self._row + 1, int(time.time() * 1000))
        self._run.log({**values, "step": step}, step=self._row)

    def finish(self, state: EndState) -> None:
        """Send everything, and record how the run ended."""
        match state:
            case "finished":
                self._run.finish()
            case "stopped":
                self._run.mark_preempting()
                self._run.finish(exit_code=1)
            case "failed":
                self._run.finish(exit_code=1)
            case _:
                assert_never(state)
