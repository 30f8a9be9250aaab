"""What the pieces of a vocabulary are to the words of a text."""

from __future__ import annotations

import re
import unicodedata

from tokenizers import decoders

from bert_jax.data import byte_bpe_files, sentencepiece_files
from bert_jax.data.tokenizer_json import Kind
from bert_jax.data.wordpiece_files import CONTINUATION, UNUSED

# Of RoBERTa's vocabulary, up to a multiple of 8; of CamemBERT's, in the places fairseq gave others.
_FILLERS = re.compile(r"madeupword\d{4}|<(s|/s|unk)>NOTUSED")
# Scripts without spaces between words, by what the names of their letters begin with.
_WITHOUT_SPACES = frozenset(("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"))
_BYTES = decoders.ByteLevel()


def stands_in_text(piece: str) -> bool:
    """Whether a piece is no slot that a release left empty."""
    return not UNUSED.fullmatch(piece) and not _FILLERS.fullmatch(piece)


def continues_word(piece: str, kind: Kind) -> bool:
    """Whether a piece goes on with the word of the piece before it.

    WordPiece says so itself. In the others a word begins with its space or with punctuation, which
    what follows without a space goes on with, as in the n-gram masking of ALBERT's release. Where a
    script has no spaces between words every piece is a word: a line of it would be one otherwise.
    """
    match kind:
        case "wordpiece":
            return piece.startswith(CONTINUATION)
        case "byte_bpe":
            text = _BYTES.decode([piece])
            return not (piece.startswith(byte_bpe_files.SPACE) or text[:1].isspace()) and (
                not _begins_word(text)
            )
        case "sentencepiece":
            return not piece.startswith(sentencepiece_files.SPACE) and not _begins_word(piece)


def _begins_word(text: str) -> bool:
    if _is_punctuation(text):
        return True
    # A mark alone goes on with the letter that it is written with.
    script = unicodedata.name(text[:1], "").partition(" ")[0] if text else ""
    return script in _WITHOUT_SPACES and unicodedata.category(text[0])[0] != "M"


def _is_punctuation(text: str) -> bool:
    # Some of the bytes of a character are not one: they decode to U+FFFD, a symbol.
    if not text or "\ufffd" in text:
        return False
    return all(unicodedata.category(character)[0] in "PS" for character in text)
