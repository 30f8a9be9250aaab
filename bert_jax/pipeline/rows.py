"""Lay out fragments as documents in rows of fixed length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.pipeline.pairs import Segments
from bert_jax.tokenizers.special_tokens import Vocabulary


@dataclass(frozen=True)
class Rows:
    """B rows of L positions with at most P documents each.

    Attributes:
      token_ids: [B, L] int32.
      segment_ids: [B, L] int32, 1 for `B [SEP]`, 0 for `[CLS] A [SEP]` and padding.
      position_ids: [B, L] int32, counted from 0 in every document; 0 for padding.
      document_ids: [B, L] int32, 1, 2, ... for the documents in a row; 0 for padding.
      cls_positions: [B, P] int32, the first position of each document; 0 in unused entries.
      pair_labels: [B, P] int32; see `Segments.label`.
      pair_weights: [B, P] float32, 1 for documents that have a segment B, otherwise 0.
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
    """Lay out fragments in rows, in the given order.

    Args:
      tokens: the tokens that the segments' offsets refer to.
      segments: the segments of all fragments.
      row: [num_fragments] the row of each fragment, in ascending order; every row has at least one
        fragment.
      shape: (B, L, P), the shape of the rows. The fragments must fit into it, which preparation
        guarantees and the caller checks.
      vocabulary: provides the ids of the special tokens.
    """
    num_rows, length, max_fragments = shape
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
    assert (padding >= 0).all() and (number < max_fragments).all(), "a record fits its row"

    # Three runs per fragment cover all positions: [CLS] A [SEP], then B [SEP], then padding.
    runs = np.stack([a_width, b_width, padding], axis=1).ravel()
    zero = np.zeros_like(begin)
    positions = np.arange(num_rows * length, dtype=np.int32)

    def spread(a: NDArray[np.int64], b: NDArray[np.int64], pad: NDArray[np.int64]) -> NDArray:
        """Return an array in which each value is repeated for the length of its run."""
        return np.repeat(np.stack([a, b, pad], axis=1).ravel().astype(np.int32), runs)

    shift = spread(segments.a_offset - begin - 1, segments.b_offset - begin - a_width, -end)
    token_ids = tokens.take(shift + positions, mode="clip")  # clipped reads are overwritten below
    document_ids = spread(number + 1, number + 1, zero)
    position_ids = positions - spread(begin, begin, zero)
    segment_ids = spread(zero, zero + 1, zero)
    is_padding = document_ids == 0
    token_ids[is_padding] = vocabulary.pad_id
    position_ids[is_padding] = 0
    token_ids[begin] = vocabulary.cls_id
    token_ids[begin + a_width - 1] = vocabulary.sep_id
    token_ids[end - 1] = vocabulary.sep_id

    def per_fragment(values: NDArray, dtype: type) -> NDArray:
        table: NDArray = np.zeros((num_rows, max_fragments), dtype)
        table[row, number] = values
        return table

    return Rows(
        token_ids=token_ids.reshape(num_rows, length),
        segment_ids=segment_ids.reshape(num_rows, length),
        position_ids=position_ids.reshape(num_rows, length),
        document_ids=document_ids.reshape(num_rows, length),
        cls_positions=per_fragment(begin - row * length, np.int32),
        pair_labels=per_fragment(segments.label, np.int32),
        pair_weights=per_fragment(paired, np.float32),
    )


def join_documents(rows: Rows, vocabulary: Vocabulary) -> Rows:
    """Join the documents of each row into one; the rows must not contain pairs.

    The result is `[CLS] A [SEP] [SEP] B [SEP]`: a [CLS] inside a row becomes the extra separator of
    Liu et al. 2019 (section 4.2, FULL-SENTENCES). Positions are counted over the whole row, and
    arrays of shape [B, P] become [B, 1].
    """
    assert not rows.pair_weights.any(), "rows with pairs are not joined"
    occupied = rows.document_ids > 0
    token_ids = rows.token_ids.copy()
    begins = occupied[:, 1:] & (rows.document_ids[:, 1:] != rows.document_ids[:, :-1])
    token_ids[:, 1:][begins] = vocabulary.sep_id
    positions = np.arange(token_ids.shape[1], dtype=np.int32)
    zeros = np.zeros((len(token_ids), 1), np.int32)
    return Rows(
        token_ids=token_ids,
        segment_ids=rows.segment_ids,
        position_ids=np.where(occupied, positions, 0).astype(np.int32),
        document_ids=occupied.astype(np.int32),
        cls_positions=zeros,
        pair_labels=zeros,
        pair_weights=zeros.astype(np.float32),
    )
