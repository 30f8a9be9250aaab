"""Segments -> rows of a fixed length: `[CLS] A [SEP] B [SEP]` for every piece, then padding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.pairs import Segments
from bert_jax.data.vocabulary import Vocabulary


@dataclass(frozen=True)
class Rows:
    """B rows of L positions, and where their pieces are.

    Attributes:
        token_ids: [B, L] int32.
        segment_ids: [B, L] int32, 0 for `[CLS] A [SEP]`, 1 for `B [SEP]`, 0 for padding.
        position_ids: [B, L] int32, from 0 in every piece; 0 for padding.
        document_ids: [B, L] int32, 1, 2, ... for the pieces of a row; 0 for padding.
        cls_positions: [B, P] int32, where a piece begins; 0 beyond the last piece.
        pair_labels: [B, P] int32; see `Segments.label`.
        pair_weights: [B, P] float32, 1 for pieces with a segment B.
    """

    token_ids: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    document_ids: NDArray[np.int32]
    cls_positions: NDArray[np.int32]
    pair_labels: NDArray[np.int32]
    pair_weights: NDArray[np.float32]


def assemble_rows(
    tokens: NDArray[np.int32],
    segments: Segments,
    row: NDArray[np.int64],
    shape: tuple[int, int, int],
    vocabulary: Vocabulary,
) -> Rows:
    """Lays pieces out in rows, in their order.

    Args:
        tokens: what the segments' offsets refer to.
        segments: of [num_pieces] pieces.
        row: [num_pieces] ascending row of each piece; every row has at least one.
        shape: (B, L, P). What a record holds must fit: prepare.py guarantees it and the caller
            has checked it.
    """
    num_rows, length, max_pieces = shape
    paired = segments.b_length > 0
    a_width = segments.a_length + 2  # [CLS] A [SEP]
    b_width = np.where(paired, segments.b_length + 1, 0)  # B [SEP]
    first_in_row = np.searchsorted(row, np.arange(num_rows))
    number = np.arange(len(row)) - first_in_row[row]
    before = np.cumsum(a_width + b_width) - (a_width + b_width)
    begin = row * length + before - before[first_in_row][row]  # in the flattened rows
    end = begin + a_width + b_width
    last = np.append(row[1:] != row[:-1], True)
    padding = np.where(last, (row + 1) * length - end, 0)
    assert (padding >= 0).all() and (number < max_pieces).all(), "a record fits its row"

    # Three runs a piece cover all positions: [CLS] A [SEP], then B [SEP], then padding.
    runs = np.stack([a_width, b_width, padding], axis=1).ravel()
    zero = np.zeros_like(begin)
    everywhere = np.arange(num_rows * length, dtype=np.int32)

    def spread(a: NDArray[np.int64], b: NDArray[np.int64], pad: NDArray[np.int64]) -> NDArray:
        """Writes one value over each run."""
        return np.repeat(np.stack([a, b, pad], axis=1).ravel().astype(np.int32), runs)

    shift = spread(segments.a_offset - begin - 1, segments.b_offset - begin - a_width, -end)
    token_ids = tokens.take(shift + everywhere, mode="clip")  # what is clipped is overwritten
    document_ids = spread(number + 1, number + 1, zero)
    position_ids = everywhere - spread(begin, begin, zero)
    segment_ids = spread(zero, zero + 1, zero)
    is_padding = document_ids == 0
    token_ids[is_padding] = vocabulary.pad_id
    position_ids[is_padding] = 0
    token_ids[begin] = vocabulary.cls_id
    token_ids[begin + a_width - 1] = vocabulary.sep_id
    token_ids[end - 1] = vocabulary.sep_id

    def per_piece(values: NDArray, dtype: type) -> NDArray:
        table: NDArray = np.zeros((num_rows, max_pieces), dtype)
        table[row, number] = values
        return table

    return Rows(
        token_ids=token_ids.reshape(num_rows, length),
        segment_ids=segment_ids.reshape(num_rows, length),
        position_ids=position_ids.reshape(num_rows, length),
        document_ids=document_ids.reshape(num_rows, length),
        cls_positions=per_piece(begin - row * length, np.int32),
        pair_labels=per_piece(segments.label, np.int32),
        pair_weights=per_piece(paired, np.float32),
    )


def join_documents(rows: Rows, vocabulary: Vocabulary) -> Rows:
    """Rows without pairs whose pieces read on into each other, as one document each.

    `[CLS] A [SEP] [SEP] B [SEP]`: a [CLS] within a row becomes the extra separator of Liu et al.
    2019 (section 4.2, FULL-SENTENCES). Positions go on; [B, 1] in place of [B, P].
    """
    assert not rows.pair_weights.any(), "rows of pairs are not joined"
    there = rows.document_ids > 0
    token_ids = rows.token_ids.copy()
    begins = there[:, 1:] & (rows.document_ids[:, 1:] != rows.document_ids[:, :-1])
    token_ids[:, 1:][begins] = vocabulary.sep_id
    places = np.arange(token_ids.shape[1], dtype=np.int32)
    nothing = np.zeros((len(token_ids), 1), np.int32)
    return Rows(
        token_ids=token_ids,
        segment_ids=rows.segment_ids,
        position_ids=np.where(there, places, 0).astype(np.int32),
        document_ids=there.astype(np.int32),
        cls_positions=nothing,
        pair_labels=nothing,
        pair_weights=nothing.astype(np.float32),
    )
