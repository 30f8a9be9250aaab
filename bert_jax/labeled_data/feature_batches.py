"""Batch examples by length.

Batches come in only a few shapes and contain little padding, and every run gets the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.hashing import Purpose, hash_of
from bert_jax.labeled_data.features import Batch, Features

# Row lengths are multiples of this number, which makes XLA's kernels efficient on all platforms.
MULTIPLE = 8


class PlannedBatch(NamedTuple):
    """The indices [rows] of a batch's examples, -1 for padding, and the row length."""

    examples: NDArray[np.int64]
    length: int


def choose_lengths(
    lengths: NDArray[np.int64],
    num_shapes: int,
    *,
    weights: NDArray[np.int64] | None = None,
    multiple: int = MULTIPLE,
) -> tuple[int, ...]:
    """Return at most `num_shapes` row lengths that minimize the total padding.

    Each example goes into the shortest row that fits it. The lengths are found by dynamic
    programming over the multiples of `multiple` up to the longest example.

    Args:
      lengths: [examples] token counts.
      num_shapes: the maximum number of row lengths.
      weights: [examples] the number of rows that each example takes; None for one row each.
      multiple: a number that divides every row length.
    """
    assert len(lengths) and num_shapes >= 1
    units = -(-np.asarray(lengths) // multiple)
    count = np.bincount(units)
    if weights is not None:
        count = np.bincount(units, np.asarray(weights)).astype(np.int64)
    longest = len(count) - 1
    # up_to[n]: the number of examples with at most n units.
    up_to = np.concatenate([[0], np.cumsum(count[1:])])
    # cost[n]: the minimum padded size of all examples with at most n units, if the longest row has
    # n units.
    cost = np.arange(longest + 1) * up_to
    best_previous: list[NDArray[np.int64]] = []
    for _ in range(min(num_shapes, longest) - 1):
        size = np.arange(longest + 1)
        table = cost[None, :] + size[:, None] * (up_to[:, None] - up_to[None, :])
        table = np.where(size[None, :] <= size[:, None], table, np.iinfo(np.int64).max)
        best_previous.append(table.argmin(axis=1))
        cost = table.min(axis=1)
    chosen = [longest]
    for previous in reversed(best_previous):
        chosen.append(int(previous[chosen[-1]]))
    return tuple(sorted({size * multiple for size in chosen if size}))


class ByLength:
    """Batches for training: examples grouped by length and reshuffled every epoch.

    If the examples of one row length do not fill their last batch, the leftovers join the examples
    of the next longer row length. An epoch therefore has at most one incomplete batch. That
    batch is filled out with rows of padding, and its row length fits its longest example.

    Args:
      lengths: [examples] token counts.
      row_lengths: the row lengths in ascending order; the last one fits the longest example.
      batch_size: the number of rows in a batch.
      seed: the seed for shuffling.
    """

    def __init__(
        self, lengths: NDArray[np.int64], row_lengths: Sequence[int], batch_size: int, seed: int
    ):
        assert len(lengths) and max(lengths) <= row_lengths[-1]
        self._rows = np.searchsorted(np.asarray(row_lengths), lengths)
        self._row_lengths = tuple(row_lengths)
        self._batch_size = batch_size
        self._seed = seed
        self._batches_of_epoch = lru_cache(maxsize=2)(self._plan_epoch)

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches per epoch."""
        return -(-len(self._rows) // self._batch_size)

    def planned_batch(self, step: int) -> PlannedBatch:
        """Return the batch for a step, counted from the start of epoch 0."""
        epoch, index = divmod(step, self.steps_per_epoch)
        return self._batches_of_epoch(epoch)[index]

    def _plan_epoch(self, epoch: int) -> list[PlannedBatch]:
        size = self._batch_size
        draws = hash_of(self._seed, Purpose.SHUFFLE, epoch, np.arange(len(self._rows)))
        order = np.argsort(draws, kind="stable")
        batches, remainder = [], np.empty(0, np.int64)
        for number, length in enumerate(self._row_lengths):
            examples = np.concatenate([remainder, order[self._rows[order] == number]])
            end = len(examples) // size * size
            batches += [PlannedBatch(part, length) for part in examples[:end].reshape(-1, size)]
            remainder = examples[end:]
        if len(remainder):
            length = self._row_lengths[self._rows[remainder].max()]
            batches.append(PlannedBatch(_padded(remainder, size), length))
        draws = hash_of(self._seed, Purpose.BATCH_ORDER, epoch, np.arange(len(batches)))
        return [batches[index] for index in np.argsort(draws, kind="stable")]


# In bfloat16 on a CPU, batches with more tokens than this (including padding) take longer per row,
# since a layer's activations no longer fit in the caches. For rows of 384 tokens, BERT-mini took 9
# ms per row in batches of 8 rows, 12 ms in batches of 16, and 13 ms in batches of 64 (2 cores of a
# Xeon, 2026-11). In float32, where computation takes longer, batch size makes no difference.
TOKENS_IN_A_CACHE = 4096


def rows_by_length(
    row_lengths: Sequence[int], max_rows: int, max_tokens: int | None, multiple: int = 1
) -> tuple[int, ...]:
    """Choose how many rows a batch has for each row length.

    Args:
      row_lengths: the lengths that rows are padded to.
      max_rows: the maximum number of rows, which must be a multiple of `multiple`.
      max_tokens: the maximum number of tokens in a batch, or None for no limit. The limit is
        exceeded if even `multiple` rows have more tokens.
      multiple: a number that divides the number of rows in every batch.
    """
    assert max_rows % multiple == 0, (max_rows, multiple)
    if max_tokens is None:
        return (max_rows,) * len(row_lengths)
    fitting = [max_tokens // length // multiple * multiple for length in row_lengths]
    return tuple(min(max_rows, max(multiple, rows)) for rows in fitting)


class InOrder:
    """Batches for a single pass, longest first so that out-of-memory errors occur early.

    Args:
      lengths: [examples] token counts. Examples of the same length keep their order.
      row_lengths: the row lengths in ascending order; the last one fits the longest example.
      batch_sizes: the number of rows in a batch, for each row length.
    """

    def __init__(
        self,
        lengths: NDArray[np.int64],
        row_lengths: Sequence[int],
        batch_sizes: Sequence[int],
    ):
        assert len(lengths) and max(lengths) <= row_lengths[-1]
        order = np.argsort(-np.asarray(lengths), kind="stable")
        rows = np.searchsorted(np.asarray(row_lengths), np.asarray(lengths)[order])
        self._batches: list[PlannedBatch] = []
        start = 0
        while start < len(order):
            number = int(rows[start])
            size = batch_sizes[number]
            part = order[start : start + size]
            self._batches.append(PlannedBatch(_padded(part, size), int(row_lengths[number])))
            start += size

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches."""
        return len(self._batches)

    def planned_batch(self, step: int) -> PlannedBatch:
        """Return a batch by its number, counted from 0."""
        return self._batches[step]


def _padded(examples: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    return np.concatenate([examples, np.full(size - len(examples), -1)])


class FeatureBatches:
    """The batches for every step of one or more epochs, for `bert_jax.pipeline.loader.Loader`.

    Args:
      features: the examples.
      plan: the plan that assigns examples to batches.
      num_epochs: the number of epochs.
      local_rows: a function that maps a batch's number of rows to the indices of the rows that this
        process loads, or None to load all rows.
    """

    def __init__(
        self,
        features: Features,
        plan: ByLength | InOrder,
        *,
        num_epochs: int = 1,
        local_rows: Callable[[int], NDArray[np.int64]] | None = None,
    ):
        self.features = features
        self.plan = plan
        self._num_epochs = num_epochs
        self._local_rows = local_rows

    def __len__(self) -> int:
        return self._num_epochs * self.plan.steps_per_epoch

    def __getitem__(self, step: int) -> Batch:
        """Return the batch for a step."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} is out of range. Steps run from 0 to {len(self) - 1}")
        examples, length = self.plan.planned_batch(int(step))
        if self._local_rows is not None:
            examples = examples[self._local_rows(len(examples))]
        return self.features.batch(examples, length)
