"""Compare tokenized texts and their words with those of Hugging Face's tokenizers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

from bert_jax import tokenize
from bert_jax.tokenizers.tokenizer import Tokenizer

from ..interop.families import make as make_family

TEXTS = [
    ("I love my pet Python, python!", None),
    ("wet roads", "it rains, it pours"),
    ("caf\u00e9 na\u00efve", "\u4e1c\u4eac"),
    ("", None),
]


@pytest.fixture(scope="module", params=["Roberta", "DistilBert"])
def directory(request, tmp_path_factory) -> Path:
    """Return a directory with a byte-level or a WordPiece tokenizer."""
    path = tmp_path_factory.mktemp(request.param)
    make_family(path, request.param, "encoder")
    return path


@pytest.mark.parametrize(("text", "second"), TEXTS)
def test_tokens_and_offsets_equal_hugging_face(directory, text, second):
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    expected = theirs(text, second, return_offsets_mapping=True)
    ours = tokenize(directory, text, second)
    assert ours.token_ids.tolist() == expected["input_ids"]
    assert list(ours.tokens) == theirs.convert_ids_to_tokens(expected["input_ids"])
    kept = ours.is_text
    offsets = np.array(expected["offset_mapping"]).reshape(-1, 2)[kept]
    texts = [second if segment else text for segment in ours.segment_ids[kept].tolist()]
    for found, wanted, source in zip(ours.offsets[kept].tolist(), offsets, texts, strict=True):
        # Hugging Face counts the space before a byte-level token as part of the token.
        assert source[found[0] : found[1]] == source[wanted[0] : wanted[1]].strip()
    np.testing.assert_array_equal(ours.is_text, [i is not None for i in expected.sequence_ids()])


@pytest.mark.parametrize("max_length", [5, 8])
@pytest.mark.parametrize(("text", "second"), TEXTS[:3])
def test_truncation_equals_hugging_face(directory, text, second, max_length):
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    ours = tokenize(directory, text, second, max_length)
    expected = theirs(text, second, truncation=True, max_length=max_length)["input_ids"]
    assert ours.token_ids.tolist() == expected
    assert ours.truncated == (len(theirs(text, second)["input_ids"]) > max_length)
    assert ours.words[-1].stop == len(ours.tokens)


@pytest.mark.parametrize(("text", "second"), TEXTS)
def test_every_token_belongs_to_one_word(directory, text, second):
    words = tokenize(directory, text, second).words
    assert [word.start for word in words] == [0, *(word.stop for word in words[:-1])]
    inside = [word.text for word in words if word.text not in ("[CLS]", "[SEP]", "<s>", "</s>")]
    joined = f"{text}{second or ''}".replace(" ", "")
    assert "".join(inside) == joined or "[UNK]" in tokenize(directory, text, second).tokens


def test_given_words_equal_hugging_face(directory):
    words = ("wet", "roads,", "rain")
    options = {"add_prefix_space": True} if "Roberta" in str(directory) else {}
    theirs = transformers.AutoTokenizer.from_pretrained(directory, **options)
    expected = theirs(list(words), is_split_into_words=True)
    ours = tokenize(directory, words)
    assert ours.token_ids.tolist() == expected["input_ids"]
    numbers = [number for number in expected.word_ids() if number is not None]
    for number, word in enumerate(ours.words[1:-1]):
        assert numbers[word.start - 1 : word.stop - 1] == [number] * (word.stop - word.start)
    assert ours.text == "wet roads, rain"


def test_a_mask_in_a_text_is_one_word(directory):
    mask = Tokenizer.load(directory).specials.mask
    words = tokenize(directory, f"wet {mask}, rain").words
    assert [word.text for word in words[1:-1]] == ["wet", mask, ",", "rain"]


def test_requests_that_make_no_sense_are_rejected(directory, tmp_path):
    with pytest.raises(ValueError, match="^max_length=2: "):
        tokenize(directory, "wet", max_length=2)
    with pytest.raises(ValueError, match=str(tmp_path)):
        tokenize(tmp_path, "wet")


def test_the_command_prints_tokens_and_words(bert_jax_here, directory):
    printed = bert_jax_here("tokenize", directory, "wet roads", "<rain>")
    assert printed.code == 0, printed.errors
    assert printed.output == f"{tokenize(directory, 'wet roads', '<rain>')}\n"
    shown = tokenize(directory, "wet <rain>")
    assert "\x1b[" in "\n".join(shown.lines(color=True))
    assert "&lt;" in shown._repr_html_() and "<r" not in shown._repr_html_()
