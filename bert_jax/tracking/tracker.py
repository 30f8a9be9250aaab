"""Define the interface of a tracking service."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from bert_jax.files import write_file
from bert_jax.goodput.entries import EndState
from bert_jax.json_files import read_json_object

TrackerName = Literal["wandb", "mlflow"]

# This file in a work directory contains the IDs of the tracked runs.
TRACKERS_NAME = "trackers.json"
DEFAULT_PROJECT = "bert_jax"
_WRITING = threading.Lock()


@dataclass(frozen=True)
class TrackedRun:
    """A run to be tracked.

    Attributes:
      work_dir: the run's work directory, whose name becomes the name of the tracked run.
      config: the run's config as plain JSON values.
      tracked_id: the ID of the tracked run that an earlier start created; None for a new one.
    """

    work_dir: Path
    config: Mapping[str, Any]
    tracked_id: str | None

    @property
    def name(self) -> str:
        """The name to display."""
        return self.work_dir.resolve().name

    def flat_config(self) -> dict[str, Any]:
        """Return the config as a dict from dotted key to value."""
        return dict(_flat(self.config, ""))


def _flat(values: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat += _flat(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat


class Tracker(Protocol):
    """A connection to a tracking service. All methods may raise any exception."""

    @property
    def tracked_id(self) -> str:
        """The ID of the tracked run."""
        ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log a step's metrics, which are finite. A resumed run may log the same step again."""
        ...

    def finish(self, state: EndState) -> None:
        """Send everything, and record how the run ended."""
        ...


def read_tracked_ids(work_dir: Path) -> dict[str, str]:
    """Return a dict from the name of a tracker to the ID of the tracked run.

    Raises:
      ValueError: the file is damaged.
    """
    file = work_dir / TRACKERS_NAME
    if not file.is_file():
        return {}
    ids = read_json_object(file, "Remove it to create new tracked runs")
    if not all(isinstance(value, str) for value in ids.values()):
        raise ValueError(
            f"{file}: expected a dict of strings. Remove it to create new tracked runs."
        )
    return ids


def write_tracked_id(work_dir: Path, name: TrackerName, tracked_id: str) -> None:
    """Remember the ID of a tracked run for later starts."""
    with _WRITING:  # Each tracker has its own thread.
        ids = {**read_tracked_ids(work_dir), name: tracked_id}
        write_file(work_dir / TRACKERS_NAME, json.dumps(ids, indent=1) + "\n")
