"""Train byte-level BPE and SentencePiece vocabularies, and sample text for any kind of vocabulary.

Training is deterministic: the same text always gives the same vocabulary.
"""

from __future__ import annotations

import io
import json
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from bert_jax.tokenizers.byte_bpe_files import byte_bpe_backend
from bert_jax.tokenizers.files import add_special_tokens
from bert_jax.tokenizers.sentencepiece_files import SENTENCEPIECE_NAME, albert_normalizer
from bert_jax.tokenizers.special_tokens import ALBERT, ROBERTA
from bert_jax.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_SAMPLE_BYTES = 1 << 30  # takes three to five minutes on two cores
# Ten times the size of the largest published vocabularies. The libraries allocate memory for all
# tokens up front.
MAX_VOCAB_SIZE = 10_000_000
MAX_COUNT = 2**63 - 1  # the largest value of the libraries' integer type
NO_TEXT = "documents: no text to train a vocabulary on."


def check_sizes(**sizes: tuple[int, int, int]) -> None:
    """Raise ValueError if a size, given as (value, minimum, maximum), is out of range."""
    for name, (value, minimum, maximum) in sizes.items():
        if value < minimum:
            raise ValueError(f"{name}={value}: expected at least {minimum}.")
        if value > maximum:
            raise ValueError(f"{name}={value}: expected at most {maximum:,}.")


def check_repeatable(documents: Iterable[str]) -> None:
    """Raise ValueError for an iterator, since training iterates over the documents twice."""
    if iter(documents) is documents:
        raise ValueError(
            "documents: this is an iterator, but training iterates over the documents twice. Pass "
            "a list, or an object whose `__iter__` starts from the beginning."
        )


def warn_if_smaller(size: int, requested: int) -> None:
    """Log a warning if the text was too small for a vocabulary of the requested size."""
    if size < requested:
        logger.warning(
            "the text has only enough repeated pieces for a vocabulary of %d tokens, not %d",
            size,
            requested,
        )


def even_sample(documents: Iterable[str], num_bytes: int, max_bytes: int) -> Iterator[str]:
    """Yield documents spread evenly over the text, up to a total size.

    A document is taken only if the fraction of `max_bytes` used so far, including this document,
    does not exceed the fraction of the text read so far.

    Args:
      documents: the documents.
      num_bytes: the total size of all documents, in UTF-8 bytes.
      max_bytes: the maximum total size of the documents taken, in UTF-8 bytes.

    Raises:
      ValueError: there is text, but no document fits in `max_bytes`.
    """
    seen = taken = smallest = 0
    for text in documents:
        size = utf8_size(text)
        seen += size
        smallest = min(smallest or size, size)
        if (taken + size) * num_bytes <= max_bytes * seen:
            taken += size
            yield text
    if seen and not taken:
        raise ValueError(
            f"max_bytes={max_bytes}: the smallest document has {smallest:,} bytes, and "
            "vocabularies are trained on whole documents. Raise the limit or, in plain text, "
            "separate documents with blank lines."
        )


def utf8_size(text: str) -> int:
    """Return the size of a text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8"))


_NUM_SLOTS_LOG2 = 27  # one bit per slot, 16 MiB; a million words use less than 1% of the slots
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2**64
_HASH_BASE_INVERSE = np.uint64(pow(int(_HASH_BASE), -1, 2**64))
_MIX = np.uint64(0xD6E8FEB86659FD93)


class WordLimit:
    """A filter that blanks out words so that the total size of distinct words stays bounded.

    Words longer than `max_word_characters` are always blanked out. Other words pass until the
    distinct words seen so far contain `max_total_characters` characters in total; after that, only
    words that have been seen before pass. Frequent words are therefore counted exactly over the
    whole stream, and only words that first occur late are lost. Words are identified by a hash, so
    on rare occasions a new word is mistaken for one seen before.
    """

    def __init__(
        self,
        inside: NDArray[np.bool_],
        *,
        max_characters: int,
        max_word_characters: int,
        max_total_characters: int,
    ) -> None:
        """Create a filter.

        Args:
          inside: a Boolean array [0x110000] that marks the code points that can be part of a word.
            Other characters always pass.
          max_characters: the length of the longest text that will be filtered.
          max_word_characters: the length of the longest word that passes.
          max_total_characters: the total length of the distinct words that pass.
        """
        self._inside = inside
        self._max_word_characters = max_word_characters
        self._characters_left = max_total_characters
        self._seen = np.zeros(1 << (_NUM_SLOTS_LOG2 - 3), np.uint8)
        self._full = False
        bases = np.full(max_characters, _HASH_BASE)
        inverses = np.full(max_characters, _HASH_BASE_INVERSE)
        bases[0] = inverses[0] = 1
        self._powers = np.multiply.accumulate(bases)
        self._inverse_powers = np.multiply.accumulate(inverses)

    def __call__(self, text: str) -> str:
        """Return the text with blanked-out words replaced by spaces."""
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        edges = np.diff(self._inside[codes].astype(np.int8), prepend=0, append=0)
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        dropped = ends - starts > self._max_word_characters
        slots = self._slots(codes, starts, ends)
        unseen = ~dropped & ((self._seen[slots >> 3] >> (slots & 7).astype(np.uint8)) & 1 == 0)
        if self._full:
            dropped |= unseen
        else:
            self._remember(slots[unseen], (ends - starts)[unseen])
        if not dropped.any():
            return text
        blank = np.zeros(len(codes) + 1, np.int8)
        blank[starts[dropped]] = 1
        blank[ends[dropped]] = -1
        return (
            np.where(np.cumsum(blank[:-1]), ord(" "), codes)
            .astype("<u4")
            .tobytes()
            .decode("utf-32-le")
        )

    def _slots(
        self, codes: NDArray[np.uint32], starts: NDArray[np.intp], ends: NDArray[np.intp]
    ) -> NDArray[np.int64]:
        """Return each word's slot, which is a polynomial hash computed from running sums."""
        sums = np.zeros(len(codes) + 1, np.uint64)
        np.cumsum(codes * self._powers[: len(codes)], out=sums[1:])
        hashes = (sums[ends] - sums[starts]) * self._inverse_powers[starts]
        hashes = (hashes ^ (hashes >> np.uint64(32))) * _MIX
        return (hashes >> np.uint64(64 - _NUM_SLOTS_LOG2)).astype(np.int64)

    def _remember(self, slots: NDArray[np.int64], lengths: NDArray[np.intp]) -> None:
        slots, first = np.unique(slots, return_index=True)
        np.bitwise_or.at(self._seen, slots >> 3, np.uint8(1) << (slots & 7).astype(np.uint8))
        self._characters_left -= int(lengths[first].sum())
        if self._characters_left <= 0:
            self._full = True
            logger.warning(
                "the text has too many distinct words: from here on, only words seen before are "
                "counted. To count all words, use a smaller sample (--max-bytes)."
            )


ROBERTA_VOCAB_SIZE = 50_265
# These are in the order of RoBERTa's ids. Padding has id 1, and RoBERTa's position ids start after
# this id.
_SPECIALS = (ROBERTA.cls, ROBERTA.pad, ROBERTA.sep, ROBERTA.unk, ROBERTA.mask)
_WORDS_PER_CHUNK = 1_024
_MAX_WORD_CHARACTERS = 1_000
# The same limit as for WordPiece, since both use the same trainer, which needs 75 to 100 bytes per
# character.
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


ModelType = Literal["unigram", "bpe"]
ALBERT_VOCAB_SIZE = 30_000
# The library keeps the sample and all of its suffixes in memory, which takes about 20 bytes per
# byte of text.
MAX_SENTENCEPIECE_BYTES = 1 << 27
_SENTENCE_CHARACTERS = 2_000
_SENTENCE_BYTES = 4 * _SENTENCE_CHARACTERS  # UTF-8 has at most four bytes per character
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
      ValueError: `model_type` is unknown, there is no text, or `vocab_size` does not suit the text
        or the special tokens.
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
