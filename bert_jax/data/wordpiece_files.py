"""WordPiece as BERT's release keeps it: vocab.txt."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.data.special_tokens import BERT
from bert_jax.data.vocabulary_checks import read_text

UNUSED = re.compile(r"\[unused\d+\]")
CONTINUATION = "##"
MAX_WORD_CHARACTERS = 100  # a longer word is [UNK]; BERT's released code says 200, every port 100


def wordpiece_backend(
    vocabulary: Mapping[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    separate_cjk: bool = True,
) -> Any:
    """BERT's tokenizer over `vocabulary`: clean, split at spaces, punctuation and CJK, WordPiece.

    `strip_accents=None` strips them exactly where text is lower-cased.
    Source: Devlin et al. 2018, section 3 ("Input/Output Representations"), and its released code.
    """
    backend = tokenizers.Tokenizer(
        models.WordPiece(
            dict(vocabulary),
            unk_token=BERT.unk,
            continuing_subword_prefix=CONTINUATION,
            max_input_chars_per_word=MAX_WORD_CHARACTERS,
        )
    )
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=separate_cjk,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    cls, sep = BERT.cls, BERT.sep
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, vocabulary[token]) for token in (cls, sep)],
    )
    return backend


def read_vocabulary(file: Path) -> dict[str, int]:
    """Return the pieces of a vocab.txt and their ids.

    White space around a piece is stripped, as in BERT's released code, unless the line holds
    nothing else or the piece is already on another line; such lines are kept as they are.

    Raises:
        ValueError: the file is damaged or not BERT's.
    """
    # Universal line ends would split at a lone "\r", str.splitlines at U+2028 as well.
    lines = [line.rstrip("\r") for line in read_text(file).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    whole = set(lines)
    vocabulary: dict[str, int] = {}
    for index, line in enumerate(lines):
        piece = line.strip()
        if not piece or piece in whole or piece in vocabulary:
            piece = line
        if not piece or piece in vocabulary:
            raise ValueError(f"{file}:{index + 1}: {_fault(piece, vocabulary, whole)}")
        vocabulary[piece] = index
    missing = [token for token in BERT.tokens if token not in vocabulary]
    if missing:
        raise ValueError(f"{file}: not BERT's vocabulary: it lacks {', '.join(missing)}")
    return vocabulary


def _fault(line: str, vocabulary: Mapping[str, int], lines: Container[str]) -> str:
    expected = "expected a different entry on every line"
    if line:
        return f"the line repeats line {vocabulary[line] + 1}; {expected}"
    slot = next(name for name in map("[unused{}]".format, count()) if name not in lines)
    return f"the line is empty; {expected}. Replace it with {slot} to keep the other ids."


def has_upper_case(vocabulary: Mapping[str, int]) -> bool:
    """Whether a piece other than the special and unused ones has an upper-case ASCII letter."""
    return any(
        "A" <= character <= "Z"
        for token in vocabulary
        if token not in BERT.tokens and not UNUSED.fullmatch(token)
        for character in token
    )
