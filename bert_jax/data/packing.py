"""The documents of a unit -> records. Pure functions: same documents, same records.

A record is what one training sequence of length L holds: up to `max_pieces` pieces, each a run of
consecutive tokens of one document. A piece of n tokens costs n + 3 positions, because training
writes it as `[CLS] A [SEP] B [SEP]`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.data.records import Piece

SPECIAL_TOKENS_PER_PIECE = 3  # [CLS] A [SEP] B [SEP]
_POSITIONS_PER_PIECE = 32  # by default a record of n positions holds at most n / 32 pieces


def default_max_pieces(max_length: int) -> int:
    """The most pieces in a record of `max_length` positions where nobody says otherwise."""
    return max(1, max_length // _POSITIONS_PER_PIECE)


def fill_rate(num_tokens: int, num_pieces: int, num_records: int, max_length: int) -> float:
    """Share of the records' positions that their pieces take; 0 without records."""
    positions = num_records * max_length
    taken = num_tokens + SPECIAL_TOKENS_PER_PIECE * num_pieces
    return taken / positions if positions else 0.0


@dataclass(frozen=True)
class TokenizedDocument:
    """One document: token_ids [num_tokens], and sentence_starts [num_sentences] in it from 0 on."""

    document_id: int
    token_ids: np.ndarray
    sentence_starts: np.ndarray


def pack_documents(
    documents: Sequence[TokenizedDocument], max_length: int, max_pieces: int
) -> list[list[Piece]]:
    """Cut and pack `documents` into records, dropping no token.

    A document's token stream is cut at exactly the capacity of a record, mid-sentence if need be;
    what remains at its end is packed with other documents' ends and never cut again. Records come
    out in this order: full ones as their documents come, then packed ones.

    Returns: records, each of 1 to `max_pieces` pieces that cost at most `max_length` positions.

    Source: best-fit packing, Ding et al. 2024, "Fewer Truncations Improve Language Modeling",
    section 3, here with a limit on pieces.
    """
    capacity = max_length - SPECIAL_TOKENS_PER_PIECE
    full: list[list[Piece]] = []
    tails: list[Piece] = []
    for document in documents:
        for piece in cut_document(document, capacity):
            if len(piece.token_ids) == capacity:
                full.append([piece])
            else:
                tails.append(piece)
    return full + _pack_tails(tails, max_length, max_pieces)


def cut_document(document: TokenizedDocument, capacity: int) -> Iterator[Piece]:
    """Yield the pieces of a document: all of `capacity` tokens but the last."""
    cuts = np.arange(0, len(document.token_ids) + capacity, capacity)
    # sentence_starts[first[i]:first[i + 1]] are the sentences that begin inside piece i
    first = np.searchsorted(document.sentence_starts, cuts).tolist()
    for index in range(len(cuts) - 1):
        begin = index * capacity
        starts = document.sentence_starts[first[index] : first[index + 1]] - begin
        yield Piece(document.document_id, document.token_ids[begin : begin + capacity], starts)


def _pack_tails(tails: Sequence[Piece], max_length: int, max_pieces: int) -> list[list[Piece]]:
    """Pack by best fit, longer pieces first, and keep the best of three meanings of "longer".

    By length throughout is best for few or long pieces. Of many short ones it leaves the shortest
    for records that have `max_pieces` long before they are full (up to 30 % more records than
    needed); so only pieces over a half or a quarter of a record go by length, the others as they
    come (within 1 %, or 6 % where `max_pieces` is what limits half of the records).
    """
    by_length = sorted(tails, key=lambda piece: -len(piece.token_ids))
    attempts = []
    for longer in (0, max_length // 4, max_length // 2):
        order = [piece for piece in by_length if len(piece.token_ids) > longer]
        order += [piece for piece in tails if len(piece.token_ids) <= longer]
        attempts.append(_best_fit(order, max_length, max_pieces))
    return min(attempts, key=len)


def _best_fit(pieces: Sequence[Piece], max_length: int, max_pieces: int) -> list[list[Piece]]:
    """Put each piece in turn into the open record in which it leaves the least room."""
    records: list[list[Piece]] = []
    # Open records by the room left in them, and a bit set of the rooms that have any: the tightest
    # fit is one shift and one lowest set bit away.
    by_room: list[list[int]] = [[] for _ in range(max_length + 1)]
    rooms = 0
    for piece in pieces:
        cost = len(piece.token_ids) + SPECIAL_TOKENS_PER_PIECE
        fitting = rooms >> cost
        if fitting:
            room = cost + (fitting & -fitting).bit_length() - 1
            index = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
            records[index].append(piece)
        else:
            room = max_length
            index = len(records)
            records.append([piece])
        room -= cost
        if len(records[index]) < max_pieces and room > SPECIAL_TOKENS_PER_PIECE:
            by_room[room].append(index)
            rooms |= 1 << room
    return records
