"""Test that words and their offsets match Hugging Face's pre-tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import BertTokenizerFast

from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.wordpiece_training import train_wordpiece
from bert_jax.tokenizers.words import find_words, split_words

LINES = (Path(__file__).with_name("unicode_torture.txt")).read_text(encoding="utf-8").split("\n")


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def trained(request, tmp_path_factory) -> tuple[Tokenizer, BertTokenizerFast]:
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer = train_wordpiece(LINES, vocab_size=2500, lowercase=request.param, min_frequency=1)
    tokenizer.save(directory)
    reference = BertTokenizerFast(vocab=str(directory / "vocab.txt"), do_lower_case=request.param)
    return tokenizer, reference


def test_words_match_hugging_face(trained):
    tokenizer, reference = trained
    for line, words in zip(LINES, split_words(tokenizer, LINES), strict=True):
        encoding = reference(line, add_special_tokens=False)
        expected = [
            encoding.word_to_chars(number)
            for number in sorted({i for i in encoding.word_ids() if i is not None})
        ]
        # The line may spell out a special token, which Hugging Face treats as one word.
        if "[" in line:
            continue
        assert [word.start for word in words] == [span.start for span in expected], line
        for word, span in zip(words, expected, strict=True):
            assert word.text == line[word.start : word.end]
            assert word.end >= span.end and not line[span.end : word.end].strip().isalnum()


def test_accents_belong_to_their_word_and_special_tokens_are_text(trained):
    tokenizer, _ = trained
    (words,) = split_words(tokenizer, ["Cafe\u0301, [MASK]\x00 \u200b"])
    assert [word.text for word in words] == ["Cafe\u0301", ",", "[", "MASK", "]"]
    assert split_words(tokenizer, ["", " \x00\t"]) == [[], []]


def test_a_mark_belongs_to_only_one_word(trained):
    """Begin a new word at a mark after punctuation, unless the tokenizer strips the mark."""
    tokenizer, _ = trained
    spans = [
        (word.start, word.end) for word in split_words(tokenizer, ["<\u093f\u00df <\u0301a"])[0]
    ]
    assert spans[:2] == [(0, 1), (1, 3)]
    assert spans[2:] == ([(4, 6), (6, 7)] if tokenizer.lowercase else [(4, 5), (5, 7)])


def test_words_are_found_after_normalization(trained):
    tokenizer, _ = trained
    text = "Python, python; New  York's PYTHON"
    assert find_words(tokenizer, text, "python") == (
        [(0, 6), (8, 14), (28, 34)] if tokenizer.lowercase else [(8, 14)]
    )
    assert find_words(tokenizer, text, "New York") == [(16, 25)]
    assert find_words(tokenizer, text, "York's") == [(21, 27)]
    assert find_words(tokenizer, text, "pyth") == []
    assert find_words(tokenizer, text, "") == [] == find_words(tokenizer, "", "python")


def test_words_of_sentencepiece_are_split_as_berts(shared_data: Path):
    """Split off punctuation marks, unlike SentencePiece, because tagged datasets separate them."""
    albert = Tokenizer.load(shared_data / "vocab/albert-30k/spiece.model")
    text = "Matt's  (really) in Canada. [MASK]"
    (words,) = split_words(albert, [text])
    strings = [word.text for word in words]
    assert strings == [
        *("Matt", "'", "s", "(", "really", ")", "in", "Canada", ".", "[", "MASK", "]")
    ]
    assert find_words(albert, "I love my pet Python.", "python") == [(14, 20)]
    # An array of shape [words, words] would take 10^11 bytes.
    (words,) = split_words(albert, ["don't " * 100_000])
    assert len(words) == 300_000 and words[-1] == ("t", 599_998, 599_999)
    assert split_words(albert, ["", " \t"]) == [[], []]
