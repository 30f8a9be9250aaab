"""Define the phases of a run, and how often it reports, evaluates and saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from bert_jax.training.diagnosis import Diagnose
from bert_jax.training.evaluation import Evaluate
from bert_jax.training.step import TrainStep

HostBatch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Phase:
    """A part of a run that uses one kind of batch.

    Attributes:
      name: the phase's name.
      first_step: the phase's first step, counted from the start of the run.
      num_steps: the number of steps in the phase.
      batch_size: the number of rows per batch, over all processes.
      train_step: the compiled train step.
      batches: takes a step within the phase, and returns a context manager for an iterator over
        this process's rows of each batch from that step on. The context ends with the phase.
      evaluate: computes held-out metrics for the given parameters; the metrics are the same on
        every process. After every batch, it calls its second argument, which may raise an exception
        to end the evaluation. If None, the phase is not evaluated.
      flops: returns the number of model FLOPs in a step on a given batch.
      diagnose: returns a description of where the values of a step are not finite; None if this is
        not checked.
    """

    name: str
    first_step: int
    num_steps: int
    batch_size: int
    train_step: TrainStep
    batches: Callable[[int], AbstractContextManager[Iterator[HostBatch]]]
    evaluate: Evaluate | None
    flops: Callable[[HostBatch], float]
    diagnose: Diagnose | None = None

    @property
    def end(self) -> int:
        """The first step after this phase, counted from the start of the run."""
        return self.first_step + self.num_steps


@dataclass(frozen=True)
class Intervals:
    """How often a run reports, evaluates and saves.

    Attributes:
      report: the number of steps between reports.
      evaluate: the number of steps between evaluations; 0 disables them. The last step is evaluated
        too. If the number is a fraction, its multiples are rounded to the nearest step (halves are
        rounded up). Evaluations therefore do not drift, and the last evaluation in an epoch is at
        the end of the epoch.
      save: the number of steps between checkpoints.
      save_evaluated: whether every evaluated state is saved too, since it may be the best.
    """

    report: int
    evaluate: int | Fraction
    save: int
    save_evaluated: bool = False

    def evaluates(self, step: int) -> bool:
        """Return whether an evaluation is due after `step` steps."""
        if not self.evaluate:
            return False
        half = Fraction(1, 2)
        return math.ceil((step + half) / self.evaluate) > math.ceil((step - half) / self.evaluate)
