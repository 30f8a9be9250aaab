"""Test which encoder belongs to a checkpoint if a run changes its rotary angles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.runs.rotary_changes import RotaryChange, encoder_at, rotary_changes
from bert_jax.runs.work_dir import read_generator, read_model, write_model
from bert_jax.tokenizers.tokenizer import Tokenizer

ENCODER = EncoderConfig(
    vocab_size=32, hidden_dim=8, num_layers=1, num_heads=1, ffn_dim=8, positions="rotary"
)
STEPS = (0, 1, 6, 7, 9, 10)


def thetas(changes: tuple[RotaryChange, ...]) -> list[float]:
    return [encoder_at(ENCODER, changes, step).rotary_theta for step in STEPS]


def test_the_last_step_of_a_phase_has_the_angles_of_that_phase() -> None:
    longer = replace(ENCODER, rotary_theta=160_000.0)
    changes = rotary_changes(ENCODER, [(0, ENCODER), (3, ENCODER), (6, longer), (9, ENCODER)])
    assert changes == (RotaryChange(6, 160_000.0), RotaryChange(9, 10_000.0))
    assert thetas(changes) == [1e4, 1e4, 1e4, 1.6e5, 1.6e5, 1e4]
    first = rotary_changes(ENCODER, [(0, longer), (6, ENCODER)])
    assert thetas(first) == [1.6e5, 1.6e5, 1.6e5, 1e4, 1e4, 1e4]
    assert rotary_changes(ENCODER, [(0, ENCODER), (6, ENCODER)]) == ()


def test_the_model_of_a_step_is_read_from_its_description(tmp_path: Path) -> None:
    generator = replace(ENCODER, hidden_dim=4)
    config, vocabulary = ModelConfig(ENCODER, "replaced_token"), tmp_path / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n", encoding="utf-8")
    tokenizer = Tokenizer.load(vocabulary)

    def described(*changes: RotaryChange) -> None:
        write_model(
            config, {}, tmp_path, tokenizer=tokenizer, generator=generator, rotary_changes=changes
        )

    def read(step: int | None) -> tuple[float, float]:
        model, own = read_model(tmp_path, step)[0], read_generator(tmp_path, step)
        assert own is not None and own.hidden_dim == 4 and model.head == "replaced_token"
        return model.encoder.rotary_theta, own.rotary_theta

    described(RotaryChange(6, 160_000.0))
    assert [read(step) for step in (6, 7)] == [(1e4, 1e4), (1.6e5, 1.6e5)]
    # A run without a checkpoint uses the angles of its first phase.
    assert read(None) == (1e4, 1e4)
    for step, theta in ((6, 1e4), (9, 1.6e5)):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
        assert read(None) == (theta, theta)
    file = tmp_path / "model.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["rotary_changes"] = [{"after_step": 6}]
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"model\.json: rotary_changes"):
        read_model(tmp_path)
    described()
    assert "rotary_changes" not in json.loads(file.read_text(encoding="utf-8"))
    assert read(None) == (1e4, 1e4)
