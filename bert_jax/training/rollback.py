"""Go back to an earlier state of a run that has diverged, and skip the batches since then."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import RollbackTargets
from bert_jax.training.divergence import DivergenceConfig, Guard, guard_of, with_guard
from bert_jax.training.evaluation import ADVICE, TrainingDiverged
from bert_jax.training.no_checkpoints import NoCheckpoints
from bert_jax.training.reports import DivergenceReport
from bert_jax.training.state import TrainState
from bert_jax.training.step_outcome import Diverged


@dataclass(frozen=True)
class Recovery:
    """The means to go back to an earlier state.

    Attributes:
      config: when to skip steps and how often to go back.
      checkpointer: the run's checkpoints, if it has any.
      abstract: the shapes, dtypes and shardings of the state.
      initial: returns the state in which a run without checkpoints starts.
    """

    config: DivergenceConfig
    checkpointer: Checkpointer | NoCheckpoints
    abstract: TrainState
    initial: Callable[[], TrainState]

    def targets(self, state: TrainState) -> RollbackTargets | None:
        """Return the checkpoints to which the run might roll back if it now diverged.

        The result is None if the run never rolls back.
        """
        guard = guard_of(state)
        if guard is None or not self.config.max_rollbacks:
            return None
        return self._targets(guard, int(state.step) - int(guard.outliers))

    def _targets(self, guard: Guard, first: int) -> RollbackTargets:
        begin, end = (int(x) for x in jax.device_get(guard.discarded))
        return RollbackTargets(first - self.config.margin_steps, range(begin, end))

    def roll_back(
        self, state: TrainState, diverged: Diverged, details: str = ""
    ) -> tuple[TrainState, DivergenceReport]:
        """Return the state to continue with, whose step comes after the last bad batch.

        All processes must call this together.

        Args:
          state: the diverged state, whose buffers are freed.
          diverged: a description of the divergence.
          details: a sentence about where the values are not finite; "" to add nothing.

        Raises:
          TrainingDiverged: the run has already rolled back `max_rollbacks` times.
        """
        guard = guard_of(state)
        assert guard is not None
        problem = ". ".join([diverged.problem, *([details] if details else [])])
        number = int(guard.rollbacks) + 1
        if number > self.config.max_rollbacks:
            raise TrainingDiverged(problem, f"{self._limit(number)} {ADVICE}")
        self.checkpointer.raise_if_failed(wait=True)
        targets = self._targets(guard, diverged.first)
        source = self.checkpointer.step_to_roll_back_to(targets, diverged.first)
        for array in jax.tree.leaves(state):  # there may not be enough memory for two states
            array.delete()
        if source is None:
            good = self.initial()
        else:
            good = self.checkpointer.load(source, self.abstract)
        first, last = int(good.step), diverged.last
        step = jax.device_put(jnp.asarray(last + 1, good.step.dtype), good.step.sharding)
        good = dataclasses.replace(good, step=step)
        discarded = [first + 1, last + 1]
        good = with_guard(good, rollbacks=number, outliers=0, halted=False, discarded=discarded)
        origin = "the initial state" if source is None else f"the checkpoint at step {source:,}"
        text = (
            f"{problem}. Rolled back to {origin} and skipped batches {first} to {last} "
            f"(rollback {number} of at most {self.config.max_rollbacks})"
        )
        values = {"from_step": first, "first_batch": first, "last_batch": last, "number": number}
        return good, DivergenceReport("rollback", last + 1, values, text)

    def _limit(self, number: int) -> str:
        if number == 1:
            return (
                "The run does not roll back, since divergence.max_rollbacks=0; set it to let the "
                "run continue from an earlier checkpoint without these batches."
            )
        return (
            f"The run has already rolled back {number - 1} times, which is the limit in "
            "divergence.max_rollbacks; raise it to continue."
        )
