"""Log a run to MLflow."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, assert_never

from bert_jax.goodput.entries import EndState
from bert_jax.tracking.tracker import DEFAULT_PROJECT, TrackedRun

_MAX_PARAMS = 100  # parameters per request
_MAX_PARAM_LENGTH = 6000


class MlflowTracker:
    """A run in MLflow, configured by MLflow's environment variables, such as MLFLOW_TRACKING_URI.

    The config becomes the parameters of the tracked run. MLflow does not let parameters change, so
    if a key has changed when the run resumes, its new value is recorded as a tag.
    """

    def __init__(self, tracked: TrackedRun) -> None:
        from mlflow import MlflowClient

        self._client: Any = MlflowClient()
        self._id = self._open(tracked)

    @property
    def tracked_id(self) -> str:
        """The ID of the tracked run."""
        return self._id

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics of a step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, state: EndState) -> None:
        """Record how the run ended."""
        match state:
            case "finished":
                self._client.set_terminated(self._id, "FINISHED")
            case "stopped":
                self._client.set_terminated(self._id, "KILLED")
            case "failed":
                self._client.set_terminated(self._id, "FAILED")
            case _:
                assert_never(state)

    def _open(self, tracked: TrackedRun) -> str:
        from mlflow.entities import Param

        config = {
            key: str(value)[:_MAX_PARAM_LENGTH] for key, value in tracked.flat_config().items()
        }
        if tracked.tracked_id is not None:
            former = self._client.get_run(tracked.tracked_id).data.params
            self._client.update_run(tracked.tracked_id, status="RUNNING")
            for key, value in config.items():
                if former.get(key) != value:
                    self._client.set_tag(tracked.tracked_id, f"changed.{key}", value)
            return tracked.tracked_id
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_PROJECT
        experiment = self._client.get_experiment_by_name(name)
        number = (
            self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        )
        new = str(self._client.create_run(number, run_name=tracked.name).info.run_id)
        params = [Param(key, value) for key, value in config.items()]
        for first in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(new, params=params[first : first + _MAX_PARAMS])
        return new
