"""Define types that list the allowed values of options in `EncoderConfig` and `ComputeConfig`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, ParamSpec, TypeVar, assert_never

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh", "quick_gelu"]
PositionKind = Literal["learned", "sinusoidal", "rotary"]
NormPlacement = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
NormBackend = Literal["auto", "xla", "triton"]
Sharing = Literal["none", "all", "attention", "ffn"]
PoolerActivation = Literal["tanh", "relu", "gelu"]
ClassifierTransform = Literal["pooler", "prediction"]
Pooling = Literal["cls", "mean"]
DTypeName = Literal["auto", "float32", "bfloat16"]
AttentionBackend = Literal["auto", "xla", "cudnn", "splash", "flash_gpu", "flash_tpu"]
Remat = Literal["none", "dots", "layer"]
Ops = Literal["fast", "plain"]
Products = Literal["dtype", "fp8", "fp8_emulated"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def with_ops(function: Callable[_P, _R], ops: Ops) -> Callable[_P, _R]:
    """Return the `jax.custom_vjp` function itself, or the function it wraps if `ops` is "plain".

    A custom backward pass saves time or memory, but supports neither forward-mode differentiation
    nor second derivatives; see `ComputeConfig.ops`.
    """
    match ops:
        case "fast":
            return function
        case "plain":
            plain: Callable[_P, _R] = function.__wrapped__  # type: ignore[attr-defined]
            return plain
        case _:
            assert_never(ops)
