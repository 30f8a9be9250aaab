"""Stand in for the checkpointer of a run that saves no checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from bert_jax.training.checkpoint_files import RollbackTargets
from bert_jax.training.state import TrainState


class NoCheckpoints:
    """The part of `Checkpointer` that the training loop uses, for a run without a work directory.

    Such a run can only roll back to its initial state.
    """

    def latest_was_evaluated(self) -> bool:
        """Return False, since there is no checkpoint."""
        return False

    def save(
        self,
        state: TrainState,
        metrics: Mapping[str, float] | None,
        *,
        rollback_targets: RollbackTargets | None = None,
        interim: bool = False,
    ) -> None:
        """Save nothing."""

    def raise_if_failed(self, *, wait: bool = False) -> None:
        """Do nothing, since no save can fail."""

    def step_to_roll_back_to(self, targets: RollbackTargets, last: int) -> int | None:
        """Return None, which stands for the initial state."""
        return None

    def load(self, step: int, abstract: TrainState) -> TrainState:
        """Raise an error, since there is no checkpoint to load."""
        raise AssertionError(f"there is no checkpoint at step {step}")

    def close(self) -> None:
        """Do nothing, since there is nothing to close."""
