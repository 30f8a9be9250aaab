"""Text that spells a special token is text, in SentencePiece's vocabularies too."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_jax.cli.main import main
from bert_jax.tokenizers.special_tokens import broken, unbroken
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


def test_no_special_token_comes_of_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.kind == "sentencepiece"
    special = set(tokenizer.special_ids) - {tokenizer.unk_id}  # of what no piece is for
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS, specials_as_text=True), strict=True):
        assert ids and not special & set(ids), text
    (meant,) = tokenizer.encode_batch(["the [MASK]"])
    assert meant[-1] == tokenizer.mask_id


def test_offsets_are_those_of_the_text_as_it_was_given(tokenizer: Tokenizer) -> None:
    found = tokenizer.encode_with_offsets(TEXTS, specials_as_text=True)
    for text, tokens in zip(TEXTS, found, strict=True):
        # A word's first piece, the space before it, shares its first character.
        places = {place for span in tokens.offsets.tolist() for place in range(*span)}
        assert "".join(text[place] for place in sorted(places)) == text.replace(" ", ""), tokens
    for text, words in zip(TEXTS, tokenizer.word_offsets(TEXTS), strict=True):
        assert "".join(text[start:end] for start, end in words.tolist()) == text.replace(" ", "")


def test_broken_and_back() -> None:
    import numpy as np

    text, names = "a[MASK]b <pad>", ("[MASK]", "<pad>")
    changed = broken(text, names)
    assert changed == "a[ MASK]b < pad>"
    places = np.array([[i, i + 1] for i in range(len(changed)) if i not in (2, 11)], np.int32)
    back = unbroken(places, text, names)
    assert [text[start:end] for start, end in back.tolist()] == list(text)
