"""Learns a WordPiece vocabulary from text, the same one whenever the text is the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models, trainers

from bert_jax.tokenizers.files import add_special_tokens
from bert_jax.tokenizers.special_tokens import BERT
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.training import (
    MAX_COUNT,
    MAX_SAMPLE_BYTES,
    MAX_VOCAB_SIZE,
    WordLimit,
    check_repeatable,
    check_sizes,
    even_sample,
    utf8_size,
    warn_if_smaller,
)
from bert_jax.tokenizers.vocabulary_files import (
    CONTINUATION,
    MAX_WORD_CHARACTERS,
    wordpiece_backend,
)

BERT_VOCAB_SIZE = 30_522
BERT_NUM_UNUSED = 99  # puts [UNK] [CLS] [SEP] [MASK] at 100..103, as in BERT's vocabularies
# BERT's own vocabularies hold 997 (uncased) characters, each also as a continuation.
MAX_ALPHABET = 1000

_NUM_CODE_POINTS = 0x110000
# The library's trainer takes 256 strings at a time; cut to this they are 16 M characters.
_CHUNK_CHARACTERS = 1 << 16
# The trainer's memory follows the characters of the different words: 75 bytes for each in English,
# of which 356 MB hold 3.6 M, 100 in random letters. So this bounds it below 1 GiB.
_MAX_TOTAL_WORD_CHARACTERS = 8_000_000


def train_wordpiece(
    documents: Iterable[str],
    *,
    vocab_size: int = BERT_VOCAB_SIZE,
    lowercase: bool = True,
    keep_accents: bool = False,
    num_unused: int = BERT_NUM_UNUSED,
    min_frequency: int = 2,
    max_bytes: int = MAX_SAMPLE_BYTES,
    show_progress: bool = False,
) -> Tokenizer:
    """Learns a vocabulary of at most `vocab_size` entries, ids in BERT's order.

    [PAD], `num_unused` slots [unusedN], [UNK], [CLS], [SEP], [MASK], then the characters that
    occur at least `min_frequency` times (the 1,000 most frequent; fewer in a small vocabulary,
    so that they and their continuations never take more than half of it), then learned pieces.

    Lower-cased text loses its accents and other marks, unless `keep_accents`.

    `documents` is gone through twice, so it must not be an iterator: once for the characters, of
    all of it, and once for the words, of at most `max_bytes` (UTF-8) of it, whole documents spread
    evenly over it. Memory is bounded by 1 GiB, whatever the text (see `WordLimit`). ValueError if
    there is nothing to learn from or the size leaves no room.

    The library numbers "##" characters, and breaks ties by those numbers, in the order of a hash
    table seeded anew in each process. Knowing the alphabet beforehand makes the result a function
    of the text.
    """
    check_repeatable(documents)
    check_sizes(
        vocab_size=(vocab_size, 1, MAX_VOCAB_SIZE),
        num_unused=(num_unused, 0, MAX_VOCAB_SIZE),
        min_frequency=(min_frequency, 1, MAX_COUNT),
        max_bytes=(max_bytes, 1, MAX_COUNT),
    )
    reserved = _reserved_tokens(num_unused)
    if vocab_size < len(reserved) + 100:
        raise ValueError(
            f"vocab_size is {vocab_size}, of which {len(reserved)} are special and unused tokens; "
            f"expected at least {len(reserved) + 100} (num_unused=0 leaves the most room)"
        )
    strip_accents = False if keep_accents else None
    backend = wordpiece_backend(
        {token: index for index, token in enumerate(reserved)},
        lowercase=lowercase,
        strip_accents=strip_accents,
    )
    survey = _survey(documents)
    limit = min(MAX_ALPHABET, (vocab_size - len(reserved)) // 4)
    characters = _alphabet(survey, backend, limit, min_frequency)
    if not characters:
        raise ValueError("there is no text to learn a vocabulary from")
    continuations = [CONTINUATION + each for each in characters if _continues_a_word(backend, each)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=reserved + characters + continuations,  # numbered first, in this order
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=CONTINUATION,
        show_progress=show_progress,
    )
    sample = even_sample(documents, survey.num_bytes, max_bytes)
    vocabulary = _learn(map(_word_limit(survey, backend), _chunks(sample)), backend, trainer)
    assert all(vocabulary[token] == index for index, token in enumerate(reserved))
    warn_if_smaller(len(vocabulary), vocab_size)
    backend = wordpiece_backend(vocabulary, lowercase=lowercase, strip_accents=strip_accents)
    add_special_tokens(backend)
    return Tokenizer(backend)


@dataclass(frozen=True)
class _Survey:
    """How often each code point occurs [0x110000], and the size of the text as UTF-8."""

    code_points: NDArray[np.int64]
    num_bytes: int


def _survey(documents: Iterable[str]) -> _Survey:
    code_points = np.zeros(_NUM_CODE_POINTS, np.int64)
    num_bytes = 0
    for text in documents:
        num_bytes += utf8_size(text)
        for chunk in _chunks([text]):
            counts = np.bincount(np.frombuffer(chunk.encode("utf-32-le"), np.uint32))
            code_points[: len(counts)] += counts
    return _Survey(code_points, num_bytes)


def _learn(texts: Iterable[str], backend: Any, trainer: Any) -> dict[str, int]:
    learner = tokenizers.Tokenizer(models.WordPiece(unk_token=BERT.unk))
    learner.normalizer = backend.normalizer
    learner.pre_tokenizer = backend.pre_tokenizer
    learner.train_from_iterator(texts, trainer)
    return learner.get_vocab()


def _reserved_tokens(num_unused: int) -> list[str]:
    pad, *others = BERT.tokens
    return [pad, *(f"[unused{i}]" for i in range(num_unused)), *others]


def _alphabet(survey: _Survey, backend: Any, limit: int, min_frequency: int) -> list[str]:
    """The most frequent characters of the normalized text, at most `limit`, by code point."""
    # BERT's normalizer looks at one character at a time, so each need be normalized only once.
    totals: dict[str, int] = {}
    for code_point in np.flatnonzero(survey.code_points):
        for character in backend.normalizer.normalize_str(chr(code_point)):
            if not character.isspace():
                count = int(survey.code_points[code_point])
                totals[character] = totals.get(character, 0) + count
    frequent = [character for character, count in totals.items() if count >= min_frequency]
    frequent.sort(key=lambda character: (-totals[character], character))
    return sorted(frequent[:limit])


def _continues_a_word(backend: Any, character: str) -> bool:
    """Whether a character can stand within a word; punctuation and CJK stand alone."""
    text = backend.normalizer.normalize_str(f"a{character}a")
    return len(backend.pre_tokenizer.pre_tokenize_str(text)) == 1


def _word_limit(survey: _Survey, backend: Any) -> WordLimit:
    inside = np.zeros(_NUM_CODE_POINTS, bool)
    for code_point in np.flatnonzero(survey.code_points):
        inside[code_point] = _continues_a_word(backend, chr(code_point))
    return WordLimit(
        inside,
        max_characters=_CHUNK_CHARACTERS,
        max_word_characters=MAX_WORD_CHARACTERS,
        max_total_characters=_MAX_TOTAL_WORD_CHARACTERS,
    )


def _chunks(documents: Iterable[str]) -> Iterator[str]:
    """Cuts long documents at spaces, which changes no word."""
    for text in documents:
        start = 0
        while len(text) - start > _CHUNK_CHARACTERS:
            end = max(text.rfind(space, start, start + _CHUNK_CHARACTERS) for space in " \n")
            end = end + 1 if end > start else start + _CHUNK_CHARACTERS
            yield text[start:end]
            start = end
        yield text[start:]
