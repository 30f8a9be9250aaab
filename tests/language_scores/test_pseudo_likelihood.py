"""Compare pseudo-log-likelihoods with a simple implementation in transformers and with minicons."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from bert_jax import PseudoLikelihood, import_model
from bert_jax.inference.predictor import UnusableText
from bert_jax.language_scores.masked_rows import encode_sentences, masked_rows
from bert_jax.tokenizers.tokenizer import Tokenizer

from ..commands import REPOSITORY
from .conftest import their_scores

MINI = REPOSITORY / "experiments/finetuning/bert-mini"
MINI_ALBERT = REPOSITORY / "experiments/small_models/mini-albert"
TEXTS = [
    "the cat sat on a mat, did it not?",
    "the cats sat on a mat, did it not?",
    "a",
    "ab cd",
    "ab cd",
    "unbelievable antidotes 12345 x!",
]


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("family", ["Bert", "DistilBert", "Roberta"])
def test_scores_match_transformers(masked_lm, family, whole_words):
    model = masked_lm(family)
    ours = PseudoLikelihood(model.ours, whole_words=whole_words)(TEXTS)
    theirs = their_scores(model.theirs, TEXTS, whole_words=whole_words)
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[3] == ours[4]


def test_whole_words_hide_the_rest_of_a_word(masked_lm):
    tokenizer = Tokenizer.load(masked_lm("Bert").theirs)
    (sentence,) = encode_sentences(tokenizer, ["ab c"], whole_words=True)
    rows = masked_rows([sentence], 6, tokenizer)
    tokens = [[tokenizer.id_to_token(i) for i in row] for row in rows.token_ids[rows.row]]
    assert tokens == [
        ["[CLS]", "[MASK]", "[MASK]", "c", "[SEP]", "[PAD]"],
        ["[CLS]", "a", "[MASK]", "c", "[SEP]", "[PAD]"],
        ["[CLS]", "a", "##b", "[MASK]", "[SEP]", "[PAD]"],
    ]
    assert rows.positions[rows.row].tolist() == [1, 2, 3]


def test_equal_rows_are_computed_once(masked_lm):
    """Use sentences that differ in only one token: they share the row that masks this token."""
    tokenizer = Tokenizer.load(masked_lm("Bert").theirs)
    sentences = encode_sentences(tokenizer, ["a b c", "a x c", "a y c"])
    rows = masked_rows(sentences, 5, tokenizer)
    assert len(rows.row) == 9
    # The shared row is needed for three tokens, but can be used for only two, so it is copied.
    assert len(rows.token_ids) == 6 + 2
    labels = rows.labels[rows.row, rows.slot]
    assert labels.tolist() == np.concatenate([s.token_ids for s in sentences]).tolist()


def test_a_score_does_not_depend_on_the_other_sentences(masked_lm):
    score = PseudoLikelihood(masked_lm("Bert").ours)
    single = score(TEXTS[0])
    assert isinstance(single, float)
    many = score([TEXTS[0], *(f"x {'y ' * number}z" for number in range(30)), TEXTS[0]])
    assert many[0] == many[-1] == pytest.approx(single, abs=1e-5)
    assert score([]) == []


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", "  "], "text 1 of 2: the sentence has no tokens"),
        ("a " * 39, "has 41 tokens, but the model reads at most 40"),
        (["\ud800"], "a lone surrogate"),
    ],
)
def test_unusable_sentences_are_refused(masked_lm, texts, message):
    with pytest.raises(UnusableText, match=message):
        PseudoLikelihood(masked_lm("Bert").ours)(texts)


def blimp_sentences(shared_data: Path, count: int) -> list[str]:
    """Return the sentences of `count` pairs that are evenly spaced over all of BLiMP."""
    file = shared_data / "blimp/blimp.jsonl.xz"
    if not file.is_file():
        pytest.skip(f"no BLiMP in {file}")
    with lzma.open(file, "rt", encoding="utf-8") as stream:
        lines = stream.readlines()
    chosen = [json.loads(lines[number * len(lines) // count]) for number in range(count)]
    return [text for pair in chosen for text in (pair["sentence_good"], pair["sentence_bad"])]


@pytest.mark.slow
@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize(("source", "num_pairs"), [(MINI, 200), (MINI_ALBERT, 20)])
def test_trained_models_match_transformers(shared_data, tmp_path, source, num_pairs, whole_words):
    import_model(source, tmp_path / "ours")
    texts = blimp_sentences(shared_data, num_pairs)
    ours = PseudoLikelihood(tmp_path / "ours", whole_words=whole_words)(texts)
    assert ours == pytest.approx(their_scores(source, texts, whole_words=whole_words), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whole_words", "metric"), [(False, "original"), (True, "within_word_l2r")]
)
def test_a_trained_model_matches_minicons(shared_data, tmp_path, monkeypatch, whole_words, metric):
    """Compare with minicons, written by one of the authors of the whole-word variant."""
    scorer = pytest.importorskip("minicons.scorer", reason="needs minicons: pip install minicons")
    import_model(MINI, tmp_path / "ours")
    texts = blimp_sentences(shared_data, 200)
    ours = PseudoLikelihood(tmp_path / "ours", whole_words=whole_words)(texts)
    model = scorer.MaskedLMScorer(str(MINI), "cpu")
    # Convert the parameters, which are stored in float16.
    model.model.float()
    # In transformers 5, tokenizers have only __call__.
    if not hasattr(model.tokenizer, "batch_encode_plus"):
        tokenizer = type(model.tokenizer)
        monkeypatch.setattr(tokenizer, "batch_encode_plus", tokenizer.__call__, raising=False)
    theirs = []
    for start in range(0, len(texts), 20):
        theirs += model.sequence_score(
            texts[start : start + 20], reduction=lambda x: x.sum(0).item(), PLL_metric=metric
        )
    assert ours == pytest.approx(theirs, abs=1e-4)
