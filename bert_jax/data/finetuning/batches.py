"""Batches of examples of like length: few shapes, little padding, the same for every run.

An epoch sees every example once. Which examples meet in a batch, and the batches' order, are a pure
function of (lengths, batch size, seed, epoch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.finetuning.features import Batch, Features
from bert_jax.data.hashing import Purpose, hash_of

# Lengths are multiples of this: XLA's kernels like such rows on every platform.
MULTIPLE = 8


class Placed(NamedTuple):
    """A batch before it is made: [rows] examples, -1 for padding, and the length of its rows."""

    examples: NDArray[np.int64]
    length: int


def choose_lengths(lengths: NDArray[np.int64], num_shapes: int) -> tuple[int, ...]:
    """The row lengths, at most `num_shapes`, that cost the fewest tokens of padding.

    Every example goes to the shortest row that holds it. Found by dynamic programming over the
    multiples of 8 up to the longest example.
    """
    assert len(lengths) and num_shapes >= 1
    steps = -(-np.asarray(lengths) // MULTIPLE)
    count = np.bincount(steps)
    longest = len(count) - 1
    up_to = np.concatenate([[0], np.cumsum(count[1:])])  # examples of at most n steps, n = 0, 1, ..
    # cost[n]: the least padded size of all examples of at most n steps in rows of which the
    # longest has n.
    cost = np.arange(longest + 1) * up_to
    before: list[NDArray[np.int64]] = []
    for _ in range(min(num_shapes, longest) - 1):
        own = np.arange(longest + 1)
        table = cost[None, :] + own[:, None] * (up_to[:, None] - up_to[None, :])
        table = np.where(own[None, :] <= own[:, None], table, np.iinfo(np.int64).max)
        before.append(table.argmin(axis=1))
        cost = table.min(axis=1)
    chosen = [longest]
    for choice in reversed(before):
        chosen.append(int(choice[chosen[-1]]))
    return tuple(sorted({step * MULTIPLE for step in chosen if step}))


class ByLength:
    """The batches of every epoch over examples of given lengths.

    What is left over when the examples of a row length are cut into batches joins those of the next
    longer one: an epoch has one ragged batch at most, whose missing rows are padding. It is as long
    as its longest example asks for.
    """

    def __init__(
        self, lengths: NDArray[np.int64], row_lengths: Sequence[int], batch_size: int, seed: int
    ):
        """Lays out batches of `batch_size` rows; `row_lengths` ascend to the longest example."""
        assert len(lengths) and max(lengths) <= row_lengths[-1]
        self._rows = np.searchsorted(np.asarray(row_lengths), lengths)
        self._row_lengths = tuple(row_lengths)
        self._batch_size = batch_size
        self._seed = seed
        self._of_epoch = lru_cache(maxsize=2)(self._lay_out)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""
        return -(-len(self._rows) // self._batch_size)

    def place(self, step: int) -> Placed:
        """The batch of a step, counted from the first of epoch 0."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return self._of_epoch(epoch)[index]

    def _lay_out(self, epoch: int) -> list[Placed]:
        size = self._batch_size
        draws = hash_of(self._seed, Purpose.SHUFFLE, epoch, np.arange(len(self._rows)))
        order = np.argsort(draws, kind="stable")
        batches, carried = [], np.empty(0, np.int64)
        for number, length in enumerate(self._row_lengths):
            here = np.concatenate([carried, order[self._rows[order] == number]])
            whole = len(here) // size * size
            batches += [Placed(part, length) for part in here[:whole].reshape(-1, size)]
            carried = here[whole:]
        if len(carried):
            length = self._row_lengths[self._rows[carried].max()]
            batches.append(Placed(_filled(carried, size), length))
        turn = hash_of(self._seed, Purpose.BATCH_ORDER, epoch, np.arange(len(batches)))
        return [batches[index] for index in np.argsort(turn, kind="stable")]


# The tokens of a batch, padding included, from which on a CPU takes longer for a row in bfloat16:
# what a layer keeps no longer stays in its caches. BERT-mini took 9 ms for a row of 384 tokens in
# batches of 8 rows, 12 in 16 and 13 in 64 (2 cores of a Xeon, 2026-11). In float32, where computing
# takes longer, it makes no difference.
TOKENS_IN_A_CACHE = 4096


def rows_by_length(
    row_lengths: Sequence[int], most_rows: int, most_tokens: int | None, multiple: int = 1
) -> tuple[int, ...]:
    """How many rows a batch has at each length: `most_rows`, or what `most_tokens` hold.

    Multiples of `multiple`, which `most_rows` is one of, and not less than it.
    """
    assert most_rows % multiple == 0, (most_rows, multiple)
    if most_tokens is None:
        return (most_rows,) * len(row_lengths)
    fitting = [most_tokens // length // multiple * multiple for length in row_lengths]
    return tuple(min(most_rows, max(multiple, rows)) for rows in fitting)


class InOrder:
    """One pass over examples, the longest first: what does not fit in memory fails at once."""

    def __init__(
        self,
        lengths: NDArray[np.int64],
        row_lengths: Sequence[int],
        batch_sizes: Sequence[int],
    ):
        """As `ByLength`, with a batch size for each row length; ties keep their order."""
        assert len(lengths) and max(lengths) <= row_lengths[-1]
        order = np.argsort(-np.asarray(lengths), kind="stable")
        rows = np.searchsorted(np.asarray(row_lengths), np.asarray(lengths)[order])
        self._batches: list[Placed] = []
        start = 0
        while start < len(order):
            number = int(rows[start])
            size = batch_sizes[number]
            part = order[start : start + size]
            self._batches.append(Placed(_filled(part, size), int(row_lengths[number])))
            start += size

    @property
    def steps_per_epoch(self) -> int:
        """Batches of the pass."""
        return len(self._batches)

    def place(self, step: int) -> Placed:
        """Batch number `step` of the pass."""
        return self._batches[step]


def _filled(examples: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    return np.concatenate([examples, np.full(size - len(examples), -1)])


class FeatureBatches:
    """The batches of some epochs, by step, for `bert_jax.data.loader.Loader`."""

    def __init__(
        self,
        features: Features,
        plan: ByLength | InOrder,
        *,
        num_epochs: int = 1,
        local_rows: Callable[[int], NDArray[np.int64]] | None = None,
    ):
        """local_rows: which rows of a batch of so many are wanted here; by default all."""
        self.features = features
        self.plan = plan
        self._num_epochs = num_epochs
        self._local_rows = local_rows

    def __len__(self) -> int:
        return self._num_epochs * self.plan.steps_per_epoch

    def __getitem__(self, step: int) -> Batch:
        """The batch of `step`; raises IndexError beyond the last."""
        if not 0 <= step < len(self):
            raise IndexError(f"batch {step} of {len(self)}")
        examples, length = self.plan.place(int(step))
        if self._local_rows is not None:
            examples = examples[self._local_rows(len(examples))]
        return self.features.batch(examples, length)
