"""Test that planning a run from Python returns a result and prints nothing."""

from __future__ import annotations

import pytest

from bert_jax.models.config import EncoderConfig
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.pretraining.plan import plan

MIB = 2**20


def test_a_plan_says_whether_a_run_fits(capfd: pytest.CaptureFixture[str]) -> None:
    model = EncoderConfig(
        vocab_size=64, hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=32, max_positions=32
    )
    phase = PhaseConfig("never-read", num_steps=20_000, sequence_length=32, batch_size=16)
    config = PretrainConfig("never-written", {"phase1": phase}, model)
    result = plan(config, "cpu:2")
    assert capfd.readouterr() == ("", "")
    assert result.fits and result.changes == {} and result.limit is None
    (compiled,) = result.phases
    assert len(result.devices) == 2 and compiled.documents_per_row == 1
    assert 0 < compiled.state_bytes < result.memory == compiled.memory < 16 * MIB

    lines: list[str] = []
    result = plan(
        config,
        result.devices,
        memory_bytes=compiled.memory - 1,
        tries=0,
        on_report=lambda report: lines.append(str(report)),
    )
    assert not result.fits and result.changes is None
    assert "the run does not fit: trying at most 0 changes" in lines
    assert lines[-1].startswith("\nthe run does not fit with any of these changes")
    assert capfd.readouterr() == ("", "")
