"""Split text into words and hash word n-grams, with NumPy operations on whole documents.

Hashes have 64 bits and do not depend on the process, the platform or the number of workers.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

# A character ends a word, is part of a word, is a word on its own, or is ignored.
_SPACE, _LETTER, _SINGLE, _IGNORED = range(4)
# Scripts that do not separate words with spaces: Thai, Lao, Myanmar, Khmer, kana and ideographs.
_SINGLE_RANGES = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),
    *((0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
    *((0xFF66, 0xFF9F), (0x1B000, 0x1B16F), (0x20000, 0x323AF)),
)
_SLICE = 1 << 18  # To bound memory, a text is cut after this many characters, even inside a word.
_GROUP = 1 << 15  # This many characters are processed together, so that they stay in the cache.
_NO_VALUE = np.uint64(1)  # This is the value of ignored characters.
_WHITE_SPACE = re.compile(r"\s")

Hashes = NDArray[np.uint64]


def word_hashes(text: str) -> Hashes:
    """Return one hash for each word of a text, of shape (num_words,).

    Words are separated by white space. Case is ignored, and so are all characters except letters,
    marks and digits, as in Brown et al. (2020, appendix C). In scripts without spaces between
    words, each character is a word. Case folding maps single characters to single characters, so
    "ß" differs from "ss".
    """
    slices = [_hash_words(part)[0] for part in _slices(text)]
    return np.concatenate(slices) if slices else np.zeros(0, np.uint64)


def ngram_hashes(words: Hashes, length: int) -> Hashes:
    """Return one hash for each sequence of `length` consecutive words.

    Args:
      words: the words' hashes or ids.
      length: the number of words in a sequence.

    Returns:
      An array of shape (num_words - length + 1,), which is empty for shorter texts.
    """
    count = len(words) - length + 1
    if count <= 0:
        return np.zeros(0, np.uint64)
    factors = _odd_factors(length)
    mixed = _mix(words)
    total, term = mixed[:count] * factors[0], np.empty(count, np.uint64)
    for offset in range(1, length):
        total += np.multiply(mixed[offset : offset + count], factors[offset], out=term)
    return _mix(total)


def shingles(text: str, length: int) -> Hashes:
    """Return the hashes of a text's word n-grams; a shorter text is a single n-gram.

    The array is empty only if the text has no words.
    """
    words = word_hashes(text)
    return ngram_hashes(words, min(length, max(1, len(words))))


def all_shingles(texts: Sequence[str], length: int) -> tuple[Hashes, NDArray[np.intp]]:
    """Return the `shingles` of all texts, one text after another, and their number for each text.

    Short texts are hashed together, which is faster.
    """
    found, counts = [np.zeros(0, np.uint64)], [np.zeros(0, np.intp)]
    group: list[str] = []
    size = 0
    for text in [*texts, None]:
        if group and (text is None or size + len(text) > _GROUP):
            hashes, numbers = _group_shingles(group, length)
            found.append(hashes)
            counts.append(numbers)
            group, size = [], 0
        if text is not None:
            group.append(text)
            size += len(text) + 1
    return np.concatenate(found), np.concatenate(counts)


def _group_shingles(texts: Sequence[str], length: int) -> tuple[Hashes, NDArray[np.intp]]:
    if len(texts) == 1:
        found = shingles(texts[0], length)
        return found, np.array([len(found)])
    ends = np.cumsum([len(text) + 1 for text in texts])
    words, stops = _hash_words("\n".join(texts), ends)
    sizes = np.diff(stops, prepend=0)
    ngrams = ngram_hashes(words, length)
    is_inside = np.ones(len(ngrams), np.bool_)  # Only n-grams inside a single text are kept.
    across = (stops[:-1, None] - np.arange(1, length)).flatten()
    is_inside[across[(across >= 0) & (across < len(ngrams))]] = False
    found, counts = ngrams[is_inside], np.maximum(sizes - (length - 1), 0)
    short = np.flatnonzero((sizes > 0) & (sizes < length))
    if len(short):
        places = (np.cumsum(counts) - counts)[short]
        parts = zip((stops - sizes)[short].tolist(), stops[short].tolist(), strict=True)
        single = [ngram_hashes(words[start:stop], stop - start)[0] for start, stop in parts]
        found = np.insert(found, places, single)
        counts[short] = 1
    return found, counts


def _slices(text: str) -> Iterator[str]:
    """Cut a text into parts of about `_GROUP` characters, at white space if possible."""
    start = 0
    while start < len(text):
        stop = start + _SLICE
        if space := _WHITE_SPACE.search(text, stop, stop + _SLICE):
            stop = space.start()
        part, begin = text[start:stop], 0
        while space := _WHITE_SPACE.search(part, begin + _GROUP):
            yield part[begin : space.start()]
            begin = space.start()
        yield part[begin:]
        start = stop


def _hash_words(text: str, ends: NDArray[np.intp] | None = None) -> tuple[Hashes, NDArray[np.intp]]:
    """Return the hash of each word, and the number of words that begin before each of `ends`."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    values = _coefficients().take(codes)
    is_kept = values != _NO_VALUE
    kept = values[is_kept]
    starts = _word_starts(kept, _singles(codes, is_kept))
    if not len(starts):
        return np.zeros(0, np.uint64), np.zeros(0 if ends is None else len(ends), np.intp)
    # The hash of a word is a polynomial. Its coefficients depend on the characters, and are zero
    # for the spaces after the word. The exponents are positions in the word: powers for positions
    # in the whole text are divided by the power for the word's first position. The division is
    # exact modulo 2**64.
    kept *= _powers(_PRIME, len(kept))
    hashes = np.add.reduceat(kept, starts)
    hashes *= _powers(_INVERSE, len(kept))[starts]
    stops = starts[:0] if ends is None else np.searchsorted(starts, _kept_before(ends, is_kept))
    return _mix(hashes), stops


def _kept_before(positions: NDArray[np.intp], is_kept: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return how many of the characters before each position are kept."""
    return positions - np.searchsorted(np.flatnonzero(~is_kept), positions)


def _singles(codes: NDArray[np.uint32], is_kept: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return which of the kept characters form words by themselves, as positions among them."""
    unusual = np.flatnonzero(codes >= _SINGLE_RANGES[0][0])
    single = unusual[_kinds()[codes[unusual]] == _SINGLE]
    return _kept_before(single, is_kept) if len(single) else single


def _word_starts(kept: Hashes, single: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the position of each word's first character, among the kept characters.

    Args:
      kept: the coefficients of the kept characters, which are 0 for spaces.
      single: the positions of the characters that are words of their own.
    """
    is_space = kept == 0
    spaces = np.flatnonzero(is_space)
    starts, stops = np.append(0, spaces + 1), np.append(spaces, len(kept))
    starts = starts[starts < stops]
    if not len(single):
        return starts
    begins = np.zeros(len(kept) + 1, np.bool_)
    begins[single + 1] = True  # After the end of a word, there is either another word or a space.
    begins[:-1] &= ~is_space
    begins[single] = begins[starts] = True
    return np.flatnonzero(begins[:-1])


@functools.cache
def _kinds() -> NDArray[np.uint8]:
    """Return the kind of every Unicode character, by code point."""
    kinds = np.full(sys.maxunicode + 1, _IGNORED, np.uint8)
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if character.isspace():
            kinds[code] = _SPACE
        elif unicodedata.category(character)[0] in "LMN":
            kinds[code] = _LETTER
    for first, last in _SINGLE_RANGES:
        part = kinds[first : last + 1]
        part[part == _LETTER] = _SINGLE
    return kinds


@functools.cache
def _coefficients() -> Hashes:
    """Return a random number for each character in words, 0 for spaces, and _NO_VALUE for the rest.

    Characters that differ only in case have the same number.
    """
    inside = (_kinds() == _LETTER) | (_kinds() == _SINGLE)
    folded = np.arange(len(inside), dtype=np.uint64)
    for code in np.flatnonzero(inside).tolist():
        character = chr(code)
        for other in (character.casefold(), character.lower()):
            if len(other) == 1:
                folded[code] = ord(other)
                break
    values = _mix(folded + np.uint64(1)) * inside
    assert not np.any(values == _NO_VALUE)
    values[_kinds() == _IGNORED] = _NO_VALUE
    return values


def _mix(values: Hashes) -> Hashes:
    """Mix the bits of each value with the final step of MurmurHash3, a bijection."""
    shifted = values >> np.uint64(33)
    mixed = values ^ shifted
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed *= np.uint64(factor)
        mixed ^= np.right_shift(mixed, np.uint64(33), out=shifted)
    return mixed


def _odd_factors(count: int) -> Hashes:
    return _mix(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


_PRIME = 0x9E3779B97F4A7C15  # An odd number has an inverse modulo 2**64.
_INVERSE = pow(_PRIME, -1, 1 << 64)


def _powers(base: int, count: int) -> Hashes:
    """Return the first `count` powers of a base modulo 2**64."""
    size = 1 << 10
    while size < count:
        size *= 2
    return _all_powers(base, size)[:count]


@functools.cache
def _all_powers(base: int, size: int) -> Hashes:
    factors = np.full(size, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)
