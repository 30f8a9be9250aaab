"""Batches of examples of like length: few shapes, little padding, the same for every run.

An epoch sees every example once. Which examples meet in a batch, and the batches' order, are a pure
function of (lengths, batch size, seed, epoch).
"""

from __future__ import annotations

from collections.abc import Sequence
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


class InOrder:
    """One pass over examples, the longest first: what does not fit in memory fails at once."""

    def __init__(self, lengths: NDArray[np.int64], row_lengths: Sequence[int], batch_size: int):
        """As `ByLength`; ties keep their order."""
        self._order = np.argsort(-np.asarray(lengths), kind="stable")
        self._lengths = lengths
        self._row_lengths = np.asarray(row_lengths)
        self._batch_size = batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Batches of the pass."""
        return -(-len(self._order) // self._batch_size)

    def place(self, step: int) -> Placed:
        """Batch number `step` of the pass."""
        size = self._batch_size
        part = self._order[step * size : (step + 1) * size]
        row = np.searchsorted(self._row_lengths, self._lengths[part].max())
        return Placed(_filled(part, size), int(self._row_lengths[row]))


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
        local_rows: NDArray[np.int64] | None = None,
    ):
        """local_rows: the rows of each batch that are wanted here; by default all."""
        self.features = features
        self.plan = plan
        self._num_epochs = num_epochs
        self._local_rows = slice(None) if local_rows is None else local_rows

    def __len__(self) -> int:
        return self._num_epochs * self.plan.steps_per_epoch

    def __getitem__(self, step: int) -> Batch:
        """The batch of `step`; raises IndexError beyond the last."""
        if not 0 <= step < len(self):
            raise IndexError(f"batch {step} of {len(self)}")
        examples, length = self.plan.place(int(step))
        return self.features.batch(examples[self._local_rows], length)
