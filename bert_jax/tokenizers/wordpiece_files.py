"""Read BERT's vocab.txt, and build its WordPiece tokenizer."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_jax.tokenizers.special_tokens import BERT
from bert_jax.tokenizers.vocabulary_files import read_text

UNUSED = re.compile(r"\[unused\d+\]")
CONTINUATION = "##"
# Longer words become [UNK]. BERT's released code has a limit of 200, but all ports use 100.
MAX_WORD_CHARACTERS = 100


def wordpiece_backend(
    vocabulary: Mapping[str, int],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    separate_cjk: bool = True,
) -> Any:
    """Build BERT's tokenizer.

    The tokenizer cleans the text, splits it into words at spaces, punctuation and CJK characters,
    and splits the words with WordPiece. Source: Devlin et al. 2018, section 3 ("Input/Output
    Representations"), and its released code.

    Args:
      vocabulary: the tokens and their ids.
      lowercase: whether text is lowercased.
      strip_accents: whether accents are stripped. If None, they are stripped only if text is
        lowercased.
      separate_cjk: whether every CJK character is a separate word.
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
    """Read a vocab.txt into a dict from piece to id.

    White space around a piece is stripped, as in BERT's released code. A line is left unchanged if
    it contains only white space, or if the stripped piece also occurs on another line.

    Raises:
      ValueError: the file is damaged, or is not a BERT vocabulary.
    """
    # Universal-newline mode would also split at a lone "\r", and str.splitlines even at U+2028.
    lines = [line.rstrip("\r") for line in read_text(file).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    unstripped = set(lines)
    vocabulary: dict[str, int] = {}
    for index, line in enumerate(lines):
        piece = line.strip()
        if not piece or piece in unstripped or piece in vocabulary:
            piece = line
        if not piece or piece in vocabulary:
            raise ValueError(f"{file}:{index + 1}: {_fault(piece, vocabulary, unstripped)}.")
        vocabulary[piece] = index
    missing = [token for token in BERT.tokens if token not in vocabulary]
    if missing:
        raise ValueError(f"{file}: not BERT's vocabulary: it lacks {', '.join(missing)}.")
    return vocabulary


def _fault(line: str, vocabulary: Mapping[str, int], lines: Container[str]) -> str:
    expected = "Expected a different entry on every line"
    if line:
        return f"the line repeats line {vocabulary[line] + 1}. {expected}"
    unused = next(name for name in map("[unused{}]".format, count()) if name not in lines)
    return f"the line is empty. {expected}. Replace it with {unused} to keep the other ids"


def has_upper_case(vocabulary: Mapping[str, int]) -> bool:
    """Return whether any token contains an uppercase ASCII letter.

    Special and unused tokens are ignored.
    """
    return any(
        "A" <= character <= "Z"
        for token in vocabulary
        if token not in BERT.tokens and not UNUSED.fullmatch(token)
        for character in token
    )
