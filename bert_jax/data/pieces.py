"""What the pieces of a vocabulary are to the words of a text."""

from __future__ import annotations

import re
import unicodedata

from tokenizers import decoders

from bert_jax.data import byte_bpe_files, sentencepiece_files
from bert_jax.data.tokenizer_files import Kind
from bert_jax.data.wordpiece_files import CONTINUATION, UNUSED

_FILLERS = re.compile(r"madeupword\d{4}")  # of RoBERTa's vocabulary, up to a multiple of 8
_BYTES = decoders.ByteLevel()


def stands_in_text(piece: str) -> bool:
    """Whether a piece is no slot that a release left empty."""
    return not UNUSED.fullmatch(piece) and not _FILLERS.fullmatch(piece)


def continues_word(piece: str, kind: Kind) -> bool:
    """Whether a piece goes on with the word of the piece before it.

    WordPiece says so itself. In the others a word begins with its space or with punctuation, which
    what follows without a space goes on with, as in the n-gram masking of ALBERT's release.
    """
    match kind:
        case "wordpiece":
            return piece.startswith(CONTINUATION)
        case "byte_bpe":
            text = _BYTES.decode([piece])
            return not (piece.startswith(byte_bpe_files.SPACE) or text[:1].isspace()) and (
                not _is_punctuation(text)
            )
        case "sentencepiece":
            return not piece.startswith(sentencepiece_files.SPACE) and not _is_punctuation(piece)


def _is_punctuation(text: str) -> bool:
    # Some of the bytes of a character are not one: they decode to U+FFFD, a symbol.
    if not text or "\ufffd" in text:
        return False
    return all(unicodedata.category(character)[0] in "PS" for character in text)
