"""Train SentencePiece vocabularies."""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import sentencepiece

from bert_jax.tokenizers.sentencepiece_files import SENTENCEPIECE_NAME, albert_normalizer
from bert_jax.tokenizers.special_tokens import ALBERT
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.training import (
    MAX_COUNT,
    MAX_SENTENCEPIECE_BYTES,
    MAX_VOCAB_SIZE,
    NO_TEXT,
    check_repeatable,
    check_sizes,
    even_sample,
    utf8_size,
    warn_if_smaller,
)

ModelType = Literal["unigram", "bpe"]
ALBERT_VOCAB_SIZE = 30_000
_SENTENCE_CHARACTERS = 2_000
# UTF-8 uses at most four bytes per character.
_SENTENCE_BYTES = 4 * _SENTENCE_CHARACTERS
# As in ALBERT's release, these are always separate pieces.
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
    """Train a SentencePiece vocabulary of at most `vocab_size` tokens.

    The tokens are <pad>, <unk>, [CLS], [SEP], [MASK], ALBERT's punctuation, and then trained
    pieces. Text is normalized as in ALBERT's release: quotes are unified, accents are stripped
    after NFKD, letters are lowercased, and SentencePiece's nmt_nfkc is applied. With
    `keep_accents`, text keeps its accents; without `lowercase`, it keeps both its accents and its
    case. A warning is logged if there is too little text for a vocabulary of the requested size.

    Args:
      documents: the text, which is read twice and therefore must not be an iterator.
      model_type: "unigram" for SentencePiece's unigram model, or "bpe" for its variant of BPE.
      vocab_size: the maximum number of tokens.
      lowercase: whether text is lowercased.
      keep_accents: whether lowercased text keeps its accents.
      max_bytes: the maximum size, in UTF-8 bytes, of the sample to train on. The sample consists of
        whole documents spread evenly over the text.

    Returns:
      A tuple of the tokenizer and the content of the spiece.model that it was built from.

    Raises:
      ValueError: `model_type` is unknown, there is no text, or a vocabulary of this size cannot be
        trained, for example because it is too small for the text or the special tokens.
    """
    check_repeatable(documents)
    if model_type not in get_args(ModelType):
        raise ValueError(f"model_type={model_type!r}: expected 'unigram' or 'bpe'.")
    check_sizes(
        vocab_size=(vocab_size, 1, MAX_VOCAB_SIZE),
        max_bytes=(max_bytes, 1, MAX_COUNT),
    )
    num_bytes = sum(utf8_size(text) for text in documents if not text.isspace())
    if not num_bytes:
        raise ValueError(NO_TEXT)
    sample = even_sample(documents, num_bytes, max_bytes)
    keep_accents = keep_accents or not lowercase
    normalizer = albert_normalizer(lowercase=lowercase, keep_accents=keep_accents)
    model_file = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_sentences(sample, normalizer),
            model_writer=model_file,
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
        message = str(error).strip()
        reason = re.sub(r"^.*?\] ?", "", message.partition("\n")[0]) or message
        # The library also suggests an option that this function does not have.
        reason = re.sub(r"Increase vocab_size or decrease .*", "Use a larger one.", reason)
        raise ValueError(
            f"vocab_size={vocab_size}: cannot train this vocabulary: {reason}"
        ) from error
    tokenizer = sentencepiece_tokenizer(
        model_file.getvalue(), lowercase=lowercase, keep_accents=keep_accents
    )
    warn_if_smaller(tokenizer.vocab_size, vocab_size)
    return tokenizer, model_file.getvalue()


def sentencepiece_tokenizer(
    model: bytes, *, lowercase: bool, keep_accents: bool = False
) -> Tokenizer:
    """Build a tokenizer from the content of a spiece.model.

    A cased tokenizer always keeps accents.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / SENTENCEPIECE_NAME
        file.write_bytes(model)
        if keep_accents or not lowercase:
            (Path(directory) / "tokenizer_config.json").write_text('{"keep_accents": true}')
        return Tokenizer.load(file, lowercase=lowercase)


def _sentences(documents: Iterable[str], normalizer: Any) -> Iterator[str]:
    """Yield lines of normalized text. Long lines are split into parts, at spaces if possible."""
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
