"""A document's text -> its token ids and sentence starts, in memory bounded by the batch."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.sentences import end_of_last_gap, split_sentences

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
