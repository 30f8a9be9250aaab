"""Count the work of the Pallas kernels of a traced program."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.analysis.custom_calls import Work


def pallas_costs(jaxpr: Any) -> Mapping[str, Work]:
    """Return the work of one call of each Pallas kernel, keyed by the kernel's name.

    The work is taken from `pallas_call(cost_estimate=...)`. JAX's own kernels, such as splash
    attention, have no cost estimate. For them, the FLOPs of the kernel's matrix multiplications are
    multiplied by the number of its programs, as if every program took every branch.

    If calls of the same kernel do different work, for example because only some layers have a
    window, the result is the mean over all calls. A kernel is left out if it has no name, or if it
    has no cost estimate and its FLOPs are known only when it runs.

    Args:
      jaxpr: the closed jaxpr of the program.
    """
    works: dict[str, list[Work | None]] = {}
    for equation in _pallas_calls(jaxpr.jaxpr):
        name = equation.params["name"]
        if name is not None:
            works.setdefault(name, []).append(_work(equation))
    known = {name: [work for work in calls if work] for name, calls in works.items()}
    return {name: _mean(calls) for name, calls in known.items() if len(calls) == len(works[name])}


def _mean(works: list[Work]) -> Work:
    sizes = [work.bytes for work in works if work.bytes is not None]
    return Work(
        sum(work.flops for work in works) // len(works),
        sum(sizes) // len(sizes) if len(sizes) == len(works) else None,
    )


def _work(call: Any) -> Work | None:
    """Return how much work a call does, estimated or counted; None if this is unknown."""
    cost, grid = call.params["cost_estimate"], call.params["grid_mapping"].grid
    if cost is not None:
        return Work(cost.flops, cost.bytes_accessed)
    flops = _flops(call.params["jaxpr"])
    if flops is None or not all(isinstance(size, int) for size in grid):
        return None
    return Work(math.prod(grid) * flops)


def _flops(jaxpr: Any) -> int | None:
    """Count the FLOPs of the matrix multiplications of a jaxpr; None if a loop's length is unknown.

    All branches of a conditional are counted.
    """
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, result = equation.invars[0].aval, equation.outvars[0].aval
            total += 2 * result.size * math.prod(left.shape[dim] for dim in contracted)
            continue
        inner = [_flops(jaxpr) for jaxpr in _jaxprs_in(equation)]
        if None in inner or (equation.primitive.name == "while" and any(inner)):
            return None
        total += equation.params.get("length", 1) * sum(filter(None, inner))
    return total


def _pallas_calls(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations that call Pallas kernels, in a jaxpr and in its inner jaxprs."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
            continue
        for inner in _jaxprs_in(equation):
            yield from _pallas_calls(inner)


def _jaxprs_in(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation runs, such as the body of a loop."""
    for value in equation.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield inner
