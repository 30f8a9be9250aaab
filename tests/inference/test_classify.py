"""Compare predicted classes with those from Hugging Face's pipeline."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from bert_jax import Classify
from bert_jax.cli.main import main
from bert_jax.inference.predictor import UnusableText
from bert_jax.runs.work_dir import InferenceDefaults, read_model, read_tokenizer, write_model

from ..interop.conftest import make

TEXTS = ["a fine film.", "", "bad", "a" * 200, "\u4e1c \x07", ("it rains", "so wet."), ("", "a")]
TEXTS += ["word " * 30, ("no " * 30, "yes " * 30)]
PROBLEMS = ["single_label_classification", "multi_label_classification", "regression"]


def pipeline_of(directory):
    return transformers.pipeline(
        "text-classification",
        model=transformers.BertForSequenceClassification.from_pretrained(directory),
        tokenizer=transformers.AutoTokenizer.from_pretrained(directory),
        top_k=None,
        truncation=True,
        max_length=40,
    )


@pytest.mark.parametrize("problem", PROBLEMS)
def test_classes_match_hugging_face(model_pair, problem):
    model = model_pair("classification", problem_type=problem)
    classify, pipeline = Classify(model.ours), pipeline_of(model.theirs)
    for text, ours in zip(TEXTS, classify(TEXTS), strict=True):
        inputs = {"text": text[0], "text_pair": text[1]} if isinstance(text, tuple) else [text]
        theirs = pipeline(inputs)
        theirs = theirs[0] if isinstance(theirs[0], list) else theirs
        assert ours.scores == pytest.approx(
            {each["label"]: each["score"] for each in theirs}, abs=1e-5
        )
        above_half = [each["label"] for each in theirs if each["score"] > 0.5]
        match problem:
            case "regression":
                assert (ours.label, ours.probability, ours.labels) == (None, None, ())
            case "multi_label_classification":
                assert ours.label == (above_half[0] if above_half else None)
                assert sorted(ours.labels) == sorted(above_half)
                assert ours.probability == ours.scores.get(ours.label)
            case _:
                assert ours.label == theirs[0]["label"] and ours.labels == (ours.label,)
                assert ours.probability == ours.scores[ours.label]


def biased(tmp_path, biases, defaults=None):
    """Create the work directory of a multi-label model whose scores depend only on its biases."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    names = dict(enumerate("abc"[: len(biases)]))
    problem = "multi_label_classification"
    make(theirs, "classification", problem_type=problem, id2label=names)
    model = transformers.BertForSequenceClassification.from_pretrained(theirs)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.copy_(torch.tensor(biases))
    model.save_pretrained(theirs)
    assert main(["import", str(theirs), "--output", str(ours)]) == 0
    if defaults is not None:
        config, origin = read_model(ours)
        tokenizer = read_tokenizer(ours, config.encoder)
        write_model(config, origin, ours, tokenizer=tokenizer, inference_defaults=defaults)
    return Classify(ours)


@pytest.mark.parametrize(
    ("biases", "label", "labels"),
    [
        ([-1.0, -2.0, -0.1], None, ()),
        ([1.0, -2.0, 2.0], "c", ("a", "c")),
        ([-1.0], None, ()),
        ([1.0], "a", ("a",)),
    ],
)
def test_multi_label_models_predict_labels_above_one_half(tmp_path, biases, label, labels):
    results = biased(tmp_path, biases)("x")
    assert (results.label, results.labels) == (label, labels)
    assert results.probability == (None if label is None else results.scores[label])
    assert list(results.scores.values()) == pytest.approx(torch.tensor(biases).sigmoid().tolist())


@pytest.mark.parametrize(("bias", "label"), [(2.0, "a"), (-2.0, "not a")])
def test_one_score_predicts_either_of_two_labels(tmp_path, bias, label):
    results = biased(tmp_path, [bias], InferenceDefaults(max_length=16, negative="not a"))("x")
    assert (results.label, results.labels) == (label, (label,))
    assert results.probability == results.scores[label] == pytest.approx(1 / (1 + np.exp(-2.0)))
    assert sum(results.scores.values()) == pytest.approx(1) and list(results.scores) == [
        "not a",
        "a",
    ]


def test_max_length_defaults_to_the_training_runs_value(tmp_path):
    classify = biased(tmp_path, [1.0], InferenceDefaults(max_length=16))
    assert classify.max_length == 16
    assert [each.truncated for each in classify(["a " * 14, "a " * 15])] == [False, True]
    assert Classify(tmp_path / "ours", max_length=17).max_length == 17


@pytest.mark.parametrize("max_length", [-1, 0, 4])
def test_a_max_length_without_space_for_text_is_an_error(tmp_path, max_length):
    expected = f"ours: model.json is damaged: its usage has max_length={max_length}"
    with pytest.raises(ValueError, match=expected):
        biased(tmp_path, [1.0], InferenceDefaults(max_length=max_length))


@pytest.mark.parametrize("pairs", [True, False])
def test_pairs_and_single_texts_cannot_be_confused(tmp_path, pairs):
    classify = biased(tmp_path, [1.0], InferenceDefaults(max_length=16, pairs=pairs))
    right, wrong = (("a", "b"), "a") if pairs else ("a", ("a", "b"))
    assert classify(right).scores
    message = "this is " + (
        r"a single text, .* pairs: \(first, " if pairs else "a pair, .* trained on single texts"
    )
    with pytest.raises(UnusableText, match=f"text 1 of 2: {message}"):
        classify([right, wrong])


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_results_do_not_depend_on_the_other_texts(model_pair, batch_size):
    classify = Classify(model_pair("classification").ours, batch_size=batch_size)
    rng = np.random.default_rng(0)
    texts = ["abcde"[number % 5] * int(rng.integers(1, 60)) for number in range(30)]
    single = {text: classify(text) for text in texts}
    for text, results in zip(texts, classify(texts), strict=True):
        assert results.scores == pytest.approx(single[text].scores, abs=1e-6)
        assert results.label == single[text].label


def test_dtype_changes_the_computation(model_pair):
    ours = model_pair("classification").ours
    texts = ["a fine film.", ("it rains", "so wet.")]
    exact, rounded = Classify(ours, dtype="float32"), Classify(ours, dtype="bfloat16")
    for one, other in zip(exact(texts), rounded(texts), strict=True):
        assert one.scores != other.scores
        # Allow an error of 0.5%, since both layers round numbers to eight significant bits.
        assert other.scores == pytest.approx(one.scores, rel=5e-3)
    with pytest.raises(ValueError, match="dtype='float16': expected one of 'auto', 'float32', 'b"):
        Classify(ours, dtype="float16")


def test_truncation_is_reported(model_pair):
    classify = Classify(model_pair("classification").ours, max_length=16)
    results = classify(["a " * 14, "a " * 15, ("a " * 6, "b " * 7), ("a " * 6, "b " * 8)])
    assert [each.truncated for each in results] == [False, True, False, True]
    assert results[0].scores == results[1].scores


def test_wrong_arguments_are_refused(model_pair):
    classify = Classify(model_pair("classification").ours)
    assert classify([]) == []
    with pytest.raises(UnusableText, match=r"^expected a tuple .*, got a tuple of length 3$"):
        classify(("a", "b", "c"))
    with pytest.raises(UnusableText, match="^text 1 of 2: expected a string .* of type dict$"):
        classify(["a", {"text": "b"}])
    with pytest.raises(UnusableText, match=r"^expected .* \(first, second\), got .* type list$"):
        classify([["a", "b"]])
    for wrong in (None, 5, {"text": "good"}, iter(["good"])):
        with pytest.raises(ValueError, match=r"a string, a pair \(first, second\) or a list of th"):
            classify(wrong)
    with pytest.raises(
        ValueError, match="does not classify texts. It has no head: use .*bj.finetune"
    ):
        Classify(model_pair("encoder").ours)
