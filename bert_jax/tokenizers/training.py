"""Train byte-level BPE and SentencePiece vocabularies, and sample the text for any kind.

The same text gives the same vocabulary.
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

from bert_jax.tokenizers.files import add_special_tokens
from bert_jax.tokenizers.special_tokens import ALBERT, ROBERTA
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.vocabulary_files import (
    SENTENCEPIECE_NAME,
    albert_normalizer,
    byte_bpe_backend,
)

logger = logging.getLogger(__name__)

MAX_SAMPLE_BYTES = 1 << 30  # three to five minutes on two cores
# Ten times the largest published vocabularies; the libraries allocate memory for all entries at
# once.
MAX_VOCAB_SIZE = 10_000_000
MAX_COUNT = 2**63 - 1  # the libraries' integer type


def check_sizes(**sizes: tuple[int, int, int]) -> None:
    """Raise ValueError if a size's value, given as (value, least, most), is out of range."""
    for name, (value, least, most) in sizes.items():
        if value < least:
            raise ValueError(f"{name} is {value}, expected at least {least}")
        if value > most:
            raise ValueError(f"{name} is {value}, expected at most {most:,}")


def check_repeatable(documents: Iterable[str]) -> None:
    """Raises ValueError for an iterator, which can be gone through once where twice is needed."""
    if iter(documents) is documents:
        raise ValueError(
            "documents is an iterator, which can be gone through only once; expected a list or an "
            "object that begins anew each time it is iterated over"
        )


def warn_if_smaller(found: int, wanted: int) -> None:
    """Logs that a text has not given a vocabulary as many entries as were asked for."""
    if found < wanted:
        logger.warning(
            "the text has enough repeated pieces for a vocabulary of %d, not %d", found, wanted
        )


def even_sample(documents: Iterable[str], num_bytes: int, max_bytes: int) -> Iterator[str]:
    """Takes a document while the share taken of the budget is within the share seen of the text.

    num_bytes: of all documents together. max_bytes: of those taken, both as UTF-8.

    Raises:
      ValueError: there is text, but no document of it fits into `max_bytes`.
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
            f"the smallest document has {smallest:,} bytes, and a vocabulary is learned from whole "
            f"documents of at most {max_bytes:,} bytes together: give more (--max-bytes), or "
            "separate the documents of plain text by blank lines"
        )


def utf8_size(text: str) -> int:
    """Bytes of a text as UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8"))


_NUM_SLOTS_LOG2 = 27  # one bit each, 16 MiB, of which a million words take less than 1 %
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2**64
_HASH_BASE_INVERSE = np.uint64(pow(int(_HASH_BASE), -1, 2**64))
_MIX = np.uint64(0xD6E8FEB86659FD93)


class WordLimit:
    """Blanks out words of a text so that those it lets through, over all texts, stay bounded.

    A word longer than `max_word_characters` never passes. Others do until the different words
    seen have `max_total_characters` together; from then on only words seen before. So the most
    frequent words are counted exactly over the whole stream, and it is those that first appear
    late that are lost. Words are told apart by a hash: a new one may, rarely, pass as seen.
    """

    def __init__(
        self,
        inside: NDArray[np.bool_],
        *,
        max_characters: int,
        max_word_characters: int,
        max_total_characters: int,
    ) -> None:
        """`inside` [0x110000]: the code points words are made of; others are let through.

        `max_characters` is the longest text that will come.
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
        """The text, with a space in place of each character of a word that does not pass."""
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
        """Each word's hash: its polynomial in the base modulo 2**64, from running sums, mixed."""
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
                "the text has so many different words that from here on only those already seen "
                "are counted; a smaller sample (--max-bytes) would be counted whole"
            )


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
        file = Path(directory) / SENTENCEPIECE_NAME
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
