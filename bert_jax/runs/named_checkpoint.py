"""Give models short names derived from their paths, and identify their checkpoints by step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.local_paths import shown
from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.runs.model_location import local_model
from bert_jax.storage.locations import absolute
from bert_jax.storage.urls import parse_location


@dataclass(frozen=True)
class NamedCheckpoint:
    """A checkpoint with a short name for its model, printed as the name and the step.

    Attributes:
      model: the model's name, which consists of the last few parts of its path.
      work_dir: the absolute path or the URL of the model's work directory.
      step: the checkpoint's step.
    """

    model: str
    work_dir: str
    step: int

    def __str__(self) -> str:
        return f"{self.model}, step {self.step:,}"

    def to_json(self) -> dict[str, str | int]:
        """Return the path and the step as plain JSON values."""
        return {"work_dir": self.work_dir, "step": self.step}


def name_checkpoints(
    work_dirs: Sequence[str | os.PathLike[str]], steps: Sequence[int | None]
) -> list[NamedCheckpoint]:
    """Return the checkpoints with names that distinguish their models from each other.

    Args:
      work_dirs: the work directory of each checkpoint.
      steps: the step of each checkpoint; None for the default checkpoint.

    Raises:
      ValueError: a directory is not a work directory, or has no complete checkpoint.
    """
    numbers = [
        default_checkpoint_step(local_model(work_dir)) if step is None else step
        for work_dir, step in zip(work_dirs, steps, strict=True)
    ]
    paths = list(map(absolute_name, work_dirs))
    return list(map(NamedCheckpoint, shortest_names(paths), paths, numbers))


def absolute_name(work_dir: str | os.PathLike[str]) -> str:
    """Return the URL of a directory in a bucket, and the absolute path of any other directory."""
    return absolute(parse_location(shown(work_dir)))


def shortest_names(paths: Sequence[str]) -> list[str]:
    """Return the last few parts of each path, just enough to distinguish it from the others.

    >>> shortest_names(["runs/a/best", "runs/b/best", "base"])
    ['a/best', 'b/best', 'base']
    """
    parts = [Path(path).parts or (path,) for path in paths]
    names = []
    for own in parts:
        others = [other for other in parts if other != own]
        length = next(
            (n for n in range(1, len(own)) if all(own[-n:] != other[-n:] for other in others)),
            len(own),
        )
        names.append(str(Path(*own[-length:])))
    return names
