"""Test that special tokens spelled out in a text are treated as text, even by SentencePiece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_jax.cli.main import main
from bert_jax.tokenizers.special_tokens import split_specials, unsplit_offsets
from bert_jax.tokenizers.tokenizer import Tokenizer

TEXTS = (
    "the [MASK] sat [SEP]",
    "x[CLS]y",
    "foo <pad> bar",
    "FOO <PAD> bar<unk>",
    "[MASK][MASK] [mask]",
    "plain words",
)


@pytest.fixture(scope="module", params=["", "--cased"])
def tokenizer(request, tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    output = tmp_path_factory.mktemp("sentencepiece")
    words = ["train-tokenizer", "--kind", "sentencepiece", "--input", str(tiny_text)]
    words += ["--vocab-size", "300", "--output", str(output), *filter(None, [request.param])]
    assert main(words) == 0
    return Tokenizer.load(output)


def test_text_never_becomes_a_special_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.kind == "sentencepiece"
    # These tokens must not cover any character of the text.
    special = set(tokenizer.special_ids) - {tokenizer.unk_id}
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS, specials_as_text=True), strict=True):
        assert ids and not special & set(ids), text
    (with_mask,) = tokenizer.encode_batch(["the [MASK]"])
    assert with_mask[-1] == tokenizer.mask_id


def test_offsets_refer_to_the_original_text(tokenizer: Tokenizer) -> None:
    located = tokenizer.encode_with_offsets(TEXTS, specials_as_text=True)
    for text, tokens in zip(TEXTS, located, strict=True):
        # The piece for the space before a word has the offsets of the word's first character.
        places = {place for span in tokens.offsets.tolist() for place in range(*span)}
        assert "".join(text[place] for place in sorted(places)) == text.replace(" ", ""), tokens
    for text, words in zip(TEXTS, tokenizer.word_offsets(TEXTS), strict=True):
        assert "".join(text[start:end] for start, end in words.tolist()) == text.replace(" ", "")


def test_offsets_of_split_special_tokens_are_converted_back() -> None:
    text, tokens = "a[MASK]b <pad>", ("[MASK]", "<pad>")
    split = split_specials(text, tokens)
    assert split == "a[ MASK]b < pad>"
    offsets = np.array([[i, i + 1] for i in range(len(split)) if i not in (2, 11)], np.int32)
    converted = unsplit_offsets(offsets, text, tokens)
    assert [text[start:end] for start, end in converted.tolist()] == list(text)
