"""Train byte-level BPE vocabularies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import numpy as np
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.tokenizers.byte_bpe_files import byte_bpe_backend
from bert_jax.tokenizers.files import add_special_tokens
from bert_jax.tokenizers.special_tokens import ROBERTA
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

ROBERTA_VOCAB_SIZE = 50_265
# The special tokens are in the order of RoBERTa's ids. The order matters, since RoBERTa's position
# ids start after the padding id, which is 1.
_SPECIALS = (ROBERTA.cls, ROBERTA.pad, ROBERTA.sep, ROBERTA.unk, ROBERTA.mask)
_WORDS_PER_CHUNK = 1_024
_MAX_WORD_CHARACTERS = 1_000
# The limit is the same as for WordPiece, which uses the same trainer. The trainer needs 75 to 100
# bytes per character.
_MAX_TOTAL_WORD_CHARACTERS = 8_000_000


def train_byte_bpe(
    documents: Iterable[str],
    *,
    vocab_size: int = ROBERTA_VOCAB_SIZE,
    min_frequency: int = 2,
    max_bytes: int = MAX_SAMPLE_BYTES,
    show_progress: bool = False,
) -> Tokenizer:
    """Train a byte-level BPE vocabulary of at most `vocab_size` tokens.

    The tokens are <s>, <pad>, </s>, <unk>, <mask>, the 256 bytes, and then trained pieces. Any run
    of white space counts as one space, as in `prepare`. Source: Liu et al. 2019, "RoBERTa", section
    4.4.

    Args:
      documents: the text, which is read twice and therefore must not be an iterator.
      vocab_size: the maximum number of tokens.
      min_frequency: how many times a pair of pieces must occur to be merged.
      max_bytes: the maximum size, in UTF-8 bytes, of the sample in which words are counted. The
        sample consists of whole documents spread evenly over the text.
      show_progress: whether the `tokenizers` library shows a progress bar.

    Raises:
      ValueError: there is no text, or a size is out of range.
    """
    check_repeatable(documents)
    num_fixed = len(_SPECIALS) + len(pre_tokenizers.ByteLevel.alphabet())
    check_sizes(
        min_frequency=(min_frequency, 1, MAX_COUNT),
        max_bytes=(max_bytes, 1, MAX_COUNT),
        vocab_size=(vocab_size, num_fixed + 1, MAX_VOCAB_SIZE),
    )
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(_SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    num_bytes = sum(map(utf8_size, documents))
    sample = _spaced_words(even_sample(documents, num_bytes, max_bytes))
    trained.train_from_iterator(map(_word_limit(), sample), trainer)
    vocabulary = trained.get_vocab()
    if len(vocabulary) == num_fixed:
        raise ValueError(NO_TEXT)
    warn_if_smaller(len(vocabulary), vocab_size)
    backend = byte_bpe_backend(vocabulary, _merges(trained))
    add_special_tokens(backend)
    return Tokenizer(backend)


def _merges(trained: Backend) -> list[tuple[str, str]]:
    merges = json.loads(trained.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges]


def _spaced_words(documents: Iterable[str]) -> Iterator[str]:
    """Yield each document's words in chunks, with a space before every word except the first."""
    for text in documents:
        words = [word for word in text.split() if len(word) <= _MAX_WORD_CHARACTERS]
        for begin in range(0, len(words), _WORDS_PER_CHUNK):
            chunk = " ".join(words[begin : begin + _WORDS_PER_CHUNK])
            yield f" {chunk}" if begin else chunk


def _word_limit() -> WordLimit:
    inside = np.array([not chr(code_point).isspace() for code_point in range(0x110000)])
    return WordLimit(
        inside,
        max_characters=_WORDS_PER_CHUNK * (_MAX_WORD_CHARACTERS + 1),
        max_word_characters=_MAX_WORD_CHARACTERS,
        max_total_characters=_MAX_TOTAL_WORD_CHARACTERS,
    )
