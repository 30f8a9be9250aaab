"""Test the messages about paths that are not work directories, and about incomplete models."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, part_of
from bert_jax.runs.work_dir import read_model

SIZES = dict(vocab_size=16, hidden_dim=8, num_layers=1, num_heads=1, ffn_dim=8, max_positions=8)


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        ((), "nowhere", "there is no such directory"),
        (("a.txt",), "a.txt", "(it is a file)"),
        (("run/model.json",), "run/model.json", "is a file; use its directory, {root}/run)"),
        (("hf/model.safetensors",), "hf/model.safetensors", "`bert-jax import {root}/hf --output"),
        (("x.ckpt.index",), "x.ckpt.index", "run `bert-jax import {root}/x.ckpt --output DIR`"),
        (("x.ckpt.index",), "x.ckpt", "run `bert-jax import {root}/x.ckpt --output DIR`"),
        (("x.ckpt.index",), ".", "TensorFlow checkpoint, run `bert-jax import {root} --output"),
        (("run/checkpoints/500/x",), "run/checkpoints/500", "extract {root}/run --step 500"),
        (("runs/one/model.json", "sweep.json"), ".", "a model is in {root}/runs/one"),
        (
            ("metrics.jsonl", "checkpoints/500/x"),
            ".",
            "but no model.json: if the file was removed",
        ),
        (("metrics.jsonl",), ".", "keeps only its best run's parameters"),
        (("model.safetensors",), ".", "bert-jax import {root} --output DIR"),
    ],
)
def test_the_message_identifies_a_path_that_is_not_a_work_directory(
    tmp_path: Path, files: tuple[str, ...], path: str, message: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="contains no model.json") as refused:
        read_model(tmp_path / path)
    assert message.format(root=tmp_path) in str(refused.value)


def test_the_message_advises_to_import_a_model_of_the_hub() -> None:
    advice = "run `bert-jax import google-bert/bert-base-uncased --output DIR`"
    with pytest.raises(ValueError, match=advice):
        read_model(Path("google-bert/bert-base-uncased"))
    with pytest.raises(ValueError, match="run `bert-jax import roberta-base --output DIR`"):
        read_model(Path("roberta-base"))


def test_a_folder_of_runs_is_not_taken_for_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "runs/mine").mkdir(parents=True)
    (tmp_path / "runs/mine/model.json").touch()
    with pytest.raises(ValueError, match="contains no model.json. Specify"):
        read_model(tmp_path)


def test_the_message_lists_the_parts_of_a_classifier_with_head_dropout() -> None:
    config = ModelConfig(EncoderConfig(**SIZES), "classification", ("a", "b"), head_dropout=0.1)
    message = (
        "^head='masked_lm': not contained in a model with head='classification'. "
        "Ex.*'class.*encoder"
    )
    with pytest.raises(ValueError, match=message):
        part_of(config, "masked_lm")
    assert part_of(config, "encoder").head == "encoder"


def test_an_encoder_contains_no_other_model() -> None:
    config = ModelConfig(EncoderConfig(**SIZES), "encoder")
    with pytest.raises(ValueError, match="with head='encoder'. Expected 'encoder'$"):
        part_of(config, "masked_lm")
