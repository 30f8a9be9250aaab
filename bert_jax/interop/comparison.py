"""Two models' outputs for the same input, set side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bert_jax.interop.probes import Probe

Outputs = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Sizes:
    """What inputs a model takes: ids below `vocab_size` and `num_segments`, and how many."""

    vocab_size: int
    num_segments: int
    max_positions: int


class Side(Protocol):
    """A model to compare, of whatever framework.

    title: what it is, for people. sizes: None where the file does not tell. labels: names of the
    scores, () where there are none or the file does not tell.
    """

    title: str
    sizes: Sizes | None
    labels: tuple[str, ...]

    def outputs(self, probe: Probe) -> Outputs:
        """Float32 outputs by the names of `bert_jax.models.inference.infer`."""
        ...


@dataclass(frozen=True)
class Difference:
    """How far apart one output of two models is.

    largest: the largest absolute difference. relative: that over the root mean square of the
      second model's values; infinite where the shapes differ or a value is not finite.
    """

    largest: float
    relative: float


def differences(first: Outputs, second: Outputs, probe: Probe) -> dict[str, Difference]:
    """The outputs that both give, in a model's order; padding is not looked at."""
    return {
        name: _difference(first[name], second[name], probe)
        for name in sorted(first.keys() & second.keys(), key=_order)
    }


def unequal(first: Outputs, second: Outputs, probe: Probe) -> list[str]:
    """Return the common outputs that are not bitwise equal, ignoring padding.

    0.0 and -0.0 are unequal, and so are different shapes.
    """
    return [
        name
        for name in sorted(first.keys() & second.keys(), key=_order)
        if not _same_bits(*_compared(first[name], second[name], probe))
    ]


def misshapen(first: Outputs, second: Outputs) -> list[str]:
    """A line for every output whose shapes differ: two heads of one name."""
    return [
        f"{name} is {list(first[name].shape)} in A and {list(second[name].shape)} in B"
        for name in sorted(first.keys() & second.keys(), key=_order)
        if first[name].shape != second[name].shape
    ]


def only_one_gives(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """The outputs that cannot be compared, since one of the two does not give them."""
    return sorted(first.keys() ^ second.keys(), key=_order)


def _difference(
    first: NDArray[np.float32], second: NDArray[np.float32], probe: Probe
) -> Difference:
    if first.shape != second.shape:
        return Difference(np.inf, np.inf)
    first, second = _compared(first, second, probe)
    first, second = first.astype(np.float64), second.astype(np.float64)
    largest = float(np.max(np.abs(first - second)))
    size = float(np.sqrt(np.mean(np.square(second))))
    if not (np.isfinite(largest) and np.isfinite(size)):
        return Difference(np.inf, np.inf)
    if largest == 0.0:
        return Difference(0.0, 0.0)
    return Difference(largest, largest / size if size else np.inf)


def _compared(
    first: NDArray[np.float32], second: NDArray[np.float32], probe: Probe
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the values without padding; arrays of different shapes are returned unchanged."""
    if first.shape != second.shape or first.ndim != 3:  # [batch, length, ...]
        return first, second
    real = probe.attention_mask.astype(bool)
    return first[real], second[real]


def _same_bits(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    one, other = (np.ascontiguousarray(values, np.float32) for values in (first, second))
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


def _order(name: str) -> tuple[int, int]:
    """Embeddings, layers by number, then what the heads give."""
    number = re.fullmatch(r"hidden_(\d+)", name)
    if number:
        return 0, int(number.group(1))
    return 1, ("hidden", "pooled", "token_logits", "next_sentence_logits", "logits").index(name)
