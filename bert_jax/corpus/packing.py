"""Turn documents into token ids and sentence starts, and pack them into records.

Pure functions: the same documents give the same records. Memory is bounded by the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import sentencex
from numpy.typing import NDArray

from bert_jax.corpus.records import Piece

# The languages sentencex 1.0 has rules for. It takes any other code without a word and uses
# another language's rules, so the choice of a stand-in is left to whoever knows the corpus.
LANGUAGES = (
    *("am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy"),
    *("it", "ja", "kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te"),
    "uk",
)

# A quotation left open makes sentencex join all that follows into one sentence, in time quadratic
# in the text: given whole novels it put 14 % of the text into sentences of over 2,000 characters
# (one of 86,334). So text goes to it a block at a time. A block ends at a blank line, or at a line
# end that follows sentence-ending punctuation: true of paragraphs held on one line each, and
# harmless to hard-wrapped ones.
_BLOCK_END = re.compile(r"""[.!?…。．｡！？।॥؟۔։።፧။]["'”’»›」』)\]]*[^\S\n]*\n\s*|\n[^\S\n]*\n\s*""")
_MAX_BLOCK = 16_384  # characters; bounds the quadratic case to 7 MB/s
_LAST_GAP = re.compile(r".*\s", re.DOTALL)
# sentencex 1.0.32 panics on some texts where white space outside ASCII follows an initial
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")


def check_language(language: str) -> None:
    """Raise ValueError if there are no sentence rules for `language` (ISO 639-1, as `en`)."""
    if language not in LANGUAGES:
        raise ValueError(
            f"no sentence rules for language {language!r}; expected one of {' '.join(LANGUAGES)}. "
            "For another language name the nearest of these; en cuts at the sentence-ending marks "
            "of every script."
        )


def split_sentences(text: str, language: str) -> list[str]:
    """Cut `text` into sentences whose concatenation is exactly `text`.

    White space between two sentences belongs to the first or stands alone.
    """
    sentences: list[str] = []
    start = 0
    continues = False  # whether the last of `sentences` goes on at `start`
    while start < len(text):
        match = _BLOCK_END.search(text, start)
        end = match.end() if match else len(text)
        while end - start > _MAX_BLOCK:
            window = _segment(text[start : end_of_last_gap(text, start, _MAX_BLOCK)], language)
            # the last may go on beyond the window: unless it is all there is, it is read again
            complete = window[:-1] or window
            _extend(sentences, complete, continues)
            continues = len(window) == 1
            start += sum(map(len, complete))
        _extend(sentences, _segment(text[start:end], language), continues)
        continues = False
        start = end
    return sentences


def end_of_last_gap(text: str, start: int, limit: int) -> int:
    """Where the last white space in text[start : start + limit] ends; the limit without any."""
    gap = _LAST_GAP.match(text, start, start + limit)
    return gap.end() if gap else start + limit


def _extend(sentences: list[str], more: list[str], continues: bool) -> None:
    if continues:
        sentences[-1] += more[0]
        more = more[1:]
    sentences.extend(more)


def _segment(block: str, language: str) -> list[str]:
    sentences = []
    begin = 0
    for length in map(len, sentencex.segment(language, _WIDE_SPACE.sub(" ", block))):
        sentences.append(block[begin : begin + length])
        begin += length
    assert begin == len(block), "sentencex changed the text"
    return sentences


# Characters given to the tokenizer at once: it holds some 200 bytes a token until a call is done.
_MAX_CALL = 1 << 18


class Encoder(Protocol):
    """What is asked of a tokenizer here.

    spaces_are_text: whether the space before a word is part of its tokens (byte-level BPE).
    """

    @property
    def spaces_are_text(self) -> bool: ...

    def encode_batch(self, texts: Sequence[str], *, specials_as_text: bool) -> list[list[int]]:
        """Token ids of each text, none added; a "[MASK]" in a text is brackets around a word."""


def tokenize_document(
    text: str, encoder: Encoder, language: str, dtype: np.dtype
) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Split `text` into sentences and encode them.

    What holds no token (white space, control characters) is no sentence. Where spaces are part of
    the tokens, all white space is one of them, that between two sentences the second one's: so a
    sentence has the tokens it would have in the middle of a line.

    Returns: token_ids [num_tokens] of `dtype`, sentence_starts [num_sentences] ascending from 0;
    both empty if the text has no token.
    """
    parts: list[str] = []
    sentence_of_part: list[int] = []
    for sentence, whole in enumerate(split_sentences(text, language)):
        for part in _parts(whole):
            parts.append(_spaced(part, first=not parts) if encoder.spaces_are_text else part)
            sentence_of_part.append(sentence)
    counts: list[int] = []
    token_ids = [np.zeros(0, dtype)]
    for call in _calls(parts):
        encoded = encoder.encode_batch(call, specials_as_text=True)
        counts.extend(map(len, encoded))
        token_ids.append(np.fromiter(chain.from_iterable(encoded), dtype))
    length = np.array(counts, np.int64)
    (filled,) = np.nonzero(length)
    _, first = np.unique(np.array(sentence_of_part, np.int64)[filled], return_index=True)
    starts = (np.cumsum(length) - length)[filled[first]]
    return np.concatenate(token_ids), starts


def _spaced(part: str, *, first: bool) -> str:
    words = " ".join(part.split())
    return words if first or not words else f" {words}"


def _parts(sentence: str) -> Iterator[str]:
    """Cut a sentence too long for one call at white space, or anywhere if it has none.

    Only the second can change a token: WordPiece makes one [UNK] of a run of letters that long.
    """
    begin = 0
    while len(sentence) - begin > _MAX_CALL:
        end = end_of_last_gap(sentence, begin, _MAX_CALL)
        yield sentence[begin:end]
        begin = end
    yield sentence[begin:]


def _calls(parts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Group parts, in order, into calls of at most about 2 * _MAX_CALL characters."""
    begin = size = 0
    for index, part in enumerate(parts):
        size += len(part)
        if size > _MAX_CALL:
            yield parts[begin : index + 1]
            begin, size = index + 1, 0
    if begin < len(parts):
        yield parts[begin:]


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
