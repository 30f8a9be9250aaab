"""Keep an exponential moving average of the parameters alongside the optimizer's state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from bert_jax.models.parameters import Parameters
from bert_jax.training.divergence import unguarded, with_optimizer_state
from bert_jax.training.state import TrainState

# Early steps use a lower decay rate, so that the initial parameters do not dominate the average.
_FIRST_STEPS = 10


@dataclass(frozen=True)
class AveragingConfig:
    """Settings for averaging the parameters over the steps of a run.

    Attributes:
      ema_decay: the decay rate of an exponential moving average of the parameters (Polyak and
        Juditsky 1992); 0 for no average. A rate of 0.999, for example, averages over about the last
        1,000 steps. In step n, counted from 0, the rate is at most (1 + n) / (10 + n). The average
        has its own held-out metrics, whose names begin with "average_", and `bert-jax extract
        --ema` extracts it.
    """

    ema_decay: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"averaging.ema_decay={self.ema_decay}: expected 0 <= ema_decay < 1")


class AveragedState(NamedTuple):
    """The state of `averaged`.

    Attributes:
      optimizer: the state of the optimizer.
      average: the average of the parameters, which checkpoints store separately.
    """

    optimizer: Any
    average: Any


def averaged(
    optimizer: optax.GradientTransformation, config: AveragingConfig
) -> optax.GradientTransformation:
    """Return an optimizer that also averages the parameters, or `optimizer` if the decay is 0.

    Its `update` takes the current `step`, counted from 0, as an additional argument.
    """
    if not config.ema_decay:
        return optimizer
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> AveragedState:
        return AveragedState(inner.init(params), jax.tree.map(jnp.copy, params))

    def update(
        updates: Any, state: AveragedState, params: Any = None, *, step: Any, **others: Any
    ) -> tuple[Any, AveragedState]:
        updates, optimizer_state = inner.update(updates, state.optimizer, params, **others)
        decay = jnp.minimum(config.ema_decay, (1.0 + step) / (_FIRST_STEPS + step))
        average = jax.tree.map(
            lambda mean, value: decay * mean + (1 - decay) * value,
            state.average,
            optax.apply_updates(params, updates),
        )
        return updates, AveragedState(optimizer_state, average)

    return optax.GradientTransformationExtraArgs(init, update)


def average_of(state: TrainState) -> Parameters | None:
    """Return the average of the parameters, or None if the run does not keep one."""
    opt_state = unguarded(state.opt_state)
    return cast(Parameters, opt_state.average) if isinstance(opt_state, AveragedState) else None


def with_new_average(state: TrainState) -> TrainState:
    """Return the state; if it has an average, this is reset to copies of the parameters."""
    opt_state = unguarded(state.opt_state)
    if not isinstance(opt_state, AveragedState):
        return state
    # Make copies, because the train step donates the buffers of both the parameters and the
    # average.
    average = jax.tree.map(jnp.copy, state.params)
    return with_optimizer_state(state, opt_state._replace(average=average))
