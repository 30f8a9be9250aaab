"""Skip training steps whose loss or gradient norm is an outlier.

The compiled step itself decides this on the devices, from values that are replicated on all of
them. The loop can therefore still dispatch a step without waiting for the previous one, and all
processes agree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bert_jax.tasks.task import Metric, Metrics
from bert_jax.training.state import TrainState
from bert_jax.validation import check_at_least

# The standard deviation of a normal distribution is its median absolute deviation times this
# number.
_MAD_SCALE = 1.4826
# The metrics that a guarded train step adds, with the values of a `Verdict`.
VERDICT_METRICS = ("skipped", "outliers", "loss_limit", "gradient_norm_limit")
# Deviations below this fraction of the median never count as large, even if all values in the
# window are almost the same.
_LEAST_SPREAD = 0.01
_LEAST_WINDOW = 8


@dataclass(frozen=True)
class DivergenceConfig:
    """How a run survives loss spikes and values that are NaN or infinite.

    A skipped step leaves the parameters, the optimizer state and their average unchanged, but uses
    up its batch and its place in the learning-rate schedule. A rollback restores an earlier state
    and skips all steps since then.

    Attributes:
      window_steps: the size of the window of recent steps. The loss and the gradient norm of each
        step are compared with those in the window. The window contains the last steps that were not
        skipped, and is empty at the start of each phase. No outliers are skipped until the window
        is full, or if this is 0.
      max_deviations: a step is an outlier, and is skipped, if its loss or its gradient norm exceeds
        the median of the window by more than this many standard deviations. The standard deviation
        is estimated as 1.4826 times the median absolute deviation, but as at least 1% of the
        median. (OLMo et al. 2024, "2 OLMo 2 Furious", and its library use the mean and the standard
        deviation of 128 steps, and a factor of 6.)
      max_outliers: the number of consecutive outliers that are skipped. One more outlier is a
        divergence.
      max_rollbacks: the maximum number of rollbacks. A run diverges, and rolls back, if more than
        `max_outliers` consecutive steps are outliers, or if a value is NaN or infinite. Any further
        divergence ends the run. If 0, the first divergence ends the run.
      margin_steps: a rollback restores the newest checkpoint that is at least this many steps older
        than the divergence (Chowdhery et al. 2022, "PaLM", section 5.1: about 100 steps before the
        spike). If there is none, it restores the oldest checkpoint from before the divergence, or
        the initial state if there is no checkpoint. Checkpoints that may be needed are kept.
    """

    window_steps: int = 0
    max_deviations: float = 6.0
    max_outliers: int = 5
    max_rollbacks: int = 0
    margin_steps: int = 100

    def __post_init__(self) -> None:
        check_at_least(
            0,
            "divergence.",
            window_steps=self.window_steps,
            max_outliers=self.max_outliers,
            max_rollbacks=self.max_rollbacks,
            margin_steps=self.margin_steps,
        )
        if 0 < self.window_steps < _LEAST_WINDOW:
            raise ValueError(
                f"divergence.window_steps={self.window_steps}: the median of so few steps is not "
                f"meaningful. Set it to at least {_LEAST_WINDOW}, or to 0 to skip no outliers."
            )
        if not 0 < self.max_deviations < math.inf:
            raise ValueError(
                f"divergence.max_deviations={self.max_deviations}: must be positive and finite."
            )

    @property
    def enabled(self) -> bool:
        """Whether the compiled step checks its loss and gradient norm."""
        return self.window_steps > 0 or self.max_rollbacks > 0


NO_CHECKS = DivergenceConfig()


class Guard(NamedTuple):
    """The data from which to decide whether a step is skipped; it is saved with every checkpoint.

    Attributes:
      losses: float32 [window], the losses of the last steps that were not skipped.
      norms: float32 [window], their gradient norms.
      steps: the number of steps that have been added to the window so far, an int32 scalar that
        keeps growing when the window is full.
      outliers: the number of consecutive outliers so far, including values that are not finite.
      halted: whether the run has diverged, so that no more updates are applied.
      rollbacks: the number of rollbacks so far.
      discarded: int32 [2], the range of steps whose states the last rollback has discarded: the
        first step of the range, and the step after its last.
    """

    losses: jax.Array
    norms: jax.Array
    steps: jax.Array
    outliers: jax.Array
    halted: jax.Array
    rollbacks: jax.Array
    discarded: jax.Array


class Observed(NamedTuple):
    """A step's loss and gradient norm, from which `guarded` decides whether to skip the step."""

    loss: jax.Array
    gradient_norm: jax.Array


class Verdict(NamedTuple):
    """The decision on a step, and the largest values that would not have been outliers.

    Attributes:
      skipped: whether the update must not be applied.
      outliers: see `Guard`.
      loss_limit: the highest loss of a normal step; infinite until the window is full.
      norm_limit: the highest gradient norm of a normal step.
    """

    skipped: jax.Array
    outliers: jax.Array
    loss_limit: jax.Array
    norm_limit: jax.Array

    def metrics(self) -> Metrics:
        """Return the verdict as metrics that the train step adds to the task's metrics."""
        one = jnp.ones(())
        values = (value.astype(jnp.float32) for value in self)
        return {name: Metric(x, one) for name, x in zip(VERDICT_METRICS, values, strict=True)}


class GuardedState(NamedTuple):
    """The state of `guarded`.

    Attributes:
      optimizer: the state of the optimizer, which may include an average of the parameters.
      guard: the data from which the decision on the next step is made.
      verdict: the decision on the last step.
    """

    optimizer: Any
    guard: Guard
    verdict: Verdict


def guarded(
    optimizer: optax.GradientTransformation, config: DivergenceConfig
) -> optax.GradientTransformation:
    """Return an optimizer whose state does not change in steps that are skipped.

    Its `update` takes the step's loss and gradient norm as the additional argument `observed`, and
    returns the parameters after the step instead of updates.

    Args:
      optimizer: the optimizer.
      config: determines which steps are skipped; if it never skips a step, the result is
        `optimizer`.
    """
    if not config.enabled:
        return optimizer
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> GuardedState:
        return GuardedState(inner.init(params), _new_guard(config.window_steps), _no_verdict())

    def update(
        gradients: Any, state: GuardedState, params: Any, *, observed: Observed, **others: Any
    ) -> tuple[Any, GuardedState]:
        guard, verdict = judge(state.guard, observed, config)

        def take_step(params: Any, optimizer_state: Any) -> tuple[Any, Any]:
            updates, optimizer_state = inner.update(gradients, optimizer_state, params, **others)
            return optax.apply_updates(params, updates), optimizer_state

        before = params, state.optimizer
        params, optimizer_state = _unless(verdict.skipped, take_step, before)
        return params, GuardedState(optimizer_state, guard, verdict)

    return optax.GradientTransformationExtraArgs(init, update)


def _new_guard(window_steps: int) -> Guard:
    window, zero = jnp.zeros(max(window_steps, 1), jnp.float32), jnp.zeros((), jnp.int32)
    none = jnp.zeros(2, jnp.int32)
    return Guard(window, jnp.copy(window), zero, zero, jnp.zeros((), bool), zero, none)


def _no_verdict() -> Verdict:
    infinity = jnp.full((), jnp.inf, jnp.float32)
    return Verdict(jnp.zeros((), bool), jnp.zeros((), jnp.int32), infinity, infinity)


def with_guard_state(
    opt_state: Any, abstract: GuardedState, stored: Mapping[str, jax.Array] | None
) -> GuardedState:
    """Return the state of `guarded`, given its parts.

    Args:
      opt_state: the state of the optimizer.
      abstract: the shapes, dtypes and shardings of the result.
      stored: the values of the guard; None for a new one with an empty window.
    """
    new = _new_guard(abstract.guard.losses.size), _no_verdict()
    guard, verdict = jax.tree.map(
        lambda x, a: jax.device_put(x, a.sharding), new, (abstract.guard, abstract.verdict)
    )
    return GuardedState(opt_state, guard if stored is None else Guard(**stored), verdict)


def judge(guard: Guard, observed: Observed, config: DivergenceConfig) -> tuple[Guard, Verdict]:
    """Decide whether to skip a step, and return the updated guard with the decision."""
    loss, norm = observed
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    loss_limit, norm_limit = (
        _limit(window, guard.steps, config) for window in (guard.losses, guard.norms)
    )
    normal = finite & (loss <= loss_limit) & (norm <= norm_limit)
    outliers = jnp.where(normal, 0, guard.outliers + 1)
    applied = normal & ~guard.halted
    place = guard.steps % len(guard.losses)
    changed = guard._replace(
        losses=jnp.where(applied, guard.losses.at[place].set(loss), guard.losses),
        norms=jnp.where(applied, guard.norms.at[place].set(norm), guard.norms),
        steps=guard.steps + applied,
        outliers=outliers,
        halted=guard.halted | ~finite | (outliers > config.max_outliers),
    )
    return changed, Verdict(~applied, outliers, loss_limit, norm_limit)


def _limit(window: jax.Array, steps: jax.Array, config: DivergenceConfig) -> jax.Array:
    """Return the largest value that is not an outlier."""
    if not config.window_steps:
        return jnp.float32(jnp.inf)
    median = jnp.median(window)
    deviation = _MAD_SCALE * jnp.median(jnp.abs(window - median))
    spread = jnp.maximum(deviation, _LEAST_SPREAD * jnp.abs(median))
    limit = median + config.max_deviations * spread
    return jnp.where(steps >= config.window_steps, limit, jnp.inf)


def _unless(skipped: jax.Array, take_step: Callable[..., Any], before: Any) -> Any:
    """Return the arrays after a step, or the arrays before it if the step is skipped.

    Accelerators always take the step and then select the arrays, so that they never wait for the
    decision. On CPUs, a selection would make XLA copy the state of the optimizer. There, the step
    is the body of a loop, which runs once or not at all and updates the state in place.

    Args:
      skipped: whether the step is skipped.
      take_step: takes the arrays before the step, and returns the arrays after it.
      before: the arrays before the step.
    """

    def select() -> Any:
        after = take_step(*before)
        return jax.tree.map(lambda new, old: jnp.where(skipped, old, new), after, before)

    def loop() -> Any:
        def is_due(carry: tuple[jax.Array, Any]) -> jax.Array:
            return carry[0]

        def body(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            return jnp.zeros((), bool), take_step(*carry[1])

        return jax.lax.while_loop(is_due, body, (~skipped, before))[1]

    return jax.lax.platform_dependent(cpu=loop, default=select)


def unguarded(opt_state: Any) -> Any:
    """Return the state of the optimizer without the guard's state, if there is one."""
    return opt_state.optimizer if isinstance(opt_state, GuardedState) else opt_state


def guard_of(state: TrainState) -> Guard | None:
    """Return the guard that decides on the next step, or None if the run has no guard."""
    opt_state = state.opt_state
    return opt_state.guard if isinstance(opt_state, GuardedState) else None


def with_optimizer_state(state: TrainState, optimizer_state: Any) -> TrainState:
    """Return the state with another state of the optimizer, but with the same guard."""
    opt_state = state.opt_state
    if isinstance(opt_state, GuardedState):
        optimizer_state = opt_state._replace(optimizer=optimizer_state)
    return dataclasses.replace(state, opt_state=optimizer_state)


def with_guard(state: TrainState, **values: Any) -> TrainState:
    """Return the state with some values of its guard replaced, if it has one."""
    guard = guard_of(state)
    if guard is None:
        return state
    placed = {
        name: jax.device_put(jnp.asarray(x, old.dtype), old.sharding)
        for name, x in values.items()
        for old in [getattr(guard, name)]
    }
    return dataclasses.replace(
        state, opt_state=state.opt_state._replace(guard=guard._replace(**placed))
    )
