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

# A character ends a word, is part of a word, is a word of its own, or is ignored.
_SPACE, _LETTER, _SINGLE, _IGNORED = range(4)
# Scripts that do not separate words with spaces: Thai, Lao, Myanmar, Khmer, kana and ideographs.
_SINGLE_RANGES = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),
    *((0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
    *((0xFF66, 0xFF9F), (0x1B000, 0x1B16F), (0x20000, 0x323AF)),
)
_SLICE = 1 << 18  # characters that are processed at a time, to bound memory
_GROUP = 1 << 15  # characters of short texts that are processed together
_WHITE_SPACE = re.compile(r"\s")

Hashes = NDArray[np.uint64]


def word_hashes(text: str) -> Hashes:
    """Return one hash for each word of a text, of shape (num_words,).

    Words are separated by white space. Case is ignored, and so are all characters other than
    letters, marks and digits, as in the comparison with evaluation data by Brown et al. (2020,
    appendix C). In scripts without spaces between words, each character is a word. Case folding
    maps single characters to single characters, so "ß" differs from "ss".
    """
    slices = [_hash_slice(part)[0] for part in _slices(text)]
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
    total = mixed[:count] * factors[0]
    for offset in range(1, length):
        total += mixed[offset : offset + count] * factors[offset]
    return _mix(total)


def shingles(text: str, length: int) -> Hashes:
    """Return the hashes of a text's word n-grams; a shorter text is a single n-gram.

    The array is empty only if the text has no words.
    """
    words = word_hashes(text)
    return ngram_hashes(words, min(length, max(1, len(words))))


def all_shingles(texts: Sequence[str], length: int) -> list[Hashes]:
    """Return the `shingles` of each text. Short texts are hashed together, which is faster."""
    found: list[Hashes] = []
    group: list[str] = []
    size = 0
    for text in texts:
        if group and size + len(text) > _GROUP:
            found += _group_shingles(group, length)
            group, size = [], 0
        group.append(text)
        size += len(text) + 1
    return found + _group_shingles(group, length)


def _group_shingles(texts: Sequence[str], length: int) -> list[Hashes]:
    if len(texts) <= 1:
        return [shingles(text, length) for text in texts]
    words, places = _hash_slice("\n".join(texts))
    ends = np.cumsum([len(text) + 1 for text in texts])
    stops = np.searchsorted(places, ends).tolist()  # the number of words up to each text's end
    ngrams = ngram_hashes(words, length)
    found = []
    for start, stop in zip([0, *stops], stops, strict=False):
        if stop - start >= length:
            found.append(ngrams[start : stop - length + 1])
        else:
            found.append(ngram_hashes(words[start:stop], max(1, stop - start)))
    return found


def _slices(text: str) -> Iterator[str]:
    """Cut a text into slices of about `_SLICE` characters, if possible at white space."""
    start = 0
    while start < len(text):
        stop = start + _SLICE
        if space := _WHITE_SPACE.search(text, stop, stop + _SLICE):
            stop = space.start()
        yield text[start:stop]
        start = stop


def _hash_slice(text: str) -> tuple[Hashes, NDArray[np.intp]]:
    """Return the hash of each word, and the index of its first character."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    kinds = _kinds()[codes]
    kept = np.flatnonzero(kinds != _IGNORED)
    codes, kinds = codes[kept], kinds[kept]
    if not len(codes):
        return np.zeros(0, np.uint64), kept
    inside, single = kinds != _SPACE, kinds == _SINGLE
    begins = inside.copy()
    begins[1:] &= ~inside[:-1] | single[1:] | single[:-1]
    starts = np.flatnonzero(begins)
    if not len(starts):
        return np.zeros(0, np.uint64), starts
    # A word's hash is a polynomial in the position within the word. Its coefficients depend on the
    # characters, and are zero for the spaces after the word.
    values = _coefficients()[codes]
    lengths = np.diff(starts, append=len(codes))
    offsets = np.arange(starts[0], len(codes)) - np.repeat(starts, lengths)
    values[starts[0] :] *= _powers(int(offsets.max()) + 1)[offsets]
    return _mix(np.add.reduceat(values, starts)), kept[starts]


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
    """Return a random number for every character that is part of a word, and 0 for the others.

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
    return _mix(folded + np.uint64(1)) * inside


def _mix(values: Hashes) -> Hashes:
    """Mix the bits of each value with the final step of MurmurHash3, a bijection."""
    mixed = values ^ (values >> np.uint64(33))
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed


def _odd_factors(count: int) -> Hashes:
    return _mix(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


_PRIME = 0x9E3779B97F4A7C15  # odd, so that its powers never become 0 modulo 2**64


def _powers(count: int) -> Hashes:
    """Return at least `count` powers of `_PRIME` modulo 2**64."""
    size = 64
    while size < count:
        size *= 2
    return _all_powers(size)


@functools.cache
def _all_powers(size: int) -> Hashes:
    factors = np.full(size, _PRIME, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)
