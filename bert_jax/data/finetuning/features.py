"""Examples as token sequences of their own lengths, and rectangular batches of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.tokenizer import Tokenizer

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
