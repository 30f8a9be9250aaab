"""Test that invalid arguments are rejected, and that errors use the caller's parameter names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bert_jax.finetuning.evaluation import evaluate
from bert_jax.finetuning.sweep import sweep
from bert_jax.finetuning.training import finetune
from bert_jax.pretraining.plan import plan
from bert_jax.pretraining.run import pretrain
from bert_jax.recipes.load import load_config
from bert_jax.validation import renamed_in_errors

NAMES = {"max_length": "--max-length", "form.kind": "sentences.files.form.kind"}


@pytest.mark.parametrize(
    ("message", "renamed"),
    [
        ("max_length=1: expected 8", "--max-length=1: expected 8"),
        ("set max_length=8.", "set --max-length=8."),
        ("set form.kind='csv'", "set sentences.files.form.kind='csv'"),
        ("model.max_length, max_lengths, a/max_length and max_length/b", None),
        ("sentences.files.form.kind", None),
    ],
)
def test_names_are_replaced(message: str, renamed: str | None) -> None:
    with pytest.raises(ValueError, match=".") as error, renamed_in_errors(NAMES):
        raise ValueError(message)
    assert str(error.value) == (renamed or message)


def test_other_exception_types_are_not_changed() -> None:
    with pytest.raises(KeyError, match="max_length"), renamed_in_errors(NAMES):
        raise KeyError("max_length")


PRETRAINING = load_config("pretrain/tiny")
FINETUNING = load_config("finetune/sst2", {"init_from": "models/base"})


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: pretrain("tiny"), "expected a PretrainConfig, got 'tiny'. Load one with"),
        (lambda: pretrain(FINETUNING), "expected a PretrainConfig, got a FinetuneConfig"),
        (lambda: plan(FINETUNING, "cpu:1"), "expected a PretrainConfig, got a FinetuneConfig"),
        (lambda: finetune(PRETRAINING), "expected a FinetuneConfig, got a PretrainConfig"),
        (lambda: sweep(PRETRAINING, "x"), "expected a FinetuneConfig, got a PretrainConfig"),
        (
            lambda: evaluate("x", config="sst2"),
            "expected an EvaluationConfig, got 'sst2'. Pass the",
        ),
        (
            lambda: evaluate("x", config=FINETUNING),
            "expected an EvaluationConfig, got a FinetuneConfig. Pass the `evaluation` of",
        ),
    ],
)
def test_a_config_of_another_type_is_refused(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^config: {problem}"):
        call()


def test_a_sweep_refuses_an_unknown_choice_before_it_trains() -> None:
    with pytest.raises(ValueError, match="^keep='some': expected one of None, 'all', 'best'"):
        sweep(FINETUNING, "x", keep="some")
