"""Match a model's parameters with the tensors of another framework, and read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


class ForeignTensors(Protocol):
    """Tensors of another framework, read one at a time.

    shapes: the shape of every tensor by name.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def read(self, name: str) -> NDArray[np.generic]:
        """Return the values of a tensor in their stored dtype."""
        ...


@dataclass(frozen=True)
class Origin:
    """The foreign tensor that a parameter comes from.

    Attributes:
      name: the name of the tensor.
      transposed: whether the parameter is the transposed tensor.
      rows: the number of leading rows to keep; None for all.
    """

    name: str
    transposed: bool = False
    rows: int | None = None

    def parameter_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the parameter for a foreign tensor of this shape."""
        shape = shape[::-1] if self.transposed else shape
        return shape if self.rows is None else (min(self.rows, shape[0]), *shape[1:])

    def parameter_values(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return the values of the parameter for a foreign tensor with these values."""
        return (values.T if self.transposed else values)[: self.rows]


@dataclass
class Account:
    """The result of matching foreign tensors and parameters, with an entry for each of them.

    Attributes:
      taken: the origins of imported parameters.
      fresh: the names of randomly initialized parameters.
      left_out: the reasons why foreign tensors are not needed.
      missing: lines about parameters without a tensor.
      unexpected: lines about tensors without a parameter.
      misshapen: lines about tensors of the wrong shape.
    """

    taken: dict[str, Origin]
    fresh: list[str]
    left_out: dict[str, str]
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    @property
    def explained(self) -> bool:
        """Whether nothing is missing, unexpected or of the wrong shape."""
        return not (self.missing or self.unexpected or self.misshapen)

    def lines(self) -> list[str]:
        """Return a report of everything that was not simply imported, and then of all problems.

        Lines begin with - for parameters without a tensor, + for tensors without a parameter, and
        != for wrong shapes.
        """
        lines = [f"{len(self.taken)} parameters imported"]
        lines += [f"  - {name}: randomly initialized, to be trained" for name in self.fresh]
        lines += [f"  + {name}: left out, {why}" for name, why in sorted(self.left_out.items())]
        lines += [f"  - {line}: MISSING" for line in self.missing]
        lines += [f"  + {line}: UNEXPECTED" for line in self.unexpected]
        lines += [f" != {line}" for line in self.misshapen]
        return lines


def match_tensors(
    shapes: Mapping[str, tuple[int, ...]],
    origins: Mapping[str, Origin],
    tensors: ForeignTensors,
    *,
    may_be_fresh: Callable[[str], bool],
    why_left_out: Callable[[str], str | None],
) -> Account:
    """Match the parameters of a model with foreign tensors, without reading any values.

    Args:
      shapes: the shapes of the model's parameters.
      origins: the foreign tensor of every parameter.
      tensors: the foreign tensors.
      may_be_fresh: returns whether a parameter may be randomly initialized if its tensor is
        missing.
      why_left_out: returns the reason why a foreign tensor is not needed; None if it is needed.
    """
    assert shapes.keys() == origins.keys(), shapes.keys() ^ origins.keys()
    account = Account({}, [], {})
    for name, origin in origins.items():
        shape = tensors.shapes.get(origin.name)
        if shape is None and may_be_fresh(name):
            account.fresh.append(name)
        elif shape is None:
            account.missing.append(f"{name} (source: {origin.name}) {list(shapes[name])}")
        elif origin.parameter_shape(shape) != shapes[name]:
            expected = origin.parameter_shape(shapes[name])
            account.misshapen.append(
                f"{origin.name}: {list(shape)} in the source, {list(expected)} by its config"
            )
        else:
            account.taken[name] = origin
    used = {origin.name for origin in origins.values()}
    for foreign in sorted(tensors.shapes.keys() - used):
        why = why_left_out(foreign)
        if why:
            account.left_out[foreign] = why
        else:
            account.unexpected.append(f"{foreign} {list(tensors.shapes[foreign])}")
    return account


def read(account: Account, tensors: ForeignTensors) -> Iterator[tuple[str, FloatArray]]:
    """Yield the names and the values of the taken parameters, as contiguous float32 arrays.

    Raises:
      ValueError: a tensor does not contain floating-point numbers, or contains one that is not
        finite.
    """
    for name, origin in account.taken.items():
        values = tensors.read(origin.name)
        # Refuse integers instead of accepting floats: NumPy does not consider bfloat16 a float.
        if np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_:
            raise ValueError(
                f"{origin.name} holds {values.dtype}, expected floating-point numbers. Import the "
                "model without quantization"
            )
        converted = np.ascontiguousarray(origin.parameter_values(values), dtype=np.float32)
        if not np.isfinite(converted).all():
            raise ValueError(
                f"{origin.name} holds numbers that are not finite: the weights are damaged. "
                "Download them again"
            )
        yield name, converted
