"""Foreign tensors against a model's parameters: every one of both accounted for, then read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]


class ForeignTensors(Protocol):
    """Tensors of another framework, read one at a time.

    shapes: the name of every tensor and its shape.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def read(self, name: str) -> NDArray[np.generic]:
        """A tensor's values, in the dtype they are stored in."""
        ...


@dataclass(frozen=True)
class Origin:
    """Where a parameter comes from: a foreign tensor.

    transposed: it lies the other way round there. rows: only its first ones are wanted.
    """

    name: str
    transposed: bool = False
    rows: int | None = None

    def shape_here(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape a tensor of this foreign shape has here."""
        shape = shape[::-1] if self.transposed else shape
        return shape if self.rows is None else (min(self.rows, shape[0]), *shape[1:])

    def values_here(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        """The part of a foreign tensor that is wanted, as it lies here."""
        return (values.T if self.transposed else values)[: self.rows]


@dataclass
class Account:
    """What became of every foreign tensor and of every parameter.

    taken: parameter -> origin. fresh: randomly initialized parameters. left_out: foreign tensor ->
    why.
    missing, unexpected, misshapen: what nothing explains, as lines.
    """

    taken: dict[str, Origin]
    fresh: list[str]
    left_out: dict[str, str]
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    @property
    def explained(self) -> bool:
        """Whether nothing is missing, unexpected or of a wrong shape."""
        return not (self.missing or self.unexpected or self.misshapen)

    def lines(self) -> list[str]:
        """The report: - a parameter without a tensor, + a tensor without a parameter, != a shape.

        Explained ones come first, with the reason.
        """
        lines = [f"{len(self.taken)} parameters taken"]
        lines += [f"  - {name}: randomly initialized, to be trained" for name in self.fresh]
        lines += [f"  + {name}: left out, {why}" for name, why in sorted(self.left_out.items())]
        lines += [f"  - {line}: MISSING" for line in self.missing]
        lines += [f"  + {line}: UNEXPECTED" for line in self.unexpected]
        lines += [f" != {line}" for line in self.misshapen]
        return lines


def settle(
    shapes: Mapping[str, tuple[int, ...]],
    origins: Mapping[str, Origin],
    tensors: ForeignTensors,
    *,
    may_be_fresh: Callable[[str], bool],
    why_left_out: Callable[[str], str | None],
) -> Account:
    """Finds the foreign tensor of every parameter, without reading any.

    Args:
      shapes: the model's parameters.
      origins: where each of them comes from.
      may_be_fresh: whether a parameter may be randomly initialized when the source lacks it.
      why_left_out: the reason for which a foreign tensor is not needed; None if there is none.
    """
    assert shapes.keys() == origins.keys(), shapes.keys() ^ origins.keys()
    account = Account({}, [], {})
    for name, origin in origins.items():
        found = tensors.shapes.get(origin.name)
        if found is None and may_be_fresh(name):
            account.fresh.append(name)
        elif found is None:
            account.missing.append(f"{name} (there {origin.name}) {list(shapes[name])}")
        elif origin.shape_here(found) != shapes[name]:
            wanted = origin.shape_here(shapes[name])
            account.misshapen.append(
                f"{origin.name}: {list(found)} there, {list(wanted)} by its config"
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
    """Reads the taken parameters one after the other as contiguous float32.

    Raises:
      ValueError: a tensor holds no floating-point numbers, or one that is not finite.
    """
    for name, origin in account.taken.items():
        values = tensors.read(origin.name)
        # numpy knows bfloat16 and float8 as void-like kinds of ml_dtypes; integers are mistakes.
        if np.issubdtype(values.dtype, np.integer) or values.dtype == np.bool_:
            raise ValueError(
                f"{origin.name} holds {values.dtype}, expected floating-point numbers. Import the "
                "model from before its quantization"
            )
        converted = np.ascontiguousarray(origin.values_here(values), dtype=np.float32)
        if not np.isfinite(converted).all():
            raise ValueError(
                f"{origin.name} holds numbers that are not finite: the weights are damaged. "
                "Download them again"
            )
        yield name, converted
