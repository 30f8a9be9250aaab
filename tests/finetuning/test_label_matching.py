"""Test matching an imported model's labels to a task's labels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bert_jax.finetuning.label_matching import notes_on_unnamed_labels, score_order
from bert_jax.finetuning.tags import TagsConfig
from bert_jax.finetuning.task_data import HeadConfig
from bert_jax.labeled_data.tags import TagFiles
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import CLASSIFICATION, ModelConfig, Problem

HERE = Path("models/theirs")
SIZES = dict(vocab_size=16, hidden_dim=8, num_layers=1, num_heads=1, ffn_dim=8, max_positions=8)
MNLI = ("entailment", "neutral", "contradiction")


def model(
    *labels: str, head: str = "classification", problem: Problem = "single_label"
) -> ModelConfig:
    return ModelConfig(EncoderConfig(**SIZES), head, labels, problem=problem)


def places(
    theirs: ModelConfig, *labels: str, names: tuple[str, ...] = (), **head: str
) -> tuple[int, ...] | None:
    wanted = HeadConfig(CLASSIFICATION, labels, **head)  # type: ignore[arg-type]
    return score_order(theirs, wanted, names, HERE)


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (MNLI, None),
        (("contradiction", "neutral", "entailment"), (2, 1, 0)),
        (("CONTRADICTION", "ENTAILMENT", "NEUTRAL"), (1, 2, 0)),
        (("LABEL_0", "LABEL_1", "LABEL_2"), None),
    ],
)
def test_published_orders_of_mnli_labels_are_matched(theirs, expected) -> None:
    assert places(model(*theirs), *MNLI) == expected


def test_labels_that_differ_only_in_case_stay_distinct() -> None:
    assert places(model("A", "a"), "a", "A") == (1, 0)
    with pytest.raises(
        ValueError, match="the model's labels are 'A', 'a', but the config's are 'a', 'b'"
    ):
        places(model("A", "a"), "a", "b")


def test_labels_are_also_matched_by_their_names_in_the_files() -> None:
    several = model("x", "y", problem="multi_label")
    found = places(several, "one", "two", names=("y", "x"), problem="multi_label")
    assert found == (1, 0)


def test_the_label_of_a_regression_may_have_any_name() -> None:
    rated = model("LABEL_0", problem="regression")
    assert places(rated, "score", problem="regression") is None
    two = model("LABEL_0", "LABEL_1", problem="regression")
    with pytest.raises(
        ValueError, match="the model's labels are 'LABEL_0', 'LABEL_1', but the config"
    ):
        places(two, "score", problem="regression")


def test_a_note_says_how_unnamed_labels_are_interpreted() -> None:
    wanted = HeadConfig(CLASSIFICATION, MNLI)
    (note,) = notes_on_unnamed_labels(model("LABEL_0", "LABEL_1", "LABEL_2"), wanted)
    assert "LABEL_0 = 'entailment', LABEL_1 = 'neutral', LABEL_2 = 'contradiction'" in note
    assert notes_on_unnamed_labels(model(*MNLI), wanted) == []


@pytest.mark.parametrize(
    ("labels", "learn_as"),
    [
        (("O", "B-LOC", "E-LOC", "S-LOC"), "as_written"),
        (("O", "U-LOC"), "as_written"),
        (("O", "B-LOC", "M-LOC"), "as_written"),
        (("O", "B-LOC", "I-LOC"), "IOB2"),
        (("O", "B-LOC", "I-LOC", "I-PER"), "IOB1"),
    ],
)
def test_tags_are_converted_to_the_scheme_of_the_model(labels, learn_as) -> None:
    tags = TagsConfig(TagFiles(validation="dev.txt"))
    found = tags.matching(model(*labels, head="tagging"))
    changed = dataclasses.replace(tags.files, learn_as=learn_as)
    assert found == dataclasses.replace(tags, files=changed)


@pytest.mark.parametrize("learn_as", ["as_written", "IOB1"])
@pytest.mark.parametrize("tag", ["S-LOC", "I-PER"])
def test_a_requested_scheme_is_kept(tag, learn_as) -> None:
    tags = TagsConfig(TagFiles(validation="dev.txt", learn_as=learn_as))
    assert tags.matching(model("O", "B-LOC", "I-LOC", tag, head="tagging")) == tags
