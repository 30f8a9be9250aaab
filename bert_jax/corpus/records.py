"""Encode records, and decode batches of them into flat arrays.

A record holds one training sequence, which consists of one or more *fragments*. A fragment is a run
of consecutive tokens from one document, with the offsets at which sentences begin.

Layout, in little-endian 16-bit words::

    num_fragments
    (document_low, document_high, num_tokens, num_starts)   for each fragment
    sentence starts of all fragments                        one word each
    token ids of all fragments                              one or two words each
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WORD = np.dtype("<u2")
HEADER_WORDS = 4
MAX_WORD = 0xFFFF
MAX_DOCUMENT_ID = 0xFFFFFFFF
MAX_TOKEN_ID = {2: 0xFFFF, 4: 0x7FFFFFFF}  # batches are int32


class CorruptRecordError(ValueError):
    """An error for a record whose bytes do not follow the layout.

    Attributes:
      index: the position of the record in the decoded list.
      reason: a description of the problem.
    """

    def __init__(self, index: int, reason: str):
        super().__init__(f"record {index} of the decoded records is corrupt: {reason}")
        self.index = index
        self.reason = reason


@dataclass(frozen=True)
class Fragment:
    """A run of consecutive tokens from one document.

    Attributes:
      document_id: the document's number in the corpus, below 2**32.
      token_ids: [num_tokens] ids, at least one.
      sentence_starts: [num_starts] strictly ascending offsets into `token_ids` at which sentences
        begin. They do not include 0 if the fragment begins within a sentence.
    """

    document_id: int
    token_ids: NDArray[np.integer]
    sentence_starts: NDArray[np.integer]


@dataclass(frozen=True)
class RecordBatch:
    """A batch of records as flat arrays, with the fragments of all records in their original order.

    Attributes:
      num_records: the number of records.
      fragment_record: [num_fragments] int64, the record that each fragment is in, ascending.
      fragment_document: [num_fragments] int64, the document id of each fragment.
      fragment_offset: [num_fragments] int64, where each fragment begins in `tokens`.
      fragment_length: [num_fragments] int64, the number of tokens in each fragment.
      starts_offset: [num_fragments] int64, where each fragment's sentence starts begin in `starts`.
      starts_length: [num_fragments] int64, the number of sentence starts in each fragment.
      starts: [num_starts] int64, the sentence starts, as offsets within their fragment.
      tokens: [num_tokens] int32, the token ids.
    """

    num_records: int
    fragment_record: NDArray[np.int64]
    fragment_document: NDArray[np.int64]
    fragment_offset: NDArray[np.int64]
    fragment_length: NDArray[np.int64]
    starts_offset: NDArray[np.int64]
    starts_length: NDArray[np.int64]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int32]

    def fragment(self, index: int) -> Fragment:
        """Return one fragment as it was encoded. This is slow and meant for inspection only."""
        begin, start = self.fragment_offset[index], self.starts_offset[index]
        return Fragment(
            document_id=int(self.fragment_document[index]),
            token_ids=self.tokens[begin : begin + self.fragment_length[index]],
            sentence_starts=self.starts[start : start + self.starts_length[index]],
        )


def bytes_of_id(vocab_size: int) -> int:
    """Return how many bytes a stored token id takes, 2 or 4."""
    return 2 if vocab_size <= 1 << 16 else 4


def token_dtype(token_bytes: int) -> np.dtype:
    """Return the data type in which token ids are stored.

    Raises:
      ValueError: `token_bytes` is not 2 or 4.
    """
    if token_bytes == 2:
        return np.dtype("<u2")
    if token_bytes == 4:
        return np.dtype("<u4")
    raise ValueError(f"token_bytes={token_bytes}: expected 2 or 4.")


def encode_record(fragments: Sequence[Fragment], token_bytes: int) -> bytes:
    """Return the bytes of one record.

    Raises:
      ValueError: there are no fragments or too many of them, a fragment is empty or too long for a
        16-bit count, one of its ids does not fit in `token_bytes`, or its sentence starts are not
        strictly ascending offsets within it.
    """
    dtype = token_dtype(token_bytes)
    if not 0 < len(fragments) <= MAX_WORD:
        raise ValueError(f"a record with {len(fragments)} fragments: expected 1 to {MAX_WORD}.")
    header = np.empty(1 + HEADER_WORDS * len(fragments), WORD)
    header[0] = len(fragments)
    starts, tokens = [], []
    for index, fragment in enumerate(fragments):
        fragment_tokens = np.asarray(fragment.token_ids, np.int64)
        fragment_starts = np.asarray(fragment.sentence_starts, np.int64)
        _check_fragment(
            fragment.document_id, fragment_tokens, fragment_starts, MAX_TOKEN_ID[token_bytes]
        )
        at = 1 + HEADER_WORDS * index
        header[at : at + HEADER_WORDS] = (
            fragment.document_id & MAX_WORD,
            fragment.document_id >> 16,
            len(fragment_tokens),
            len(fragment_starts),
        )
        starts.append(fragment_starts.astype(WORD).tobytes())
        tokens.append(fragment_tokens.astype(dtype).tobytes())
    return b"".join([header.tobytes(), *starts, *tokens])


def decode_records(blobs: Sequence[bytes], token_bytes: int) -> RecordBatch:
    """Decode records into flat arrays. The overhead of Python is per call, not per token.

    Raises:
      CorruptRecordError: the bytes of a record contradict its header.
    """
    words_per_token = token_dtype(token_bytes).itemsize // WORD.itemsize
    num_bytes = np.fromiter(map(len, blobs), np.int64, len(blobs))
    _refuse((num_bytes % 2 != 0) | (num_bytes < 2), "its size is not a whole number of words")
    words = np.frombuffer(b"".join(blobs), WORD)
    record_end = np.cumsum(num_bytes // 2)
    record_begin = record_end - num_bytes // 2

    num_fragments = words[record_begin].astype(np.int64)
    starts_begin = record_begin + 1 + HEADER_WORDS * num_fragments
    _refuse((num_fragments == 0) | (starts_begin > record_end), "its header is truncated")
    fragment_record = np.repeat(np.arange(len(blobs)), num_fragments)
    first_fragment = np.cumsum(num_fragments) - num_fragments
    within = np.arange(len(fragment_record)) - first_fragment[fragment_record]
    header_at = (record_begin + 1)[fragment_record] + HEADER_WORDS * within
    header = words[header_at[:, None] + np.arange(HEADER_WORDS)].astype(np.int64)
    document = header[:, 0] | header[:, 1] << 16
    fragment_length, starts_length = header[:, 2], header[:, 3]

    record_starts = _sum_by(starts_length, first_fragment)
    record_tokens = _sum_by(fragment_length, first_fragment)
    tokens_begin = starts_begin + record_starts
    _refuse(
        tokens_begin + words_per_token * record_tokens != record_end,
        "its size does not match its header",
    )
    starts = words[ranges(starts_begin, record_starts)].astype(np.int64)
    starts_offset = np.cumsum(starts_length) - starts_length
    _check_starts(starts, starts_length, fragment_length, fragment_record)
    return RecordBatch(
        num_records=len(blobs),
        fragment_record=fragment_record,
        fragment_document=document,
        fragment_offset=np.cumsum(fragment_length) - fragment_length,
        fragment_length=fragment_length,
        starts_offset=starts_offset,
        starts_length=starts_length,
        starts=starts,
        tokens=_tokens(words, tokens_begin, record_tokens, words_per_token),
    )


def ranges(begin: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the concatenation of all ranges begin[i] .. begin[i] + length[i] - 1."""
    shift = begin - (np.cumsum(length) - length)
    return np.repeat(shift, length) + np.arange(int(length.sum()))


def _check_fragment(
    document_id: int, tokens: NDArray[np.int64], starts: NDArray[np.int64], max_id: int
) -> None:
    if not 0 <= document_id <= MAX_DOCUMENT_ID:
        raise ValueError(f"document_id={document_id}: expected 0 to {MAX_DOCUMENT_ID}.")
    if not 0 < len(tokens) <= MAX_WORD:
        raise ValueError(f"a fragment with {len(tokens)} tokens: expected 1 to {MAX_WORD}.")
    if tokens.min() < 0 or tokens.max() > max_id:
        raise ValueError(
            f"token ids from {tokens.min()} to {tokens.max()}: expected 0 to {max_id}."
        )
    if len(starts) and (starts[0] < 0 or starts[-1] >= len(tokens) or (np.diff(starts) <= 0).any()):
        raise ValueError(
            f"sentence_starts={starts.tolist()}: expected strictly ascending offsets from 0 to "
            f"{len(tokens) - 1}."
        )


def _refuse(bad: NDArray[np.bool_], reason: str) -> None:
    if bad.any():
        raise CorruptRecordError(int(np.argmax(bad)), reason)


def _check_starts(
    starts: NDArray[np.int64],
    starts_length: NDArray[np.int64],
    fragment_length: NDArray[np.int64],
    fragment_record: NDArray[np.int64],
) -> None:
    """Raise CorruptRecordError for invalid sentence starts and for empty fragments.

    Sentence starts are invalid if they are out of order or outside their fragment.
    """
    owner = np.repeat(np.arange(len(starts_length)), starts_length)
    bad = np.zeros(len(starts), bool)
    bad[1:] = (starts[1:] <= starts[:-1]) & (owner[1:] == owner[:-1])
    bad |= starts >= fragment_length[owner]
    if bad.any():
        record = int(fragment_record[owner[np.argmax(bad)]])
        raise CorruptRecordError(record, "its sentence starts are not ascending within a fragment")
    if (fragment_length == 0).any():
        record = int(fragment_record[np.argmax(fragment_length == 0)])
        raise CorruptRecordError(record, "one of its fragments is empty")


def _sum_by(values: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sums of `values` over the non-empty runs that begin at `first`."""
    return np.add.reduceat(values, first) if len(first) else np.zeros(0, np.int64)


def _tokens(
    words: NDArray[np.uint16],
    begin: NDArray[np.int64],
    count: NDArray[np.int64],
    words_per_token: int,
) -> NDArray[np.int32]:
    token_words = words[ranges(begin, count * words_per_token)]
    if words_per_token == 1:
        return token_words.astype(np.int32)
    return token_words.view("<u4").astype(np.int32)
