import random
import time

import pytest

from bert_jax.corpus.packing import LANGUAGES, check_language, split_sentences

# Whitespace of all widths, quotation marks from several scripts, abbreviations, and list markers.
STRINGS = list("abAB  ..!?\n\n\r\t\"'“”‘’()[]«»…。।\u200b\u0301\x00é你😀؟•1-*İⅣ") + [
    *("\x85", "\xa0", "\u2003", "\u2028", "\u2029", "\u202f", "\u3000", "\x1c"),
    *("Dr.", "z.B.", "St. ", "A. ", "e.g.", "1. ", "a) ", "No. "),
]


@pytest.mark.parametrize("max_block", [16_384, 40])
def test_the_concatenated_sentences_equal_the_text(monkeypatch, max_block):
    monkeypatch.setattr("bert_jax.corpus.packing._MAX_BLOCK", max_block)
    rng = random.Random(max_block)
    for _ in range(2000):
        text = "".join(rng.choices(STRINGS, k=rng.choice([0, 1, 5, 20, 100, 400])))
        sentences = split_sentences(text, rng.choice(LANGUAGES))
        assert "".join(sentences) == text
        assert all(sentences)


def test_ordinary_prose_is_split_into_sentences():
    text = "Dr. Smith came at 3.30 p.m. yesterday. “Did he?” she asked. He did!\nA new line."
    assert split_sentences(text, "en") == [
        "Dr. Smith came at 3.30 p.m. yesterday. ",
        "“Did he?” she asked. ",
        "He did!\n",
        "A new line.",
    ]
    german = "Das ist z. B. gut. Am 3. Mai kam er."
    assert split_sentences(german, "de") == ["Das ist z. B. gut. ", "Am 3. Mai kam er."]


def test_hard_wrapped_lines_stay_together():
    text = "The first sentence goes on\nover the line. The second\ndoes too.\n\nAnd a paragraph\n\n"
    sentences = [sentence.strip() for sentence in split_sentences(text, "en")]
    assert [sentence for sentence in sentences if sentence] == [
        "The first sentence goes on\nover the line.",
        "The second\ndoes too.",
        "And a paragraph",
    ]


def test_an_unclosed_quotation_does_not_join_the_following_paragraphs():
    text = "“It began so. He said nothing.\n“It went on. She waited.\nIt ended. All was well."
    sentences = split_sentences(text, "en")
    assert max(map(len, sentences)) < 35
    assert "".join(sentences) == text


def test_long_paragraphs_are_split_like_short_ones():
    unit = "Dr. Smith went home at last. What did she find there? Nothing! "
    text = unit * 2000
    assert split_sentences(text, "en") == split_sentences(unit, "en") * 2000


def test_a_long_block_takes_linear_time_and_is_not_split_inside_a_sentence():
    unit = "“ hello there. "  # For the whole text, sentencex itself takes 20 s.
    text = unit * 100_000
    start = time.perf_counter()
    sentences = split_sentences(text, "en")
    assert time.perf_counter() - start < 10
    assert "".join(sentences) == text
    assert len(split_sentences("word " * 20_000, "en")) == 1
    assert len(split_sentences("x" * 50_000, "en")) == 1


def test_white_space_that_makes_sentencex_panic_is_handled():
    text = "No. a) baa) A\t\u202f.•4\x00Σ你»ıv‘́*"
    assert "".join(split_sentences(text, "my")) == text


@pytest.mark.parametrize("language", ["", "english", "EN", "xx", "zh-hant"])
def test_an_unknown_language_is_refused(language):
    with pytest.raises(
        ValueError, match=f"language='{language}': there are no sentence rules.* en "
    ):
        check_language(language)
