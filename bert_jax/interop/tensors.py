"""Match a model's parameters with another framework's tensors, and read those tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


class ForeignTensors(Protocol):
    """Tensors from another framework, read one at a time.

    Attributes:
      shapes: the shape of each tensor, keyed by its name.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def read(self, name: str) -> NDArray[np.generic]:
        """Return a tensor's values in the dtype in which they are stored."""
        ...


@dataclass(frozen=True)
class Origin:
    """The foreign tensor that a parameter comes from.

    Attributes:
      name: the name of the tensor.
      transposed: whether the parameter is the transpose of the tensor.
      rows: the number of rows to keep, counted from the first; None keeps all of them.
      block: (index, number of blocks) if the parameter is only one of several blocks of rows in the
        tensor, all of the same size.
    """

    name: str
    transposed: bool = False
    rows: int | None = None
    block: tuple[int, int] = (0, 1)

    def parameter_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the parameter's shape, given the shape of its foreign tensor.

        If the rows cannot be divided into blocks, the shape has -1 rows, so it matches no
        parameter.
        """
        number = self.block[1]
        if number > 1:
            shape = (-1 if shape[0] % number else shape[0] // number, *shape[1:])
        shape = shape[::-1] if self.transposed else shape
        return shape if self.rows is None else (min(self.rows, shape[0]), *shape[1:])

    def tensor_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the foreign tensor, given the parameter's shape."""
        shape = shape[::-1] if self.transposed else shape
        return (self.block[1] * shape[0], *shape[1:])

    def parameter_values(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return the parameter's values, given the values of its foreign tensor."""
        index, number = self.block
        size = len(values) // number
        values = values[index * size : (index + 1) * size]
        return (values.T if self.transposed else values)[: self.rows]


@dataclass
class Account:
    """The result of matching parameters with foreign tensors. It accounts for all of them.

    Attributes:
      taken: the origin of each imported parameter, keyed by the parameter's name.
      fresh: the names of the parameters to initialize randomly.
      left_out: the reason why each unneeded tensor is left out, keyed by the tensor's name.
      missing: one message for each parameter that has no tensor.
      unexpected: one message for each tensor that has no parameter.
      misshapen: one message for each tensor with the wrong shape.
    """

    taken: dict[str, Origin]
    fresh: list[str]
    left_out: dict[str, str]
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    @property
    def explained(self) -> bool:
        """Whether there are no missing tensors, unexpected tensors or wrong shapes."""
        return not (self.missing or self.unexpected or self.misshapen)

    def lines(self) -> list[str]:
        """Return a report on the parameters and tensors that do not match; errors come last.

        Lines begin with - for parameters without a tensor, + for tensors without a parameter, and
        != for wrong shapes.
        """
        lines = [f"{len(self.taken)} parameters imported"]
        lines += [f"  - {name}: randomly initialized, to be trained" for name in self.fresh]
        lines += [f"  + {name}: left out {why}" for name, why in sorted(self.left_out.items())]
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
    """Match a model's parameters with foreign tensors, without reading any values.

    Args:
      shapes: the shapes of the model's parameters, keyed by name.
      origins: the foreign tensor that each parameter comes from, keyed by the parameter's name.
      tensors: the foreign tensors.
      may_be_fresh: a function that returns whether the parameter with a given name may be randomly
        initialized if its tensor is missing.
      why_left_out: a function that returns why the tensor with a given name can be left out, or
        None if it cannot.
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
            expected = origin.tensor_shape(shapes[name])
            account.misshapen.append(
                f"{origin.name}: {list(shape)} in the source, but its config implies "
                f"{list(expected)}"
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
    """Yield the name of each imported parameter with its values, a contiguous float32 array.

    Raises:
      ValueError: a tensor contains integers or non-finite numbers.
    """
    for name, origin in account.taken.items():
        values = tensors.read(origin.name)
        # Reject integers rather than check for floats: to NumPy, bfloat16 is not a float.
        if np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_:
            raise ValueError(
                f"{origin.name} contains {values.dtype} values; expected floating-point numbers. "
                "Import an unquantized version of the model"
            )
        converted = np.ascontiguousarray(origin.parameter_values(values), dtype=np.float32)
        if not np.isfinite(converted).all():
            raise ValueError(
                f"{origin.name} contains non-finite numbers, so the weights are damaged. Download "
                "them again"
            )
        yield name, converted
