"""Represent examples as token sequences with targets."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bert_jax.tokenizers.tokenizer import Tokenizer

# The number of texts to encode at once. The tokenizers library needs about 100 bytes per token
# until the tokens are converted to arrays.
TEXTS_PER_BATCH = 1000

Ids = NDArray[np.int32]


def encode_in_batches(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yield each text's token IDs, encoding `TEXTS_PER_BATCH` texts at a time."""
    for start in range(0, len(texts), TEXTS_PER_BATCH):
        yield from tokenizer.encode_batch(texts[start : start + TEXTS_PER_BATCH])


def id_array(ids: Sequence[int]) -> Ids:
    """Convert token IDs to an array, which takes only 4 bytes per token."""
    return np.array(ids, np.int32)


logger = logging.getLogger(__name__)


def truncate_pair(
    first: Sequence[int], second: Sequence[int], budget: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Truncate a pair of segments to at most `budget` tokens in total.

    Tokens are removed from the end of the longer segment until both have the same length, and then
    from both. If the budget is odd, the originally longer segment keeps one more token (the second
    one if both were equally long). The result is the same as with the tokenizers library's
    `longest_first` strategy.
    """
    if len(first) + len(second) <= budget:
        return first, second
    kept = min(len(first), len(second), budget // 2)
    if len(first) > len(second):
        return first[: budget - kept], second[:kept]
    return first[:kept], second[: budget - kept]


def log_truncation(
    num_truncated: int, total: int, max_length: int, locations: Sequence[str]
) -> None:
    """Log how many examples were truncated, if any.

    Args:
      num_truncated: the number of truncated examples.
      total: the number of examples.
      max_length: the maximum number of tokens.
      locations: [examples] "file:line".
    """
    if num_truncated:
        source = locations[0].partition("[")[0].rpartition(":")[0] or locations[0]
        logger.info(
            "%s: %s of %s examples are truncated to max_length=%d tokens",
            *(source, f"{num_truncated:,}", f"{total:,}", max_length),
        )


def check_max_length(max_length: int, special_tokens: int) -> None:
    """Raise ValueError if `max_length` leaves no room for tokens besides the special tokens."""
    if max_length <= special_tokens:
        raise ValueError(
            f"max_length={max_length}: expected at least {special_tokens + 1}, since [CLS] and "
            f"[SEP] take {special_tokens} tokens"
        )


Batch = dict[str, NDArray]


@dataclass(frozen=True)
class Sequences:
    """Concatenated token sequences `[CLS] first [SEP]` or `[CLS] first [SEP] second [SEP]`.

    With a RoBERTa vocabulary, there are two separators between the segments.

    Attributes:
      token_ids: int32 [tokens] token IDs.
      starts: int64 [sequences + 1] where each sequence starts, followed by the end of the last one.
      second_starts: int64 [sequences] how many tokens come before the second segment.
    """

    token_ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    second_starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.second_starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens in each sequence, [sequences]."""
        return np.diff(self.starts)


@dataclass(frozen=True)
class Features:
    """Examples in the form that a model reads: token sequences and targets.

    Attributes:
      sequences: the sequences of all examples, in order.
      targets: {name: [examples, ...]}.
      token_targets: {name: [tokens]}, aligned with `sequences.token_ids`.
      sequences_per_example: the number of consecutive sequences that belong to an example: 1, or
        the number of choices in a multiple-choice task.
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
        """Whether the examples are labeled. The token target "label_weights" does not count."""
        return bool(self.targets) or bool(self.token_targets.keys() - {"label_weights"})

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of tokens in each example's longest sequence, [examples]."""
        return self.sequences.lengths.reshape(len(self), self.sequences_per_example).max(axis=1)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of all tokens and targets, in hexadecimal."""
        sequences = self.sequences
        arrays: dict[str, NDArray] = {
            "token_ids": sequences.token_ids,
            "starts": sequences.starts,
            "second_starts": sequences.second_starts,
            **self.targets,
            **self.token_targets,
        }
        digest = hashlib.sha256(str(self.sequences_per_example).encode())
        for name, array in sorted(arrays.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def batch(self, examples: NDArray[np.int64], length: int) -> Batch:
        """Assemble a batch of examples.

        Args:
          examples: [rows] indices of examples, or -1 for a row of padding.
          length: the number of tokens in a row, including padding.

        Returns:
          A dict of arrays. `token_ids`, `segment_ids` and `attention_mask` (1: token, 0: padding)
          are int32 [rows, length], or [rows, sequences_per_example, length] if examples have
          multiple sequences. The targets are [rows, ...]. The token targets are shaped like
          `token_ids` and are 0 in padding. `example_weights` are float32 [rows], and 0 for rows of
          padding.
        """
        per_example = self.sequences_per_example
        is_example = examples >= 0
        firsts = np.where(is_example, examples, 0) * per_example
        chosen = (firsts[:, None] + np.arange(per_example)).reshape(-1)
        starts = self.sequences.starts[chosen]
        sizes = self.sequences.starts[chosen + 1] - starts
        sizes = np.where(np.repeat(is_example, per_example), sizes, 0)
        assert sizes.max(initial=0) <= length, (sizes.max(), length)
        positions = np.arange(length)
        mask = positions < sizes[:, None]
        tokens = np.where(mask, starts[:, None] + positions, 0)
        second = positions >= self.sequences.second_starts[chosen][:, None]
        arrays = {
            "token_ids": np.where(mask, self.sequences.token_ids[tokens], 0),
            "segment_ids": second & mask,
            "attention_mask": mask,
        }
        arrays |= {
            name: np.where(mask, target[tokens], 0) for name, target in self.token_targets.items()
        }
        shape = (len(examples), *([per_example] if per_example > 1 else []), length)
        batch = {name: array.astype(np.int32).reshape(shape) for name, array in arrays.items()}
        for name, target in self.targets.items():
            rows = np.zeros((len(examples), *target.shape[1:]), target.dtype)
            rows[is_example] = target[examples[is_example]]
            batch[name] = rows
        return batch | {"example_weights": is_example.astype(np.float32)}


def build_sequences(
    tokenizer: Tokenizer,
    firsts: Sequence[Sequence[int] | NDArray[np.int32]],
    seconds: Sequence[Sequence[int] | NDArray[np.int32] | None],
) -> Sequences:
    """Build sequences by adding `[CLS]` and `[SEP]` to segments that are already short enough.

    Args:
      tokenizer: the tokenizer that encoded the segments.
      firsts: [sequences] token IDs of the first segment.
      seconds: [sequences] token IDs of the second segment, or None for single segments.
    """
    paired = np.array([second is not None for second in seconds], np.bool_)
    ends = np.array([1 + len(first) for first in firsts], np.int64)
    second_starts = ends + np.where(paired, tokenizer.separators_between, 1)
    sizes = np.array([0 if second is None else len(second) for second in seconds], np.int64)
    starts = np.concatenate([[0], np.cumsum(second_starts + np.where(paired, sizes + 1, 0))])
    # Every token that is not set below is a separator.
    flat = np.full(starts[-1], tokenizer.sep_id, np.int32)
    flat[starts[:-1]] = tokenizer.cls_id
    for start, begin, first, second in zip(starts, second_starts, firsts, seconds, strict=False):
        flat[start + 1 : start + 1 + len(first)] = first
        if second is not None:
            flat[start + begin : start + begin + len(second)] = second
    return Sequences(flat, starts, second_starts)
