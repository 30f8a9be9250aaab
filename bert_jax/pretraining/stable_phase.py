"""Start a decay from another run's checkpoint, and note if a run raises a decayed learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.models.config import complete_identity
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, read_model
from bert_jax.training.checkpoint_files import identity_of, steps_in
from bert_jax.training.checkpoint_state import load_state
from bert_jax.training.distributed import agreed
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.metrics_log import LOG_NAME, copy_metrics, read_metrics
from bert_jax.training.state import TrainState, abstract_state
from bert_jax.validation import differences

DECAY_IDENTITY = "decay_from"
_PHASES = "phases"
_MODEL = "model"
_THETA = "rotary_theta"
# Learning rates are considered equal up to this relative difference, since they depend slightly on
# the XLA version.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class StablePhase:
    """A checkpoint in the stable phase of another run.

    Attributes:
      work_dir: the other run's work directory.
      step: the checkpoint's step, at which the decay begins.
    """

    work_dir: Path
    step: int

    @property
    def checkpoints(self) -> Path:
        """The directory that holds the checkpoint."""
        return self.work_dir / CHECKPOINTS_NAME

    def check(self, learning_rates: LearningRates) -> None:
        """Check that the checkpoint exists, and that both runs have equal learning rates up to it.

        Args:
          learning_rates: the learning rates of the run with the decay.

        Raises:
          ValueError: the directory is not a work directory, it has no checkpoint at this step, or
            its log shows other learning rates before this step.
        """
        read_model(self.work_dir)
        steps = steps_in(self.checkpoints)
        if not agreed(self.step in steps):
            kept = f"Choose one of its steps: {', '.join(map(str, steps))}." if steps else ""
            raise ValueError(
                f"decay_from={self.step}: {self.work_dir} has no checkpoint at this step. "
                + (kept or "It has no checkpoints.")
            )
        previous: tuple[int, float] | None = None
        for step, rate in _logged_rates(self.work_dir, self.step):
            expected = float(learning_rates[step - 1])
            if not math.isclose(rate, expected, rel_tol=_ROUNDING):
                last_equal, last_rate = previous or (0, 0.0)
                raise ValueError(
                    f"decay_from={self.step}: {self.work_dir} used the learning rate {rate:.4g} in "
                    f"step {step}, but the optimizer section of this config gives {expected:.4g}. "
                    + _fix([kept for kept in steps if kept <= last_equal], _falls(last_rate, rate))
                )
            previous = step, rate

    def identity(self) -> Mapping[str, Any]:
        """Return the identity that is stored with the checkpoint."""
        return identity_of(self.checkpoints, self.step)

    def check_identity(self, identity: Mapping[str, Any]) -> None:
        """Check that the run with the decay continues the run that saved the checkpoint.

        Args:
          identity: the identity of the run with the decay. Its phases after `step` may differ.

        Raises:
          ValueError: the model, the examples or the optimizer differ; the message lists the
            differences.
        """
        own = {name: value for name, value in identity.items() if name != DECAY_IDENTITY}
        lines = differences(self._begun(self.identity()), self._begun(own))
        if lines:
            raise ValueError(
                f"decay_from={self.step}: this config cannot continue the run in {self.work_dir} "
                "(its checkpoint -> this config):\n  " + "\n  ".join(lines) + "\n"
                "Use that run's config, and change only work_dir, the number of steps and the "
                "schedule."
            )

    def _begun(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return an identity with only the phases that begin before the decay.

        Default values that the identity omits are added, so that messages can show them.
        """
        model = complete_identity(identity[_MODEL])
        angles = {_THETA: model[_THETA]} if model["positions"] == "rotary" else {}
        phases = identity.get(_PHASES, {}).items()
        begun = {name: angles | phase for name, phase in phases if phase["first_step"] < self.step}
        return {**identity, _MODEL: model, _PHASES: begun}

    def state(self, setup: StepSetup, mesh: Mesh) -> tuple[TrainState, str]:
        """Return the checkpoint's state, and a line that says where it comes from.

        Raises:
          ValueError: see `load_state`.
          OSError: see `load_state`.
        """
        abstract = abstract_state(setup.task.definition, setup.transformation, mesh)
        state = load_state(self.checkpoints, self.step, abstract)
        return state, f"the checkpoint of {self.work_dir} at step {self.step:,}, for a decay"

    def copy_log(self, work_dir: Path) -> None:
        """Copy the other run's log up to the checkpoint, so that the new run's log is complete."""
        source, target = self.work_dir / LOG_NAME, work_dir / LOG_NAME
        if jax.process_index() == 0 and source.is_file():
            copy_metrics(source, target, up_to=self.step)


def undone_decay(work_dir: Path, learning_rates: LearningRates, saved: int) -> list[str]:
    """Return a note if a resumed run raises a learning rate that had begun to decay.

    This happens if a finished run with the schedule "wsd" is given more steps.

    Args:
      work_dir: the run's work directory.
      learning_rates: the learning rates of the config.
      saved: the step of the checkpoint that the run resumes from. It is less than the run's total
        number of steps.
    """
    logged = _logged_rates(work_dir, saved)
    last = index = len(logged) - 1
    while index > 0 and _falls(logged[index - 1][1], logged[index][1]):
        index -= 1
    if index in (last, 0) or not _falls(float(learning_rates[saved]), logged[last][1]):
        return []
    steps = [step for step in steps_in(work_dir / CHECKPOINTS_NAME) if step <= logged[index][0]]
    advice = "No checkpoint from before the decay was kept"
    if steps:
        listed = ", ".join(map(str, steps))
        advice = (
            "To resume from before the decay, stop this run and repeat its command with "
            f"--from-step N, where N is one of {listed}"
        )
    return [
        f"NOTE       the learning rate had already begun to decay by step "
        f"{logged[index + 1][0]:,}, but this config raises it again. {advice}"
    ]


def _logged_rates(work_dir: Path, last: int) -> list[tuple[int, float]]:
    """Return the steps up to `last` and their learning rates from a run's log."""
    log = work_dir / LOG_NAME
    return [
        (entry["step"], entry["learning_rate"])
        for entry in (read_metrics(log) if log.is_file() else [])
        if entry.get("learning_rate") is not None and 0 < entry["step"] <= last
    ]


def _falls(before: float, after: float) -> bool:
    """Return whether a learning rate falls by more than a rounding error."""
    return after < before * (1 - _ROUNDING)


def _fix(earlier: Sequence[int], decaying: bool) -> str:
    """Return how to fix a difference between the learning rates of the two runs.

    Args:
      earlier: the steps of the checkpoints that were saved while the learning rates were equal.
      decaying: whether the other run's learning rate had begun to fall.
    """
    listed = ", ".join(map(str, earlier))
    instead = f"set decay_from to an earlier step ({listed}) and lower num_steps to match"
    if not decaying:
        instead = f", or {instead}" if earlier else ""
        return f"Set peak_learning_rate and warmup_steps to that run's values{instead}."
    fix = f"{instead[0].upper()}{instead[1:]}." if earlier else ""
    return "That run's own decay had already begun. " + (
        fix or "According to its log, none of its checkpoints is from before. Choose another run."
    )
