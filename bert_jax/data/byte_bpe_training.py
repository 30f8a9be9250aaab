"""Learns a byte-level BPE vocabulary from text, the same one whenever the text is the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.data.byte_bpe_files import byte_bpe_backend
from bert_jax.data.special_tokens import ROBERTA
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.tokenizer_files import add_special_tokens
from bert_jax.data.vocabulary_sample import (
    MAX_COUNT,
    MAX_SAMPLE_BYTES,
    MAX_VOCAB_SIZE,
    check_repeatable,
    check_sizes,
    even_sample,
    utf8_size,
    warn_if_smaller,
)
from bert_jax.data.word_limit import WordLimit

ROBERTA_VOCAB_SIZE = 50_265
# In the order of RoBERTa's ids: that of padding is 1, and positions begin behind it.
_SPECIALS = (ROBERTA.cls, ROBERTA.pad, ROBERTA.sep, ROBERTA.unk, ROBERTA.mask)
_WORDS_AT_ONCE = 1_024
_MAX_WORD_CHARACTERS = 1_000
# As for WordPiece, whose trainer is the same and takes 75 to 100 bytes for each.
_MAX_TOTAL_WORD_CHARACTERS = 8_000_000


def train_byte_bpe(
    documents: Iterable[str],
    *,
    vocab_size: int = ROBERTA_VOCAB_SIZE,
    min_frequency: int = 2,
    max_bytes: int = MAX_SAMPLE_BYTES,
    show_progress: bool = False,
) -> Tokenizer:
    """Learns at most `vocab_size` entries: <s>, <pad>, </s>, <unk>, <mask>, the bytes, then pieces.

    `documents` is gone through twice, so it must not be an iterator: to measure it, and for the
    words of at most `max_bytes` (UTF-8) of it, whole documents spread evenly over it. White space
    is a space, as `prepare` reads it. ValueError if there is nothing to learn from or the size
    leaves no room. Source: Liu et al. 2019, "RoBERTa", section 4.4.
    """
    check_repeatable(documents)
    least = len(_SPECIALS) + len(pre_tokenizers.ByteLevel.alphabet())
    check_sizes(
        min_frequency=(min_frequency, 1, MAX_COUNT),
        max_bytes=(max_bytes, 1, MAX_COUNT),
        vocab_size=(vocab_size, least + 1, MAX_VOCAB_SIZE),
    )
    learner = Backend(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(_SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    num_bytes = sum(map(utf8_size, documents))
    sample = _spaced_words(even_sample(documents, num_bytes, max_bytes))
    learner.train_from_iterator(map(_word_limit(), sample), trainer)
    vocabulary = learner.get_vocab()
    if len(vocabulary) == least:
        raise ValueError("there is no text to learn a vocabulary from")
    warn_if_smaller(len(vocabulary), vocab_size)
    backend = byte_bpe_backend(vocabulary, _merges(learner))
    add_special_tokens(backend)
    return Tokenizer(backend)


def _merges(learner: Backend) -> list[tuple[str, str]]:
    merges = json.loads(learner.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges]


def _spaced_words(documents: Iterable[str]) -> Iterator[str]:
    """The words of each document with a space before all but the first, some at a time."""
    for text in documents:
        words = [word for word in text.split() if len(word) <= _MAX_WORD_CHARACTERS]
        for begin in range(0, len(words), _WORDS_AT_ONCE):
            some = " ".join(words[begin : begin + _WORDS_AT_ONCE])
            yield f" {some}" if begin else some


def _word_limit() -> WordLimit:
    inside = np.array([not chr(code_point).isspace() for code_point in range(0x110000)])
    return WordLimit(
        inside,
        max_characters=_WORDS_AT_ONCE * (_MAX_WORD_CHARACTERS + 1),
        max_word_characters=_MAX_WORD_CHARACTERS,
        max_total_characters=_MAX_TOTAL_WORD_CHARACTERS,
    )
