"""Turn documents into token ids and sentence starts, and pack them into records.

The same documents always produce the same records. Memory use depends only on the size of the
documents passed in one call.
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

from bert_jax.corpus.records import Fragment

# The languages for which sentencex 1.0 has rules. For any other code, it silently uses the rules of
# another language, so users must choose a substitute themselves.
LANGUAGES = (
    *("am", "ar", "bg", "bn", "ca", "da", "de", "el", "en", "es", "fi", "fr", "gu", "hi", "hy"),
    *("it", "ja", "kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te"),
    "uk",
)

# After an unclosed quotation, sentencex joins all following text into one sentence, and its time is
# quadratic in the length of the text. In whole novels, 14% of the text was in sentences of over
# 2,000 characters; the longest had 86,334. Therefore, text is segmented in blocks. A block ends at
# a blank line, or at a line break after sentence-ending punctuation. This is correct for text with
# one paragraph per line, and harmless for hard-wrapped text.
_BLOCK_END = re.compile(r"""[.!?…。．｡！？।॥؟۔։።፧။]["'”’»›」』)\]]*[^\S\n]*\n\s*|\n[^\S\n]*\n\s*""")
_MAX_BLOCK = 16_384  # In blocks of this many characters, even the quadratic case runs at 7 MB/s.
_LAST_GAP = re.compile(r".*\s", re.DOTALL)
# sentencex 1.0.32 panics on some texts with non-ASCII white space after an initial.
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")


def check_language(language: str) -> None:
    """Raise ValueError if there are no sentence rules for a language (ISO 639-1, such as "en")."""
    if language not in LANGUAGES:
        raise ValueError(
            f"language={language!r}: there are no sentence rules for this language. Expected one "
            f"of {' '.join(LANGUAGES)}. For any other language, use the most similar of these. The "
            "rules for en split at the sentence-ending marks of all scripts."
        )


def split_sentences(text: str, language: str) -> list[str]:
    """Split a text into sentences that, joined together, are exactly the text.

    White space between two sentences belongs to the first one or is a sentence on its own.
    """
    sentences: list[str] = []
    start = 0
    continues = False  # Whether the last of `sentences` continues at `start`.
    while start < len(text):
        match = _BLOCK_END.search(text, start)
        end = match.end() if match else len(text)
        while end - start > _MAX_BLOCK:
            window = _segment(text[start : end_of_last_gap(text, start, _MAX_BLOCK)], language)
            # The last sentence may continue past the end of the window, so it is segmented again
            # with the next window, unless this window contains no other sentence.
            complete = window[:-1] or window
            _extend(sentences, complete, continues)
            continues = len(window) == 1
            start += sum(map(len, complete))
        _extend(sentences, _segment(text[start:end], language), continues)
        continues = False
        start = end
    return sentences


def end_of_last_gap(text: str, start: int, limit: int) -> int:
    """Return the end of the last white space in text[start : start + limit], or start + limit."""
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


# The approximate number of characters to pass to the tokenizer in one call, during which it uses
# about 200 bytes per token.
_MAX_CALL = 1 << 18


class Encoder(Protocol):
    """The part of the tokenizer interface that `tokenize_document` uses."""

    @property
    def spaces_are_text(self) -> bool:
        """Whether the space before a word is part of its tokens, as in byte-level BPE."""

    def encode_batch(self, texts: Sequence[str], *, specials_as_text: bool) -> list[list[int]]:
        """Return the token ids of each text; see `Tokenizer.encode_batch`."""


def tokenize_document(
    text: str, encoder: Encoder, language: str, dtype: np.dtype
) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Split a text into sentences and encode them.

    Sentences without tokens (white space, control characters) are omitted. If spaces are part of
    tokens, any run of white space counts as one space, and white space between two sentences
    belongs to the second one. A sentence is therefore tokenized in the same way everywhere, as if
    it were in the middle of a line.

    Args:
      text: the text.
      encoder: the tokenizer.
      language: the language whose sentence rules are used.
      dtype: the type of the token ids.

    Returns:
      A tuple (token_ids [num_tokens], sentence_starts [num_sentences]). The sentence starts are
      ascending and begin with 0. Both arrays are empty if the text has no tokens.
    """
    parts: list[str] = []
    sentence_of_part: list[int] = []
    for index, sentence in enumerate(split_sentences(text, language)):
        for part in _parts(sentence):
            parts.append(_with_space(part, first=not parts) if encoder.spaces_are_text else part)
            sentence_of_part.append(index)
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


def _with_space(part: str, *, first: bool) -> str:
    words = " ".join(part.split())
    return words if first or not words else f" {words}"


def _parts(sentence: str) -> Iterator[str]:
    """Split a very long sentence at white space, or anywhere if it contains none.

    This changes the tokens only if a word is cut in two, and WordPiece turns a word of this length
    into a single [UNK] anyway.
    """
    begin = 0
    while len(sentence) - begin > _MAX_CALL:
        end = end_of_last_gap(sentence, begin, _MAX_CALL)
        yield sentence[begin:end]
        begin = end
    yield sentence[begin:]


def _calls(parts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Group consecutive parts into tokenizer calls of up to about 2 * _MAX_CALL characters."""
    begin = size = 0
    for index, part in enumerate(parts):
        size += len(part)
        if size > _MAX_CALL:
            yield parts[begin : index + 1]
            begin, size = index + 1, 0
    if begin < len(parts):
        yield parts[begin:]


SPECIAL_TOKENS_PER_FRAGMENT = 3  # [CLS] A [SEP] B [SEP]
_POSITIONS_PER_FRAGMENT = 32  # By default, a record of n positions has at most n / 32 fragments.


def default_max_fragments(max_length: int) -> int:
    """Return the default maximum number of fragments in a record of `max_length` positions."""
    return max(1, max_length // _POSITIONS_PER_FRAGMENT)


def fill_rate(num_tokens: int, num_fragments: int, num_records: int, max_length: int) -> float:
    """Return the fraction of record positions that fragments use, or 0 if there are no records."""
    positions = num_records * max_length
    used = num_tokens + SPECIAL_TOKENS_PER_FRAGMENT * num_fragments
    return used / positions if positions else 0.0


@dataclass(frozen=True)
class TokenizedDocument:
    """A document, represented by its token ids and sentence starts.

    Attributes:
      document_id: the document's number in the corpus.
      token_ids: [num_tokens] ids.
      sentence_starts: [num_sentences] offsets into `token_ids`, ascending from 0.
    """

    document_id: int
    token_ids: np.ndarray
    sentence_starts: np.ndarray


def pack_documents(
    documents: Sequence[TokenizedDocument], max_length: int, max_fragments: int
) -> list[list[Fragment]]:
    """Split documents into fragments, and pack the fragments into records without losing tokens.

    A document's tokens are split at exactly the capacity of a record, even within a sentence. The
    remainder at the end of a document is packed together with the remainders of other documents,
    and is never split again. Full records come first, in the order of their documents, and packed
    records follow. Source: best-fit packing, Ding et al. 2024, "Fewer Truncations Improve Language
    Modeling", section 3, with an additional limit on the number of fragments.

    Args:
      documents: the documents.
      max_length: the length of a record in tokens.
      max_fragments: the maximum number of fragments in a record.

    Returns:
      Records with 1 to `max_fragments` fragments, which use at most `max_length` positions.
    """
    capacity = max_length - SPECIAL_TOKENS_PER_FRAGMENT
    full: list[list[Fragment]] = []
    tails: list[Fragment] = []
    for document in documents:
        for fragment in split_document(document, capacity):
            if len(fragment.token_ids) == capacity:
                full.append([fragment])
            else:
                tails.append(fragment)
    return full + _pack_tails(tails, max_length, max_fragments)


def split_document(document: TokenizedDocument, capacity: int) -> Iterator[Fragment]:
    """Yield the fragments of a document; all but the last one have `capacity` tokens."""
    cuts = np.arange(0, len(document.token_ids) + capacity, capacity)
    # sentence_starts[first[i]:first[i + 1]] are the sentences that begin in fragment i.
    first = np.searchsorted(document.sentence_starts, cuts).tolist()
    for index in range(len(cuts) - 1):
        begin = index * capacity
        starts = document.sentence_starts[first[index] : first[index + 1]] - begin
        yield Fragment(document.document_id, document.token_ids[begin : begin + capacity], starts)


def _pack_tails(
    tails: Sequence[Fragment], max_length: int, max_fragments: int
) -> list[list[Fragment]]:
    """Pack fragments by best fit in three different orders, and return the smallest packing.

    The first order is by length, longest first, which is best if fragments are few or long. If many
    fragments are short, however, the shortest ones come last, and records of them reach
    `max_fragments` long before they are full. This produces up to 30% more records than necessary.
    The other two orders sort only the fragments longer than a quarter or half of a record, and
    append the rest in their original order. Their results are within 1% of the minimum, or 6% if
    `max_fragments` limits half of the records.
    """
    by_length = sorted(tails, key=lambda fragment: -len(fragment.token_ids))
    attempts = []
    for min_length in (0, max_length // 4, max_length // 2):
        order = [fragment for fragment in by_length if len(fragment.token_ids) > min_length]
        order += [fragment for fragment in tails if len(fragment.token_ids) <= min_length]
        attempts.append(_best_fit(order, max_length, max_fragments))
    return min(attempts, key=len)


def _best_fit(
    fragments: Sequence[Fragment], max_length: int, max_fragments: int
) -> list[list[Fragment]]:
    """Put each fragment into the fullest open record that still has enough space."""
    records: list[list[Fragment]] = []
    # Open records are indexed by their free space. In the integer `spaces`, bit n is set if an open
    # record has n free positions. Shifting this integer and taking its lowest set bit gives the
    # tightest fit.
    by_space: list[list[int]] = [[] for _ in range(max_length + 1)]
    spaces = 0
    for fragment in fragments:
        cost = len(fragment.token_ids) + SPECIAL_TOKENS_PER_FRAGMENT
        fitting = spaces >> cost
        if fitting:
            space = cost + (fitting & -fitting).bit_length() - 1
            index = by_space[space].pop()
            if not by_space[space]:
                spaces ^= 1 << space
            records[index].append(fragment)
        else:
            space = max_length
            index = len(records)
            records.append([fragment])
        space -= cost
        if len(records[index]) < max_fragments and space > SPECIAL_TOKENS_PER_FRAGMENT:
            by_space[space].append(index)
            spaces |= 1 << space
    return records
