"""Compare predictions for masked tokens with those from Hugging Face's pipeline."""

from __future__ import annotations

import numpy as np
import pytest
import transformers

from bert_jax import FillMask
from bert_jax.inference.predictor import UnusableText

from .conftest import ModelPair

TEXTS = [
    "a [MASK] c.",
    "the cat sat on [MASK] mat, [MASK] did it not?",
    "[MASK]",
    "[MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] [MASK] x",
    "abc\u0301 \u4e1c\u4eac \x00 [MASK]\u200b!",
]


@pytest.fixture(scope="module")
def model(model_pair) -> ModelPair:
    return model_pair("pretraining")


@pytest.fixture(scope="module")
def fill(model) -> FillMask:
    return FillMask(model.ours)


def test_guesses_match_hugging_face(model, fill):
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


def test_a_text_gives_a_result_and_a_list_gives_a_list(fill):
    assert fill([]) == []
    assert len(fill(TEXTS[0]).masks[0]) == 5
    (single,) = fill([TEXTS[0]])
    assert single == fill(TEXTS[0])


def test_guesses_do_not_depend_on_the_other_texts(model, fill):
    texts = [text + " z" * (7 * number % 13) for number, text in enumerate(TEXTS * 8)]
    together = fill(texts, top_k=3)
    small = FillMask(model.ours, batch_size=3)(texts, top_k=3)
    for text, one, other in zip(texts, together, small, strict=True):
        single = fill(text, top_k=3)
        for filled in (one, other):
            assert [[g.token for g in m] for m in filled.masks] == [
                [g.token for g in m] for m in single.masks
            ]
            for ours, theirs in zip(filled.masks, single.masks, strict=True):
                assert [g.probability for g in ours] == pytest.approx(
                    [g.probability for g in theirs], abs=1e-6
                )


def test_few_shapes_are_compiled(model):
    fill = FillMask(model.ours)
    for count in (1, 1, 40, 60):
        fill(["a [MASK]" + " b" * (number % 37) for number in range(count)])
    assert fill.num_shapes <= 1 + 3  # The additional shapes are for rows of 16, 32 and 40 tokens.


def test_the_end_of_a_text_is_truncated_but_never_a_mask(fill):
    filled = fill("[MASK] " + "a " * 60)
    assert filled.truncated and len(filled.masks) == 1
    assert filled.masks == fill("[MASK] " + "a " * 37).masks
    assert not fill("a " * 37 + "[MASK]").truncated
    with pytest.raises(UnusableText, match=r"has 41 tokens, but the maximum is 40.* the \[MASK\]"):
        fill("a " * 38 + "[MASK]")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("no mask here", r"^no \[MASK\] in 'no mask here'\. Replace each word"),
        ("", r"^no \[MASK\] in ''"),
        (["[MASK]", "none"], r"^text 1 of 2: no \[MASK\] in 'none'"),
        (["[MASK] \ud800", "a"], r"^text 0 of 2: a lone surrogate at character 7"),
        (["[MASK]", 5], "^text 1 of 2: expected a string, got .* int$"),
    ],
)
def test_texts_that_cannot_be_filled_are_refused(fill, texts, message):
    with pytest.raises(UnusableText, match=message):
        fill(texts)


@pytest.mark.parametrize("wrong", [None, 5, b"[MASK]", {"text": "[MASK]"}, {"[MASK]"}])
def test_wrong_types_are_refused(fill, wrong):
    message = f"expected a string or a list of strings, got a value of type {type(wrong).__name__}"
    with pytest.raises(ValueError, match=message):
        fill(wrong)


def test_texts_may_be_in_an_array(fill):
    texts = ["a [MASK]", "[MASK] b"]
    assert fill(np.array(texts)) == fill(tuple(texts)) == fill(texts)


def test_top_k_is_at_most_the_vocabulary_size(fill):
    size = fill.tokenizer.vocab_size
    (guesses,) = fill("[MASK]", top_k=size).masks
    assert len({guess.token for guess in guesses}) == size
    assert sum(guess.probability for guess in guesses) == pytest.approx(1, abs=1e-5)
    assert fill("[MASK]", top_k=np.int64(2)) == fill("[MASK]", top_k=2)
    for wrong in (0, size + 1, 1.5, 2.0, None):
        with pytest.raises(ValueError, match=f"top_k={wrong}: expected an integer from 1 to"):
            fill("[MASK]", top_k=wrong)


def test_other_models_are_refused(model_pair, tmp_path):
    answers = r"this model does not fill masks. It answers questions: use `bj.AnswerQuestion`. To "
    with pytest.raises(ValueError, match=f"{answers}fill masks, use a model from `bj.pretrain`"):
        FillMask(model_pair("span").ours)
    with pytest.raises(ValueError, match="Specify a work directory written by"):
        FillMask(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(
        ValueError, match="to import these Hugging Face files, run .bert-jax import"
    ):
        FillMask(tmp_path)
    with pytest.raises(ValueError, match=r"model.json \(it is a file; to import a Hugging Face"):
        FillMask(tmp_path / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0: expected 1 or more"),
        ({"max_length": 41}, "max_length=41: expected 5 to 40, the model's number of positions"),
    ],
)
def test_numbers_out_of_range_are_refused(model, options, message):
    with pytest.raises(ValueError, match=message):
        FillMask(model.ours, **options)
