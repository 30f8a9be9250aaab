"""Represent examples as token sequences, and batch them by length.

Batches have few shapes and little padding, and are the same in every run.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.hashing import Purpose, hash_of
from bert_jax.tokenizers.tokenizer import Tokenizer

# Texts encoded at once: the tokenizers library holds some 100 bytes a token until they are arrays.
TEXTS_AT_ONCE = 1000

Ids = NDArray[np.int32]


def encoded_by_parts(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yields the ids of each text; those of `TEXTS_AT_ONCE` are held at a time."""
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        yield from tokenizer.encode_batch(texts[start : start + TEXTS_AT_ONCE])


def as_ids(ids: Sequence[int]) -> Ids:
    """To be kept: 4 bytes a token."""
    return np.array(ids, np.int32)


logger = logging.getLogger(__name__)


def cut_pair(
    first: Sequence[int], second: Sequence[int], budget: int
) -> tuple[Sequence[int], Sequence[int]]:
    """The beginnings of two segments that together have at most `budget` tokens.

    The longer one is cut until both are equally long, then both; of an odd budget the one that was
    longer (of two equal ones the second) keeps one more. The same tokens as the `longest_first`
    strategy of the tokenizers library keeps.
    """
    if len(first) + len(second) <= budget:
        return first, second
    kept = min(len(first), len(second), budget // 2)
    if len(first) > len(second):
        return first[: budget - kept], second[:kept]
    return first[:kept], second[: budget - kept]


def report_cut(num_cut: int, total: int, max_length: int, places: Sequence[str]) -> None:
    """Logs how many of the examples that stand at `places` ("file:line") were cut, if any."""
    if num_cut:
        source = places[0].partition("[")[0].rpartition(":")[0] or places[0]
        logger.info(
            "%s: %s of %s examples are cut to max_length=%d tokens",
            *(source, f"{num_cut:,}", f"{total:,}", max_length),
        )


def check_max_length(max_length: int, special_tokens: int) -> None:
    """ValueError if `max_length` leaves no room for a token of text beside the special tokens."""
    if max_length <= special_tokens:
        raise ValueError(
            f"max_length is {max_length}; expected at least {special_tokens + 1}: "
            f"{special_tokens} tokens are [CLS] and [SEP]"
        )


Batch = dict[str, NDArray]


@dataclass(frozen=True)
class Sequences:
    """Token sequences `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`, end to end.

    Of RoBERTa's vocabulary with two separators between.

    token_ids: int32 [tokens]. starts: int64 [sequences + 1], where each begins, and the end.
    second_starts: int64 [sequences], tokens of a sequence that come before its second segment.
    """

    token_ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    second_starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.second_starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[sequences] tokens of each."""
        return np.diff(self.starts)


@dataclass(frozen=True)
class Features:
    """What a model reads of every example, and what it is to answer.

    sequences_per_example: sequences of an example, which follow each other: 1, or its choices.
    targets: by name [examples, ...]. token_targets: by name [tokens], as `sequences.token_ids`.
    """

    sequences: Sequences
    targets: Mapping[str, NDArray] = field(default_factory=dict)
    token_targets: Mapping[str, NDArray] = field(default_factory=dict)
    sequences_per_example: int = 1

    def __post_init__(self) -> None:
        assert len(self.sequences) % self.sequences_per_example == 0
        assert all(len(array) == len(self) for array in self.targets.values())
        tokens = len(self.sequences.token_ids)
        assert all(array.shape == (tokens,) for array in self.token_targets.values())

    def __len__(self) -> int:
        return len(self.sequences) // self.sequences_per_example

    @property
    def has_targets(self) -> bool:
        """Whether it is known what the answers are."""
        return bool(self.targets) or "labels" in self.token_targets

    @property
    def lengths(self) -> NDArray[np.int64]:
        """[examples] tokens of the longest sequence of each."""
        return self.sequences.lengths.reshape(len(self), self.sequences_per_example).max(axis=1)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all tokens and targets."""
        sequences = self.sequences
        arrays: dict[str, NDArray] = {
            "token_ids": sequences.token_ids,
            "starts": sequences.starts,
            "second_starts": sequences.second_starts,
            **self.targets,
            **self.token_targets,
        }
        found = hashlib.sha256(str(self.sequences_per_example).encode())
        for name, array in sorted(arrays.items()):
            found.update(f"{name} {array.dtype.str} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()

    def batch(self, examples: NDArray[np.int64], length: int) -> Batch:
        """Examples side by side; -1 stands for a row of padding.

        Returns:
          int32 `token_ids`, `segment_ids`, `attention_mask` (1: token, 0: padding) of shape
          [rows, length] ([rows, sequences_per_example, length] if that is not 1), the targets
          [rows, ...], the token targets [rows, length], 0 in padding, and float32
          `example_weights` [rows], 0 for rows of padding.
        """
        each = self.sequences_per_example
        there = examples >= 0
        chosen = (np.where(there, examples, 0)[:, None] * each + np.arange(each)).reshape(-1)
        starts = self.sequences.starts[chosen]
        sizes = np.where(np.repeat(there, each), self.sequences.starts[chosen + 1] - starts, 0)
        assert sizes.max(initial=0) <= length, (sizes.max(), length)
        places = np.arange(length)
        mask = places < sizes[:, None]
        tokens = np.where(mask, starts[:, None] + places, 0)
        second = places >= self.sequences.second_starts[chosen][:, None]
        arrays = {
            "token_ids": np.where(mask, self.sequences.token_ids[tokens], 0),
            "segment_ids": second & mask,
            "attention_mask": mask,
        }
        arrays |= {
            name: np.where(mask, target[tokens], 0) for name, target in self.token_targets.items()
        }
        shape = (len(examples), length) if each == 1 else (len(examples), each, length)
        batch = {name: array.astype(np.int32).reshape(shape) for name, array in arrays.items()}
        for name, target in self.targets.items():
            rows = np.zeros((len(examples), *target.shape[1:]), target.dtype)
            rows[there] = target[examples[there]]
            batch[name] = rows
        return batch | {"example_weights": there.astype(np.float32)}


def sequences_of(
    tokenizer: Tokenizer,
    firsts: Sequence[Sequence[int] | NDArray[np.int32]],
    seconds: Sequence[Sequence[int] | NDArray[np.int32] | None],
) -> Sequences:
    """Puts `[CLS]` and `[SEP]` around the ids of segments that are short enough already."""
    paired = np.array([second is not None for second in seconds], np.bool_)
    ends = np.array([1 + len(first) for first in firsts], np.int64)
    second_starts = ends + np.where(paired, tokenizer.separators_between, 1)
    sizes = np.array([0 if second is None else len(second) for second in seconds], np.int64)
    starts = np.concatenate([[0], np.cumsum(second_starts + np.where(paired, sizes + 1, 0))])
    # What is not written below is a separator.
    flat = np.full(starts[-1], tokenizer.sep_id, np.int32)
    flat[starts[:-1]] = tokenizer.cls_id
    for start, begin, first, second in zip(starts, second_starts, firsts, seconds, strict=False):
        flat[start + 1 : start + 1 + len(first)] = first
        if second is not None:
            flat[start + begin : start + begin + len(second)] = second
    return Sequences(flat, starts, second_starts)


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
    """The batches of some epochs, by step, for `bert_jax.pipeline.loader.Loader`."""

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
