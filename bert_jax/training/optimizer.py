"""Optimizers, learning-rate schedules, and which parameters are trained how fast."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.models.config import EncoderConfig

OptimizerName = Literal["adamw", "lamb"]
ScheduleName = Literal["linear", "cosine", "constant", "inverse_sqrt"]
MAX_STEPS = 2**31 - 1  # a state counts its steps in an int32
_RATES_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer and its schedule; the defaults are Devlin et al. 2019, appendix A.2.

    name: "adamw" (Loshchilov and Hutter 2019) or "lamb" (You et al. 2020, algorithm 2).
    peak_learning_rate: reached after `warmup_steps` of linear warm-up, whose first step has a
      rate too: peak / (warmup_steps + 1).
    warmup_fraction: of the run's steps, in place of `warmup_steps`; one of the two is 0.
    schedule: what follows: "linear" or "cosine" decay that would come to `end_learning_rate` at
      the step behind the last, "constant", or "inverse_sqrt" (peak x sqrt(warmup / step)).
    weight_decay: decoupled, on matrices and tables; never on biases and LayerNorm.
    clip_norm: bound on the global norm of the gradient; 0 turns clipping off.
    """

    name: OptimizerName = "adamw"
    peak_learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    warmup_fraction: float = 0.0
    schedule: ScheduleName = "linear"
    end_learning_rate: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for field, choices in (("name", OptimizerName), ("schedule", ScheduleName)):
            if getattr(self, field) not in get_args(choices):
                raise ValueError(
                    f"optimizer.{field}={getattr(self, field)!r}: expected one of "
                    + ", ".join(map(repr, get_args(choices)))
                )
        if self.warmup_steps < 0:
            raise ValueError(f"optimizer.warmup_steps={self.warmup_steps}: must be 0 or more")
        if not 0.0 <= self.warmup_fraction <= 1.0:
            raise ValueError(
                f"optimizer.warmup_fraction={self.warmup_fraction}: expected 0 up to 1"
            )
        if self.warmup_steps and self.warmup_fraction:
            raise ValueError(
                f"optimizer.warmup_steps={self.warmup_steps} and warmup_fraction="
                f"{self.warmup_fraction} both say how long the warm-up is: set one of them to 0"
            )
        if self.schedule == "inverse_sqrt" and not (self.warmup_steps or self.warmup_fraction):
            raise ValueError(
                "optimizer.schedule='inverse_sqrt' needs warmup_steps >= 1 or a warmup_fraction"
            )
        if self.end_learning_rate and self.schedule not in ("linear", "cosine"):
            raise ValueError(
                f"optimizer.end_learning_rate={self.end_learning_rate} means nothing to "
                f"schedule={self.schedule!r}, which has no such end: set it to 0, or the schedule "
                "to 'linear' or 'cosine'"
            )
        for field in ("peak_learning_rate", "end_learning_rate", "weight_decay", "clip_norm"):
            if not 0 <= getattr(self, field) < math.inf:
                raise ValueError(
                    f"optimizer.{field}={getattr(self, field)}: must be 0 or more, and finite"
                )
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(
                    f"optimizer.{field}={getattr(self, field)}: expected 0 <= {field} < 1"
                )
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"optimizer.epsilon={self.epsilon}: must be positive and finite")


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Learning rate by step: step 0 of the decay is the first step after warm-up.

    Raises:
      ValueError: the warm-up is longer than the run, or the run has more than `MAX_STEPS` steps.
    """
    if total_steps > MAX_STEPS:
        raise ValueError(
            f"the run has {total_steps:,} steps; expected at most {MAX_STEPS:,}. Lower "
            "phases.*.num_steps, or num_epochs of a fine-tuning run"
        )
    peak, end = config.peak_learning_rate, config.end_learning_rate
    warmup = config.warmup_steps or math.ceil(config.warmup_fraction * total_steps)
    if warmup > total_steps:
        raise ValueError(
            f"optimizer.warmup_steps={warmup} is more than the {total_steps} steps of the run: "
            "lower it (10 % of the run is usual for short runs)"
        )
    decay_steps = max(total_steps - warmup, 1)
    after: optax.Schedule
    if config.schedule == "linear":
        after = optax.linear_schedule(peak, end, decay_steps)
    elif config.schedule == "cosine":
        after = optax.cosine_decay_schedule(peak, decay_steps, alpha=end / peak if peak else 0.0)
    elif config.schedule == "constant":
        after = optax.constant_schedule(peak)
    else:

        def after(step: Any) -> Any:
            return peak * (warmup / (warmup + step)) ** 0.5

    # Warm-up gives step n the rate peak x (n + 1) / (warmup + 1): the first step already learns.
    start = peak / (warmup + 1)
    rise = optax.linear_schedule(start, peak, warmup)
    return optax.join_schedules([rise, after], [warmup]) if warmup else after


class LearningRates:
    """The learning rate of every step of a run, computed in blocks of steps.

    All rates of a run of 2^31 steps would take 8 GiB.
    """

    def __init__(self, config: OptimizerConfig, total_steps: int):
        """Make the schedule; see `make_schedule` for its ValueErrors."""
        self._compute = jax.jit(jax.vmap(make_schedule(config, total_steps)))
        self._total_steps = total_steps
        self._first, self._rates = 0, np.empty(0, np.float32)

    def __len__(self) -> int:
        return self._total_steps

    def __getitem__(self, step: int) -> np.float32:
        """Return the rate of a step; raise IndexError if the run does not have that step."""
        if not 0 <= step < self._total_steps:
            raise IndexError(f"step {step} of {self._total_steps}")
        if not self._first <= step < self._first + len(self._rates):
            size = min(self._total_steps, _RATES_AT_ONCE)
            self._first = step // size * size
            steps = np.arange(self._first, self._first + size, dtype=np.int64)
            self._rates = np.asarray(self._compute(np.minimum(steps, MAX_STEPS).astype(np.int32)))
        return self._rates[step - self._first]


def decays(name: str) -> bool:
    """Whether weight decay (and LAMB's trust ratio) applies: not to biases and LayerNorm."""
    return not name.endswith((".bias", ".scale"))


def _decay_mask(parameters: Mapping[str, Any]) -> dict[str, bool]:
    return {name: decays(name) for name in parameters}


def make_optimizer(
    config: OptimizerConfig, rate: Callable[[str], float] | None = None
) -> optax.GradientTransformationExtraArgs:
    """Clip, precondition, decay, scale: the gradient transformation of `config`.

    Its `update` takes the step's `learning_rate` as an argument of that name: as an input and no
    constant, so that runs under other schedules share a compiled step.

    rate: what a parameter's learning rate is multiplied by, from its name; None for 1 throughout.
    """
    parts = [_clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    parts.append(optax.scale_by_adam(config.beta1, config.beta2, config.epsilon))
    if config.weight_decay:
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=_decay_mask))
    if config.name == "lamb":
        parts.append(optax.masked(optax.scale_by_trust_ratio(), _decay_mask))
    parts.append(_scale_by_learning_rate(rate))
    return optax.with_extra_args_support(optax.chain(*parts))


def _clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """`optax.clip_by_global_norm` with one factor for all gradients in place of a division of each.

    XLA's CPU compiler computes a product again for each of Adam's moments, and writes a quotient
    out for both: 64 ms a step of BERT-mini on 32 sentences of 24 tokens, 60 without that pass over
    its 30,522 words (2 cores of a Xeon, 2026-11).
    """

    def update(updates: optax.Updates, params: optax.Params | None = None) -> optax.Updates:
        factor = max_norm / jnp.maximum(optax.tree.norm(updates), max_norm)
        return jax.tree.map(lambda update: update * factor.astype(update.dtype), updates)

    return optax.stateless(update)


def _scale_by_learning_rate(
    rate: Callable[[str], float] | None,
) -> optax.GradientTransformationExtraArgs:
    def update(
        updates: Any, state: Any, params: Any = None, *, learning_rate: Any, **others: Any
    ) -> tuple[dict[str, Any], Any]:
        scaled = {
            name: -learning_rate * (1.0 if rate is None else rate(name)) * update
            for name, update in updates.items()
        }
        return scaled, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class TuningConfig:
    """What of a model is fine-tuned.

    top_layers: the last layers of the encoder, which learn with all that is above them; the
      embeddings learn only if every layer does. -1: all of them; 0: what is above the encoder
      alone (pooler and head).
    embeddings: whether they learn at all.
    layer_decay: what a layer learns at is the rate of the layer above times this; what is above
      the encoder has the full rate, the embeddings the least (Howard and Ruder 2018, section 3.2,
      "discriminative fine-tuning"). 1.0: the same rate for all.
    """

    top_layers: int = -1
    embeddings: bool = True
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        if self.top_layers < -1:
            raise ValueError(f"tuning.top_layers={self.top_layers}: expected -1 (all), 0, 1, ...")
        if not 0.0 < self.layer_decay <= 1.0:
            raise ValueError(
                f"tuning.layer_decay={self.layer_decay}: expected more than 0, up to 1"
            )


@dataclass(frozen=True)
class Tuning:
    """A `TuningConfig` for an encoder.

    Raises:
      ValueError: more layers are asked for than there are, layers are told apart that share
        parameters, or slowed down where none learns.
    """

    config: TuningConfig
    encoder: EncoderConfig

    def __post_init__(self) -> None:
        apart = self.num_learning_layers not in (0, self.num_layers) or self.config.layer_decay < 1
        if self.encoder.sharing != "none" and apart:
            raise ValueError(
                f"tuning.top_layers={self.config.top_layers} and layer_decay="
                f"{self.config.layer_decay}, but the model's layers share parameters (sharing="
                f"{self.encoder.sharing!r}): all of them are trained, at one rate, or none: "
                "top_layers=-1 or 0 and layer_decay=1.0"
            )
        if self.config.top_layers == 0 and self.config.layer_decay < 1.0:
            raise ValueError(
                f"tuning.layer_decay={self.config.layer_decay} slows layers down, and top_layers=0 "
                "trains none of them: set layer_decay=1.0, or more top_layers"
            )
        if self.config.top_layers > self.num_layers:
            raise ValueError(
                f"tuning.top_layers={self.config.top_layers}: the model has {self.num_layers}"
            )

    @property
    def num_layers(self) -> int:
        """All layers of the encoder."""
        return self.encoder.num_layers

    @property
    def num_learning_layers(self) -> int:
        """The last layers of the encoder, those that a backward pass goes through."""
        return self.num_layers if self.config.top_layers == -1 else self.config.top_layers

    def learns(self, name: str) -> bool:
        """Whether a parameter learns."""
        depth = self._depth(name)
        if depth == 0:
            return self.config.embeddings and self.num_learning_layers == self.num_layers
        return depth > self.num_layers - self.num_learning_layers

    def rate(self, name: str) -> float:
        """What the learning rate is multiplied by for a parameter."""
        return self.config.layer_decay ** (self.num_layers + 1 - self._depth(name))

    def _depth(self, name: str) -> int:
        """0 for the embeddings, 1 for the first layer, ..., num_layers + 1 above the last."""
        layer = _LAYER.match(name)
        if layer:
            return int(layer.group(1)) + 1
        return 0 if name.startswith("encoder.embeddings.") else self.num_layers + 1
