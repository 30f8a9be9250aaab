"""Test the description of a pretraining run's teacher."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.options import AttentionBackend
from bert_jax.pretraining.teacher import describe_teacher
from bert_jax.runs.work_dir import write_model
from bert_jax.tasks.distillation import DistillationConfig
from bert_jax.tokenizers.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("platform", "requested", "expected"),
    [
        ("tpu", "splash", "splash"),
        ("tpu", "xla", "xla"),
        ("tpu", "auto", "splash"),
        ("gpu", "auto", "cudnn"),
        ("gpu", "xla", "xla"),
    ],
)
def test_the_teacher_uses_the_requested_attention(
    tmp_path: Path, platform: str, requested: AttentionBackend, expected: str
) -> None:
    # The teacher's own attention dropout does not prevent the use of a kernel without dropout.
    encoder = EncoderConfig(
        vocab_size=6, hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=16, max_positions=32,
        attention_dropout=0.1,
    )  # fmt: skip
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt")
    write_model(ModelConfig(encoder, "masked_lm"), {}, tmp_path / "teacher", tokenizer=tokenizer)
    device: Any = SimpleNamespace(platform=platform, compute_capability="9.0")
    student = dataclasses.replace(encoder, attention_dropout=0.0)
    losses = DistillationConfig(str(tmp_path / "teacher"))
    compute = ComputeConfig(attention=requested)
    spec = describe_teacher(losses, student, compute, device, longest_sequence=32)
    assert (spec.compute.dtype, spec.compute.attention) == ("bfloat16", expected)
