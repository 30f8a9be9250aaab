"""Masks filled as Hugging Face fills them."""

from __future__ import annotations

import numpy as np
import pytest
import transformers

from bert_jax import FillMask
from bert_jax.inference.predictor import UnusableText

from .conftest import Both

TEXTS = [
    "a [MASK] c.",
    "the cat sat on [MASK] mat, [MASK] did it not?",
    "[MASK]",
    "[MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] x",
    "abc\u0301 \u4e1c\u4eac \x00 [MASK]\u200b!",
]


@pytest.fixture(scope="module")
def model(both) -> Both:
    return both("pretraining")


@pytest.fixture(scope="module")
def fill(model) -> FillMask:
    return FillMask(model.ours)


def test_hugging_face_guesses_the_same(model, fill):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.theirs)
    pipeline = transformers.pipeline(
        "fill-mask",
        model=transformers.BertForMaskedLM.from_pretrained(model.theirs),
        tokenizer=tokenizer,
        top_k=4,
    )
    for text, filled in zip(TEXTS, fill(TEXTS, top_k=4), strict=True):
        theirs = pipeline(text)
        theirs = theirs if isinstance(theirs[0], list) else [theirs]
        assert len(theirs) == len(filled.masks) == text.count("[MASK]")
        for guesses, expected in zip(filled.masks, theirs, strict=True):
            assert [guess.token for guess in guesses] == [
                tokenizer.convert_ids_to_tokens(each["token"]) for each in expected
            ]
            assert [guess.probability for guess in guesses] == pytest.approx(
                [each["score"] for each in expected], abs=1e-5
            )


def test_one_for_one_and_a_list_for_a_list(fill):
    assert fill([]) == []
    assert len(fill(TEXTS[0]).masks[0]) == 5
    (alone,) = fill([TEXTS[0]])
    assert alone == fill(TEXTS[0])


def test_nothing_but_the_text_decides_its_guesses(model, fill):
    texts = [text + " z" * (7 * number % 13) for number, text in enumerate(TEXTS * 8)]
    together = fill(texts, top_k=3)
    small = FillMask(model.ours, batch_size=3)(texts, top_k=3)
    for text, one, other in zip(texts, together, small, strict=True):
        alone = fill(text, top_k=3)
        for filled in (one, other):
            assert [[g.token for g in m] for m in filled.masks] == [
                [g.token for g in m] for m in alone.masks
            ]
            for ours, theirs in zip(filled.masks, alone.masks, strict=True):
                assert [g.probability for g in ours] == pytest.approx(
                    [g.probability for g in theirs], abs=1e-6
                )


def test_few_shapes_whatever_is_given(model):
    fill = FillMask(model.ours)
    for count in (1, 1, 40, 60):
        fill(["a [MASK]" + " b" * (number % 37) for number in range(count)])
    assert fill.num_shapes <= 1 + 3  # rows of 16, 32 and 40 tokens


def test_a_text_may_lose_its_end_but_no_mask(fill):
    filled = fill("[MASK] " + "a " * 60)
    assert filled.truncated and len(filled.masks) == 1
    assert filled.masks == fill("[MASK] " + "a " * 37).masks
    assert not fill("a " * 37 + "[MASK]").truncated
    with pytest.raises(UnusableText, match=r"takes 41 positions of 40.* the \[MASK\]"):
        fill("a " * 38 + "[MASK]")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("no mask here", r"^no \[MASK\] in 'no mask here': put one where"),
        ("", r"^no \[MASK\] in ''"),
        (["[MASK]", "none"], r"^text 1 of 2: no \[MASK\] in 'none'"),
        (["[MASK] \ud800", "a"], r"^text 0 of 2: a lone surrogate at character 7"),
        (["[MASK]", 5], "^text 1 of 2: of type int, expected a string"),
    ],
)
def test_what_cannot_be_filled(fill, texts, message):
    with pytest.raises(UnusableText, match=message):
        fill(texts)


@pytest.mark.parametrize("wrong", [None, 5, b"[MASK]", {"text": "[MASK]"}, {"[MASK]"}])
def test_what_is_neither_a_text_nor_several(fill, wrong):
    told = f"expected a string or a list of strings, got a value of type {type(wrong).__name__}"
    with pytest.raises(ValueError, match=told):
        fill(wrong)


def test_several_texts_may_be_in_an_array(fill):
    texts = ["a [MASK]", "[MASK] b"]
    assert fill(np.array(texts)) == fill(tuple(texts)) == fill(texts)


def test_top_k_is_of_the_vocabulary(fill):
    size = fill.tokenizer.vocab_size
    (guesses,) = fill("[MASK]", top_k=size).masks
    assert len({guess.token for guess in guesses}) == size
    assert sum(guess.probability for guess in guesses) == pytest.approx(1, abs=1e-5)
    assert fill("[MASK]", top_k=np.int64(2)) == fill("[MASK]", top_k=2)
    for wrong in (0, size + 1, 1.5, 2.0, None):
        with pytest.raises(ValueError, match=f"top_k is {wrong}; expected 1 up to"):
            fill("[MASK]", top_k=wrong)


def test_a_model_that_guesses_no_words(both, tmp_path):
    with pytest.raises(
        ValueError, match="has the head 'span', with which FillMask cannot work; ex"
    ):
        FillMask(both("span").ours)
    with pytest.raises(ValueError, match="expected the work directory of a"):
        FillMask(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(
        ValueError, match="to import these Hugging Face files, run .bert-jax import"
    ):
        FillMask(tmp_path)
    with pytest.raises(ValueError, match=r"in it \(it is a file; to import a Hugging Face"):
        FillMask(tmp_path / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected 1 or more"),
        ({"max_length": 41}, "max_length is 41; expected 5 up to the model's 40 positions"),
    ],
)
def test_numbers_out_of_range(model, options, message):
    with pytest.raises(ValueError, match=message):
        FillMask(model.ours, **options)
