"""Verify the checkpoints in a work directory against their checksums."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from bert_jax.local_paths import naming_urls
from bert_jax.runs.checkpoints import checkpoints_at
from bert_jax.training.checkpoint_checksums import REMOVED, verify


class VerifiedStep(NamedTuple):
    """The result of verifying one checkpoint.

    Attributes:
      line: a line that describes the result.
      is_damaged: whether the checkpoint is damaged.
    """

    line: str
    is_damaged: bool


def verify_steps(path: str | os.PathLike[str], step: int | None = None) -> Iterator[VerifiedStep]:
    """Verify checkpoints one after the other.

    Args:
      path: a work directory, its checkpoints directory, or a single checkpoint in it.
      step: the only step to verify; if None, all steps are verified.

    Raises:
      ValueError: there is no checkpoint, or none at this step.
    """
    with naming_urls():
        directory, steps = checkpoints_at(path, step)
    width = len(f"{steps[-1]:,}")
    for number in steps:
        outcome = verify(directory, number)
        damaged = outcome.problem not in (None, REMOVED)
        yield VerifiedStep(f"step {number:>{width},}  {outcome}", damaged)
