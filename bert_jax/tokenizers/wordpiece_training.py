"""Train WordPiece vocabularies.

Training is deterministic: the same text always gives the same vocabulary.
"""

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
    NO_TEXT,
    WordLimit,
    check_repeatable,
    check_sizes,
    even_sample,
    utf8_size,
    warn_if_smaller,
)
from bert_jax.tokenizers.wordpiece_files import CONTINUATION, MAX_WORD_CHARACTERS, wordpiece_backend

BERT_VOCAB_SIZE = 30_522
# With this number, [UNK], [CLS], [SEP] and [MASK] have the ids 100 to 103, as in BERT's
# vocabularies.
BERT_NUM_UNUSED = 99
# BERT's uncased vocabulary has 997 characters, and all of them also occur as continuations.
MAX_ALPHABET = 1000

_NUM_CODE_POINTS = 0x110000
# The library's trainer takes 256 strings at a time. At this length, they contain almost 17 million
# characters in total.
_CHUNK_CHARACTERS = 1 << 16
# The trainer's memory use is proportional to the total length of distinct words: 75 bytes per
# character for English words (3.6 million characters in 356 MB of text) and 100 for random letters.
# This limit keeps it below 1 GiB.
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
    """Train a WordPiece vocabulary of at most `vocab_size` tokens, with ids in BERT's order.

    The tokens are [PAD], `num_unused` tokens [unusedN], [UNK], [CLS], [SEP], [MASK], then the
    characters, and then trained pieces. The 1,000 most frequent characters are included. A small
    vocabulary includes fewer, so that characters and their continuations take up at most half of
    it. Lowercased text loses its accents and other marks, unless `keep_accents` is set. Training
    uses at most 1 GiB of memory for any text (see `WordLimit`).

    By default, the library numbers "##" characters in hash-table order, which differs from one
    process to the next, and uses these numbers to break ties. Here, the alphabet is passed to the
    library in advance, so the result depends only on the text.

    Args:
      documents: the text, which is read twice and therefore must not be an iterator.
      vocab_size: the maximum number of tokens.
      lowercase: whether text is lowercased.
      keep_accents: whether lowercased text keeps its accents.
      num_unused: the number of [unusedN] tokens.
      min_frequency: how many times a character or a pair of pieces must occur to be included.
      max_bytes: the maximum size, in UTF-8 bytes, of the sample in which words are counted. The
        sample consists of whole documents spread evenly over the text. Characters are counted in
        the whole text.
      show_progress: whether the `tokenizers` library shows a progress bar.

    Raises:
      ValueError: there is no text, or a size is out of range.
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
            f"vocab_size={vocab_size}: too small for {len(reserved)} special and unused tokens and "
            f"100 other tokens. Set it to at least {len(reserved) + 100}, or reduce num_unused."
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
        raise ValueError(NO_TEXT)
    continuations = [
        CONTINUATION + character
        for character in characters
        if _continues_a_word(backend, character)
    ]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        # The trainer assigns the first ids to these tokens, in this order.
        special_tokens=reserved + characters + continuations,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=CONTINUATION,
        show_progress=show_progress,
    )
    sample = even_sample(documents, survey.num_bytes, max_bytes)
    vocabulary = _train(map(_word_limit(survey, backend), _chunks(sample)), backend, trainer)
    assert all(vocabulary[token] == index for index, token in enumerate(reserved))
    warn_if_smaller(len(vocabulary), vocab_size)
    backend = wordpiece_backend(vocabulary, lowercase=lowercase, strip_accents=strip_accents)
    add_special_tokens(backend)
    return Tokenizer(backend)


@dataclass(frozen=True)
class _Survey:
    """The count of each code point, from 0 to 0x10FFFF, and the text's size in UTF-8 bytes."""

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


def _train(texts: Iterable[str], backend: Any, trainer: Any) -> dict[str, int]:
    trained = tokenizers.Tokenizer(models.WordPiece(unk_token=BERT.unk))
    trained.normalizer = backend.normalizer
    trained.pre_tokenizer = backend.pre_tokenizer
    trained.train_from_iterator(texts, trainer)
    return trained.get_vocab()


def _reserved_tokens(num_unused: int) -> list[str]:
    pad, *others = BERT.tokens
    return [pad, *(f"[unused{i}]" for i in range(num_unused)), *others]


def _alphabet(survey: _Survey, backend: Any, limit: int, min_frequency: int) -> list[str]:
    """Return up to `limit` of the normalized text's most frequent characters, sorted."""
    # BERT's normalizer handles characters independently, so each one is normalized only once.
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
    """Return whether a character can occur inside a word, unlike punctuation and CJK characters."""
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
    """Split long documents into chunks at spaces, which does not change their words."""
    for text in documents:
        start = 0
        while len(text) - start > _CHUNK_CHARACTERS:
            end = max(text.rfind(space, start, start + _CHUNK_CHARACTERS) for space in " \n")
            end = end + 1 if end > start else start + _CHUNK_CHARACTERS
            yield text[start:end]
            start = end
        yield text[start:]
