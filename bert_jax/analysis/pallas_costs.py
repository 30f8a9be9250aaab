"""Read the cost estimates that the authors of a traced program's Pallas kernels have stated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.analysis.custom_calls import Work


def pallas_costs(jaxpr: Any) -> Mapping[str, Work]:
    """Return the work of one call of each Pallas kernel, keyed by the kernel's name.

    If calls of the same kernel state different work, for example because only some layers have a
    window, the result is the mean over all calls. Kernels without a name or a statement are left
    out.

    Args:
      jaxpr: the closed jaxpr of the program.
    """
    stated: dict[str, list[Work]] = {}
    for equation in _pallas_calls(jaxpr.jaxpr):
        cost, name = equation.params["cost_estimate"], equation.params["name"]
        if cost is not None and name is not None:
            stated.setdefault(name, []).append(Work(cost.flops, cost.bytes_accessed))
    return {name: _mean(works) for name, works in stated.items()}


def _mean(works: list[Work]) -> Work:
    flops = sum(work.flops for work in works)
    size = sum(work.bytes or 0 for work in works)
    return Work(flops // len(works), size // len(works))


def _pallas_calls(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations that call Pallas kernels, in a jaxpr and in its inner jaxprs."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
            continue
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _pallas_calls(inner)
