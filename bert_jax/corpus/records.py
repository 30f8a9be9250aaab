"""The bytes of one record, and many records at once as flat arrays.

A record holds what one training sequence needs: one or more *pieces*, each a run of consecutive
tokens of one document together with the offsets at which its sentences begin.

Layout, in little-endian 16-bit words::

    num_pieces
    (document_low, document_high, num_tokens, num_starts)   for each piece
    sentence starts of all pieces                           one word each
    token ids of all pieces                                 one or two words each
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
    """A record's bytes do not follow the layout. `index` is its place in the list decoded."""

    def __init__(self, index: int, reason: str):
        super().__init__(f"record {index} of those read is corrupt: {reason}")
        self.index = index
        self.reason = reason


@dataclass(frozen=True)
class Piece:
    """A run of consecutive tokens of one document.

    Attributes:
        document_id: ordinal of the document in the corpus, below 2**32.
        token_ids: [num_tokens] ids, at least one.
        sentence_starts: [num_starts] strictly ascending offsets into `token_ids` at which a
            sentence truly begins; a piece that continues a sentence does not list 0.
    """

    document_id: int
    token_ids: NDArray[np.integer]
    sentence_starts: NDArray[np.integer]


@dataclass(frozen=True)
class RecordBatch:
    """Many records as flat arrays; pieces are in record order, then in their order there.

    Attributes:
        num_records: how many records were decoded.
        piece_record: [num_pieces] int64, the record a piece belongs to, ascending.
        piece_document: [num_pieces] int64 document ids.
        piece_offset: [num_pieces] int64, where the piece's tokens begin in `tokens`.
        piece_length: [num_pieces] int64, number of tokens.
        starts_offset: [num_pieces] int64, where the piece's starts begin in `starts`.
        starts_length: [num_pieces] int64, number of sentence starts.
        starts: [num_starts] int64 offsets relative to their piece.
        tokens: [num_tokens] int32.
    """

    num_records: int
    piece_record: NDArray[np.int64]
    piece_document: NDArray[np.int64]
    piece_offset: NDArray[np.int64]
    piece_length: NDArray[np.int64]
    starts_offset: NDArray[np.int64]
    starts_length: NDArray[np.int64]
    starts: NDArray[np.int64]
    tokens: NDArray[np.int32]

    def piece(self, index: int) -> Piece:
        """Returns one piece as written; for inspection, not for speed."""
        begin, start = self.piece_offset[index], self.starts_offset[index]
        return Piece(
            document_id=int(self.piece_document[index]),
            token_ids=self.tokens[begin : begin + self.piece_length[index]],
            sentence_starts=self.starts[start : start + self.starts_length[index]],
        )


def bytes_of_id(vocab_size: int) -> int:
    """Return the number of bytes of a stored token id, 2 or 4."""
    return 2 if vocab_size <= 1 << 16 else 4


def token_dtype(token_bytes: int) -> np.dtype:
    """Returns the stored type of a token id: 2 bytes below 65,536 entries, else 4."""
    if token_bytes == 2:
        return np.dtype("<u2")
    if token_bytes == 4:
        return np.dtype("<u4")
    raise ValueError(f"token_bytes is {token_bytes}; a token id is stored in 2 or in 4 bytes")


def encode_record(pieces: Sequence[Piece], token_bytes: int) -> bytes:
    """Returns the bytes of one record.

    Raises:
        ValueError: a piece is empty, too long for a 16-bit count, or does not fit `token_bytes`,
            or its sentence starts are not strictly ascending inside it.
    """
    dtype = token_dtype(token_bytes)
    if not 0 < len(pieces) <= MAX_WORD:
        raise ValueError(f"a record holds 1 to {MAX_WORD} pieces, not {len(pieces)}")
    header = np.empty(1 + HEADER_WORDS * len(pieces), WORD)
    header[0] = len(pieces)
    starts, tokens = [], []
    for index, piece in enumerate(pieces):
        piece_tokens = np.asarray(piece.token_ids, np.int64)
        piece_starts = np.asarray(piece.sentence_starts, np.int64)
        _check_piece(piece.document_id, piece_tokens, piece_starts, MAX_TOKEN_ID[token_bytes])
        at = 1 + HEADER_WORDS * index
        header[at : at + HEADER_WORDS] = (
            piece.document_id & MAX_WORD,
            piece.document_id >> 16,
            len(piece_tokens),
            len(piece_starts),
        )
        starts.append(piece_starts.astype(WORD).tobytes())
        tokens.append(piece_tokens.astype(dtype).tobytes())
    return b"".join([header.tobytes(), *starts, *tokens])


def decode_records(blobs: Sequence[bytes], token_bytes: int) -> RecordBatch:
    """Returns the records as flat arrays, with work in Python only per call, not per token.

    Raises:
        CorruptRecordError: the bytes of a record contradict their own header.
    """
    words_per_token = token_dtype(token_bytes).itemsize // WORD.itemsize
    num_bytes = np.fromiter(map(len, blobs), np.int64, len(blobs))
    _refuse((num_bytes % 2 != 0) | (num_bytes < 2), "its size is no whole number of words")
    words = np.frombuffer(b"".join(blobs), WORD)
    record_end = np.cumsum(num_bytes // 2)
    record_begin = record_end - num_bytes // 2

    num_pieces = words[record_begin].astype(np.int64)
    starts_begin = record_begin + 1 + HEADER_WORDS * num_pieces
    _refuse((num_pieces == 0) | (starts_begin > record_end), "its header is cut short")
    piece_record = np.repeat(np.arange(len(blobs)), num_pieces)
    first_piece = np.cumsum(num_pieces) - num_pieces
    within = np.arange(len(piece_record)) - first_piece[piece_record]
    header_at = (record_begin + 1)[piece_record] + HEADER_WORDS * within
    header = words[header_at[:, None] + np.arange(HEADER_WORDS)].astype(np.int64)
    document = header[:, 0] | header[:, 1] << 16
    piece_length, starts_length = header[:, 2], header[:, 3]

    record_starts = _sum_by(starts_length, first_piece)
    record_tokens = _sum_by(piece_length, first_piece)
    tokens_begin = starts_begin + record_starts
    _refuse(
        tokens_begin + words_per_token * record_tokens != record_end,
        "its size differs from what its header says",
    )
    starts = words[ranges(starts_begin, record_starts)].astype(np.int64)
    starts_offset = np.cumsum(starts_length) - starts_length
    _check_starts(starts, starts_length, piece_length, piece_record)
    return RecordBatch(
        num_records=len(blobs),
        piece_record=piece_record,
        piece_document=document,
        piece_offset=np.cumsum(piece_length) - piece_length,
        piece_length=piece_length,
        starts_offset=starts_offset,
        starts_length=starts_length,
        starts=starts,
        tokens=_tokens(words, tokens_begin, record_tokens, words_per_token),
    )


def ranges(begin: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the concatenation of begin[i] .. begin[i] + length[i] - 1."""
    shift = begin - (np.cumsum(length) - length)
    return np.repeat(shift, length) + np.arange(int(length.sum()))


def _check_piece(
    document_id: int, tokens: NDArray[np.int64], starts: NDArray[np.int64], max_id: int
) -> None:
    if not 0 <= document_id <= MAX_DOCUMENT_ID:
        raise ValueError(f"document_id {document_id} is outside 0..{MAX_DOCUMENT_ID}")
    if not 0 < len(tokens) <= MAX_WORD:
        raise ValueError(f"a piece holds 1 to {MAX_WORD} tokens, not {len(tokens)}")
    if tokens.min() < 0 or tokens.max() > max_id:
        raise ValueError(f"token ids {tokens.min()}..{tokens.max()} do not fit 0..{max_id}")
    if len(starts) and (starts[0] < 0 or starts[-1] >= len(tokens) or (np.diff(starts) <= 0).any()):
        raise ValueError(
            f"sentence starts must ascend within 0..{len(tokens) - 1}, got {starts.tolist()}"
        )


def _refuse(bad: NDArray[np.bool_], reason: str) -> None:
    if bad.any():
        raise CorruptRecordError(int(np.argmax(bad)), reason)


def _check_starts(
    starts: NDArray[np.int64],
    starts_length: NDArray[np.int64],
    piece_length: NDArray[np.int64],
    piece_record: NDArray[np.int64],
) -> None:
    """Refuses sentence starts outside their piece or out of order, and empty pieces."""
    owner = np.repeat(np.arange(len(starts_length)), starts_length)
    bad = np.zeros(len(starts), bool)
    bad[1:] = (starts[1:] <= starts[:-1]) & (owner[1:] == owner[:-1])
    bad |= starts >= piece_length[owner]
    if bad.any():
        record = int(piece_record[owner[np.argmax(bad)]])
        raise CorruptRecordError(record, "its sentence starts do not ascend inside their piece")
    if (piece_length == 0).any():
        record = int(piece_record[np.argmax(piece_length == 0)])
        raise CorruptRecordError(record, "a piece of it is empty")


def _sum_by(values: NDArray[np.int64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums `values` over the runs that begin at `first`; every run holds at least one."""
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
