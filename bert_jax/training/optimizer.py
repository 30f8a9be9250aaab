"""Define the optimizers and their settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypeVar, get_args

import optax

from bert_jax.training.schedules import (
    SCHEDULES,
    DecayShape,
    Linear,
    Schedule,
    ScheduleName,
    WarmupStableDecay,
    require_finite,
)
from bert_jax.training.transformations import (
    Rate,
    clip_by_global_norm,
    decay_mask,
    is_hidden_matrix,
    scale_by_muon,
    scale_by_stable_adam,
    with_learning_rate,
)

OptimizerName = Literal["adamw", "lamb", "stable_adamw", "muon"]
_Choice = TypeVar("_Choice")
# Settings that earlier versions did not have. A run of an earlier version can be resumed if these
# settings have their default values.
_ADDED_SETTINGS = (
    *("decay_steps", "decay_fraction", "decay_shape"),
    *("momentum", "adam_rate_factor"),
)


@dataclass(frozen=True, kw_only=True)
class _Decayed:
    """Settings shared by all optimizers with decoupled weight decay.

    The defaults are from Devlin et al. 2019, appendix A.2.

    Attributes:
      beta1, beta2: the decay rates of the running means, which in Adam are the means of the
        gradients and of their squares.
      weight_decay: the decoupled weight decay for matrices and embedding tables. It does not apply
        to biases and norms.
      moments: the number of parameter-sized arrays that the optimizer stores for each parameter.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.01
    moments: ClassVar[int]

    def __post_init__(self) -> None:
        require_finite("weight_decay", self.weight_decay)
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(
                    f"optimizer.{field}={getattr(self, field)}: expected 0 <= {field} < 1"
                )


@dataclass(frozen=True, kw_only=True)
class _Clipped(_Decayed):
    """Settings shared by all optimizers that clip the gradient.

    Attributes:
      clip_norm: the maximum global gradient norm; 0 disables clipping.
    """

    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite("clip_norm", self.clip_norm)

    def _with_decay(
        self, precondition: optax.GradientTransformation
    ) -> list[optax.GradientTransformation]:
        """Return the transformations before learning-rate scaling: clip, precondition, decay."""
        parts = [clip_by_global_norm(self.clip_norm)] if self.clip_norm else []
        parts.append(precondition)
        if self.weight_decay:
            parts.append(optax.add_decayed_weights(self.weight_decay, mask=decay_mask))
        return parts


@dataclass(frozen=True, kw_only=True)
class _Adam(_Clipped):
    """Settings shared by all optimizers derived from Adam.

    Attributes:
      epsilon: the constant added to the square root of the mean squared gradient.
    """

    epsilon: float = 1e-6
    moments: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_epsilon(self.epsilon)

    def _adam(self) -> list[optax.GradientTransformation]:
        """Return AdamW's transformations up to, but not including, the learning-rate scaling."""
        return self._with_decay(optax.scale_by_adam(self.beta1, self.beta2, self.epsilon))


@dataclass(frozen=True, kw_only=True)
class AdamW(_Adam):
    """AdamW (Loshchilov and Hutter 2019)."""

    def build(self, rate: Rate | None = None) -> optax.GradientTransformationExtraArgs:
        """Return the gradient transformation; see `make_optimizer`."""
        return with_learning_rate(self._adam(), rate)


@dataclass(frozen=True, kw_only=True)
class Lamb(_Adam):
    """LAMB (You et al. 2020, algorithm 2)."""

    def build(self, rate: Rate | None = None) -> optax.GradientTransformationExtraArgs:
        """Return the gradient transformation; see `make_optimizer`."""
        trust = optax.masked(optax.scale_by_trust_ratio(), decay_mask)
        return with_learning_rate([*self._adam(), trust], rate)


@dataclass(frozen=True, kw_only=True)
class StableAdamW(_Decayed):
    """AdamW with update clipping, which replaces `clip_norm` (Wortsman et al. 2023, algorithm 2).

    Attributes:
      epsilon: the constant added to the square root of the mean squared gradient.
    """

    epsilon: float = _Adam.epsilon
    moments: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_epsilon(self.epsilon)

    def build(self, rate: Rate | None = None) -> optax.GradientTransformationExtraArgs:
        """Return the gradient transformation; see `make_optimizer`."""
        adam = scale_by_stable_adam(self.beta1, self.beta2, self.epsilon, self.weight_decay)
        return with_learning_rate([adam], rate)


@dataclass(frozen=True, kw_only=True)
class Muon(_Adam):
    """Muon for the matrices in encoder layers, and AdamW for all other parameters.

    See `scale_by_muon`. The memory check counts one moment for each parameter. This is correct for
    the matrices in layers; the other parameters have two.

    Attributes:
      momentum: the decay rate of Muon's running mean of the gradient.
      adam_rate_factor: AdamW's learning rate, as a multiple of Muon's learning rate.
    """

    momentum: float = 0.95
    adam_rate_factor: float = 1.0
    moments: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_finite("adam_rate_factor", self.adam_rate_factor)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"optimizer.momentum={self.momentum}: expected 0 <= momentum < 1")

    def build(self, rate: Rate | None = None) -> optax.GradientTransformationExtraArgs:
        """Return the gradient transformation; see `make_optimizer`."""

        def mask(hidden: bool) -> Callable[[Mapping[str, Any]], dict[str, bool]]:
            return lambda params: {name: is_hidden_matrix(name) is hidden for name in params}

        def factor(name: str) -> float:
            own = 1.0 if is_hidden_matrix(name) else self.adam_rate_factor
            return own if rate is None else own * rate(name)

        adam = optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)
        both = optax.chain(
            optax.masked(scale_by_muon(self.momentum), mask(True)),
            optax.masked(adam, mask(False)),
        )
        return with_learning_rate(self._with_decay(both), factor)


def _check_epsilon(epsilon: float) -> None:
    if not 0 < epsilon < math.inf:
        raise ValueError(f"optimizer.epsilon={epsilon}: must be positive and finite")


Optimizer = AdamW | Lamb | StableAdamW | Muon
OPTIMIZERS: Mapping[OptimizerName, type[Optimizer]] = {
    "adamw": AdamW,
    "lamb": Lamb,
    "stable_adamw": StableAdamW,
    "muon": Muon,
}


@dataclass(frozen=True)
class OptimizerConfig:
    """An optimizer and its learning-rate schedule.

    The defaults are from Devlin et al. 2019, appendix A.2.

    Attributes:
      name: "adamw" (Loshchilov and Hutter 2019), "lamb" (You et al. 2020, algorithm 2),
        "stable_adamw" (AdamW with update clipping, Wortsman et al. 2023, algorithm 2), or "muon"
        (Jordan et al. 2024, scaled as in Liu et al. 2025), which uses AdamW for embeddings, heads,
        biases and norms.
      peak_learning_rate: the learning rate after the warm-up.
      warmup_steps: the number of steps over which the rate rises linearly, starting at
        peak / (warmup_steps + 1) in the first step.
      warmup_fraction: the length of the warm-up as a fraction of the run's steps. Set either this
        or `warmup_steps` to 0.
      schedule: how the rate changes after the warm-up. "linear" and "cosine" decay would reach
        `end_learning_rate` one step after the end of the run. "constant" keeps the peak rate, and
        "inverse_sqrt" is peak x sqrt(warmup / step). "wsd" (warmup-stable-decay) is constant until
        the last `decay_steps` of the run (Zhai et al. 2022, section 3.5).
      decay_steps: the number of steps in the decay of "wsd".
      decay_fraction: the length of the decay of "wsd" as a fraction of the run's steps. Set either
        this or `decay_steps` to 0.
      decay_shape: the shape of the decay of "wsd": "linear", or "1-sqrt", which falls faster at
        first (Hägele et al. 2024, section 3).
      end_learning_rate: the final learning rate of "linear", "cosine" and "wsd" decay.
      beta1: the decay rate of the running mean of the gradient.
      beta2: the decay rate of the running mean of the squared gradient.
      epsilon: the constant added to the square root of the mean squared gradient.
      weight_decay: the decoupled weight decay for matrices and embedding tables. It does not apply
        to biases and norms.
      clip_norm: the maximum global gradient norm; 0 disables clipping. "stable_adamw" does not
        have this setting, since it clips updates instead.
      momentum: the decay rate of the running mean of the gradient in "muon".
      adam_rate_factor: the learning rate of the parameters that "muon" updates with AdamW, as a
        multiple of the learning rate of the other parameters.
    """

    name: OptimizerName = "adamw"
    peak_learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    warmup_fraction: float = 0.0
    schedule: ScheduleName = "linear"
    decay_steps: int = WarmupStableDecay.decay_steps
    decay_fraction: float = WarmupStableDecay.decay_fraction
    decay_shape: DecayShape = WarmupStableDecay.decay_shape
    end_learning_rate: float = Linear.end_learning_rate
    beta1: float = _Adam.beta1
    beta2: float = _Adam.beta2
    epsilon: float = _Adam.epsilon
    weight_decay: float = _Adam.weight_decay
    clip_norm: float = _Adam.clip_norm
    momentum: float = Muon.momentum
    adam_rate_factor: float = Muon.adam_rate_factor

    def __post_init__(self) -> None:
        for field, choices in (
            ("name", OptimizerName),
            ("schedule", ScheduleName),
            ("decay_shape", DecayShape),
        ):
            if getattr(self, field) not in get_args(choices):
                raise ValueError(
                    f"optimizer.{field}={getattr(self, field)!r}: expected one of "
                    + ", ".join(map(repr, get_args(choices)))
                )
        if self.warmup_steps < 0:
            raise ValueError(f"optimizer.warmup_steps={self.warmup_steps}: must be 0 or more")
        if not 0.0 <= self.warmup_fraction <= 1.0:
            raise ValueError(
                f"optimizer.warmup_fraction={self.warmup_fraction}: must be between 0 and 1"
            )
        if self.warmup_steps and self.warmup_fraction:
            raise ValueError(
                f"optimizer.warmup_steps={self.warmup_steps} and warmup_fraction="
                f"{self.warmup_fraction} both set the length of the warm-up. Set one of them to 0."
            )
        if self.schedule == "inverse_sqrt" and not (self.warmup_steps or self.warmup_fraction):
            raise ValueError(
                "optimizer.schedule='inverse_sqrt' needs warmup_steps >= 1 or a warmup_fraction."
            )
        require_finite("peak_learning_rate", self.peak_learning_rate)
        _refuse_unused(self, "name", self.name, OPTIMIZERS)
        _refuse_unused(self, "schedule", self.schedule, SCHEDULES)
        self.optimizer, self.decay  # noqa: B018 - each checks its own settings

    @property
    def clips_gradients(self) -> bool:
        """Whether gradients are clipped by their global norm, which needs all of them at once."""
        return "clip_norm" in _names(OPTIMIZERS[self.name]) and self.clip_norm > 0

    def identity(self) -> dict[str, object]:
        """Return the settings as plain values, omitting newer settings left at their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        return {
            name: value
            for name, value in vars(self).items()
            if name not in _ADDED_SETTINGS or value != defaults[name]
        }

    @property
    def optimizer(self) -> Optimizer:
        """The chosen optimizer with its settings."""
        return _chosen(self, OPTIMIZERS[self.name])

    def decay_start(self, total_steps: int) -> int | None:
        """Return the step at which the decay of "wsd" begins, or None for other schedules.

        The step may be negative if the decay is longer than the run.
        """
        decay = self.decay
        return (
            total_steps - decay.length(total_steps)
            if isinstance(decay, WarmupStableDecay)
            else None
        )

    @property
    def decay(self) -> Schedule:
        """The chosen schedule for the steps after the warm-up, with its settings."""
        return _chosen(self, SCHEDULES[self.schedule])


def _refuse_unused(
    config: OptimizerConfig, key: str, choice: str, choices: Mapping[Any, type[Any]]
) -> None:
    """Raise ValueError if a setting differs from its default but has no effect with `choice`."""
    own = _names(choices[choice])
    defaults = {field.name: field.default for field in fields(config)}
    for kind in choices.values():
        for name in sorted(_names(kind) - own):
            if getattr(config, name) != defaults[name]:
                users = [repr(x) for x, other in choices.items() if name in _names(other)]
                raise ValueError(
                    f"optimizer.{name}={getattr(config, name)} has no effect with "
                    f"{key}={choice!r}. Set it to {defaults[name]}, or {key} to "
                    f"{' or '.join(users)}."
                )


def _names(kind: type[Any]) -> set[str]:
    return {field.name for field in fields(kind)}


def _chosen(config: OptimizerConfig, kind: type[_Choice]) -> _Choice:
    """Create an instance of `kind` with its settings from the config."""
    return kind(**{name: getattr(config, name) for name in _names(kind)})


def make_optimizer(
    config: OptimizerConfig, rate: Rate | None = None
) -> optax.GradientTransformationExtraArgs:
    """Build a config's gradient transformation: clip, precondition, decay, scale.

    Its `update` takes the `learning_rate` as an argument instead of compiling it in as a constant,
    so that runs with different schedules can share a compiled step.

    Args:
      config: the optimizer.
      rate: maps a parameter's name to the factor that multiplies its learning rate; if None, all
        factors are 1.
    """
    return config.optimizer.build(rate)
