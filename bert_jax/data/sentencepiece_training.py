"""Learns a SentencePiece vocabulary from text as ALBERT's was learned."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import sentencepiece

from bert_jax.data.sentencepiece_files import MODEL_NAME, albert_normalizer
from bert_jax.data.special_tokens import ALBERT
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.vocabulary_sample import (
    MAX_COUNT,
    MAX_VOCAB_SIZE,
    check_repeatable,
    check_sizes,
    even_sample,
    utf8_size,
    warn_if_smaller,
)

ModelType = Literal["unigram", "bpe"]
ALBERT_VOCAB_SIZE = 30_000
# The library holds the sample and its suffixes in memory, some 20 bytes for each byte of text.
MAX_SENTENCEPIECE_BYTES = 1 << 27
_SENTENCE_CHARACTERS = 2_000
_SENTENCE_BYTES = 4 * _SENTENCE_CHARACTERS  # a character is at most four
# Of ALBERT's release: pieces of their own wherever they stand.
_PUNCTUATION = ("(", ")", '"', "-", ".", "–", "£", "€")


def train_sentencepiece(
    documents: Iterable[str],
    *,
    model_type: ModelType = "unigram",
    vocab_size: int = ALBERT_VOCAB_SIZE,
    lowercase: bool = True,
    keep_accents: bool = False,
    max_bytes: int = MAX_SENTENCEPIECE_BYTES,
) -> tuple[Tokenizer, bytes]:
    """Learns <pad>, <unk>, [CLS], [SEP], [MASK], ALBERT's punctuation, and pieces.

    Text is normalized as in ALBERT's release: quotes, NFKD without accents and lower case (only
    lower case with `keep_accents`, neither unless `lowercase`), then SentencePiece's nmt_nfkc.

    `documents` is gone through twice, so it must not be an iterator: to measure it, and for at most
    `max_bytes` (UTF-8) of it, whole documents spread evenly over it.

    Returns: the tokenizer, and the content of the spiece.model that it is made of. It has fewer
    entries where the text gives no more, which is logged.

    Raises:
      ValueError: an unknown type, nothing to learn from, or a size that the text or the special
        tokens do not fit.
    """
    check_repeatable(documents)
    if model_type not in get_args(ModelType):
        raise ValueError(f"model_type is {model_type!r}; expected 'unigram' or 'bpe'")
    check_sizes(
        vocab_size=(vocab_size, 1, MAX_VOCAB_SIZE),
        max_bytes=(max_bytes, 1, MAX_COUNT),
    )
    num_bytes = sum(utf8_size(text) for text in documents if not text.isspace())
    if not num_bytes:
        raise ValueError("there is no text to learn a vocabulary from")
    sample = even_sample(documents, num_bytes, max_bytes)
    keep_accents = keep_accents or not lowercase
    normalizer = albert_normalizer(lowercase=lowercase, keep_accents=keep_accents)
    found = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentences(sample, normalizer),
            model_writer=found,
            model_type=model_type,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=ALBERT.pad,
            unk_piece=ALBERT.unk,
            control_symbols=[ALBERT.cls, ALBERT.sep, ALBERT.mask],
            user_defined_symbols=list(_PUNCTUATION),
            character_coverage=0.99995,
            normalization_rule_name="nmt_nfkc",
            max_sentence_length=_SENTENCE_BYTES,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        whole = str(error).strip()
        reason = re.sub(r"^.*?\] ?", "", whole.partition("\n")[0]) or whole
        # Its advice names an option of its own; all that is ours to choose is the size.
        reason = re.sub(r"Increase vocab_size or decrease .*", "Ask for a larger one.", reason)
        raise ValueError(f"a vocabulary of {vocab_size} cannot be learned: {reason}") from error
    tokenizer = tokenizer_of(found.getvalue(), lowercase=lowercase, keep_accents=keep_accents)
    warn_if_smaller(tokenizer.vocab_size, vocab_size)
    return tokenizer, found.getvalue()


def tokenizer_of(model: bytes, *, lowercase: bool, keep_accents: bool = False) -> Tokenizer:
    """Return the tokenizer for the content of a spiece.model; a cased one always keeps accents."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / MODEL_NAME
        file.write_bytes(model)
        if keep_accents or not lowercase:
            (Path(directory) / "tokenizer_config.json").write_text('{"keep_accents": true}')
        return Tokenizer.load(file, lowercase=lowercase)


def _sentences(documents: Iterable[str], normalizer: Any) -> Iterator[str]:
    """Lines of normalised text, long ones in parts that are cut at spaces where there are any."""
    for text in documents:
        for line in text.splitlines():
            rest = normalizer.normalize_str(line).strip()
            while len(rest) > _SENTENCE_CHARACTERS:
                end = rest.rfind(" ", 0, _SENTENCE_CHARACTERS)
                end = end if end > 0 else _SENTENCE_CHARACTERS
                yield rest[:end]
                rest = rest[end:].lstrip()
            if rest:
                yield rest
