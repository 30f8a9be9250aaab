"""Test the error messages for models without the head that a class or command needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import bert_jax as bj
from bert_jax.argument_errors import COMMANDS
from bert_jax.inference.uses import unsuitable, use_of
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, classifier_heads, head_names
from bert_jax.runs.work_dir import PAIRS, write_model
from bert_jax.verbs import VERBS, make_parser

from ..commands import Finished

PREDICTORS = ("FillMask", "NextSentence", "Classify", "Choose", "Tag", "AnswerQuestion")
ENCODER = EncoderConfig(
    vocab_size=16, hidden_dim=8, num_layers=1, num_heads=1, ffn_dim=8, max_positions=8
)
NAMED = {head.name for head in classifier_heads() if head.labels is None}


def config_of(head: str) -> ModelConfig:
    return ModelConfig(ENCODER, head, labels=("a", "b") if head in NAMED else ())


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes the `model.json` of a model with the given head."""

    def write(head: str) -> Path:
        tokenizer = cast(Any, SimpleNamespace(fingerprint="0" * 64))
        origin = {"command": "bert-jax import"}
        generator = ENCODER if head == "replaced_token" else None
        write_model(
            config_of(head), origin, tmp_path / head, tokenizer=tokenizer, generator=generator
        )
        return tmp_path / head

    return write


@pytest.mark.parametrize("head", head_names())
def test_the_classes_for_a_head_are_those_that_accept_it(head: str) -> None:
    expected = [f"bj.{name}" for name in PREDICTORS if head in getattr(bj, name).heads]
    assert list(use_of(config_of(head), {}).classes) == expected


def test_a_model_trained_on_sentence_order_does_not_predict_the_next_sentence() -> None:
    use = use_of(config_of("pretraining"), {PAIRS: "sentence_order"})
    assert use == ("fills masks", ("bj.FillMask",))


def test_the_message_suggests_vectors_for_a_model_without_a_head() -> None:
    message = unsuitable("x", config_of("encoder"), {}, "tag words", "`bj.finetune`")
    assert message == (
        "x: this model does not tag words. It has no head: use `bj.Embed`. To tag words, use a "
        "model from `bj.finetune`."
    )


@pytest.mark.parametrize("name", PREDICTORS)
@pytest.mark.parametrize("head", head_names())
def test_every_class_names_the_classes_that_fit_the_model(
    name: str, head: str, model: Callable[[str], Path]
) -> None:
    predictor, work_dir = getattr(bj, name), model(head)
    if head in predictor.heads:
        return
    with pytest.raises(ValueError, match=f"this model does not {predictor.purpose}. It ") as error:
        predictor(work_dir)
    for suggested in use_of(config_of(head), {}).classes or ("bj.Embed",):
        assert f"`{suggested}`" in str(error.value)


@pytest.mark.parametrize(
    ("words", "head", "message"),
    [
        (
            "predict MODEL --input TEXT --task classify",
            "pretraining",
            "does not classify texts. It fills masks and predicts whether one sentence follows "
            "another: use `bert-jax fill-mask` or `bert-jax predict --task next-sentence`. To "
            "classify texts, use a model from `bert-jax finetune`.",
        ),
        (
            "fill-mask MODEL [MASK]",
            "tagging",
            "does not fill masks. It tags words: use `bert-jax predict`. To fill masks, use a "
            "model from `bert-jax pretrain`.",
        ),
        (
            "fill-mask MODEL [MASK]",
            "replaced_token",
            "It finds replaced tokens: use `bert-jax predict --task embed`. To fill masks, extract "
            "its generator with `bert-jax extract --generator`, or use a model from `bert-jax pr",
        ),
        ("predict MODEL --input TEXT --task tag", "replaced_token", "To tag words, use a model fr"),
        ("evaluate MODEL --text TEXT", "replaced_token", "To score text, extract its generator w"),
        ("fill-mask MODEL [MASK]", "encoder", "It has no head: use `bert-jax predict --task emb"),
        (
            "predict MODEL --input TEXT --task tag",
            "span",
            "It answers questions: use `bert-jax predict`.",
        ),
        (
            "evaluate MODEL",
            "masked_lm",
            "this model was not fine-tuned on a task. It fills masks: score it with `bert-jax "
            "evaluate --text` or `bert-jax evaluate --minimal-pairs`, or fine-tune it first with "
            "`bert-jax finetune`.",
        ),
        ("evaluate MODEL", "encoder", "It has no head: fine-tune it first with `bert-jax fine"),
        ("prune-heads MODEL", "tagging", "this model tags words, but the task that it was fine-"),
        ("evaluate MODEL --text TEXT", "span", "this model does not score text. It answers quest"),
    ],
)
def test_commands_name_commands(
    words: str,
    head: str,
    message: str,
    model: Callable[[str], Path],
    bert_jax_here: Callable[..., Finished],
    tmp_path: Path,
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("wet roads\n")
    paths = {"MODEL": str(model(head)), "TEXT": str(text)}
    refused = bert_jax_here(*(paths.get(word, word) for word in words.split()))
    assert refused.code == 2
    assert refused.errors.startswith(f"bert-jax: error: {paths['MODEL']}: ")
    assert message in refused.errors and "bj." not in refused.errors


def test_every_name_in_messages_has_a_command() -> None:
    assert {name.partition("(")[0].removeprefix("bj.") for name in COMMANDS} <= set(bj.__all__)
    for command in COMMANDS.values():
        program, verb, *options = command.split()
        parser = make_parser(VERBS[verb], f"{program} {verb}")
        assert all(option in parser.options for option in options if option.startswith("--"))
