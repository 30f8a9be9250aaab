"""Choose between operations with and without a custom backward pass.

A custom backward pass saves time or memory, but supports neither forward-mode differentiation nor
second derivatives; see `ComputeConfig.ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, assert_never

from bert_jax.models.options import Ops

_P = ParamSpec("_P")
_R = TypeVar("_R")


def with_ops(function: Callable[_P, _R], ops: Ops) -> Callable[_P, _R]:
    """Return the `jax.custom_vjp` function itself, or the function it wraps if `ops` is "plain"."""
    match ops:
        case "fast":
            return function
        case "plain":
            plain: Callable[_P, _R] = function.__wrapped__  # type: ignore[attr-defined]
            return plain
        case _:
            assert_never(ops)
