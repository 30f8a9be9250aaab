"""Test that sizes too large for memory are rejected at once, and that the error names the key."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..commands import Finished

Run = Callable[..., Finished]


@pytest.fixture(autouse=True)
def nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    def traced(*_: object) -> None:
        raise AssertionError("a model was traced before its size was checked")

    for module in ("bert_jax.models.model", "bert_jax.tasks.pretraining"):
        monkeypatch.setattr(f"{module}.define", traced)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "model.ffn_dim=2000000000",
            r"parameters [\d.]+ GiB.*Lower model.ffn_dim=2000000000\b",
        ),
        ("model.ffn_dim=1000000000000", "ffn_dim=1000000000000: expected at most 2,147,483,647"),
        ("model.num_layers=100000", r"num_layers=100000: expected at most 2,000 \(every layer"),
        (
            "model.hidden_dim=1000000000",
            r"the compiler supports at most 1.0 EiB. Lower model.hidden_dim",
        ),
        ("model.vocab_size=2000000000", r"Lower model.vocab_size=2000000000\b"),
        ("model.max_positions=2000000000", r"this machine has .*model.max_positions=2000000000"),
        ("model.num_segments=1000000", "num_segments=1000000: expected at most 1,000"),
        (
            "phases.phase1.num_steps=10000000000",
            r"10,000,000,012 steps; expected at most 2,147,483,647",
        ),
        ("loader.num_workers=1000000", r"loader.num_workers=1000000: that many worker processes"),
        (
            "evaluation.batch_size=8000000000000",
            r"one evaluation batch .*Lower evaluation.batch",
        ),
        (
            "phases.phase1.sequence_length=1000000",
            "sequence_length=1000000: expected at most 65,535",
        ),
        (f"phases.phase1.batch_size={10**400}", r"phase batch_size=1(0+)\.\.\.: must be at most"),
        (f"loader.num_workers={10**18}", "processes need at least over 1,023 EiB"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    change: str, message: str, tiny_config: Path, tmp_path: Path, bert_jax_here: Run
) -> None:
    began = time.monotonic()
    words = ["--config", tiny_config, f"--config.work_dir={tmp_path / 'run'}"]
    refused = bert_jax_here("pretrain", *words, f"--config.{change}")
    assert refused.code == 2, refused.errors
    assert re.search(message, refused.errors), refused.errors
    assert not (tmp_path / "run").exists() and time.monotonic() - began < 10


def test_bench_step_also_checks_batch_sizes(tiny_config: Path, bert_jax_here: Run) -> None:
    changes = ("--config.work_dir=x", "--config.phases.phase1.batch_size=8000000000")
    refused = bert_jax_here("bench", "step", "--config", tiny_config, *changes)
    assert refused.code == 2
    assert "Lower phases.phase1.batch_size=8000000000 or sequence_length=32" in refused.errors


def test_plan_is_not_limited_by_this_machine(tiny_config: Path, bert_jax_here: Run) -> None:
    words = ("plan", "--config", tiny_config, "--topology", "cpu:8", "--config.work_dir=x")
    refused = bert_jax_here(*words, "--config.model.hidden_dim=2000000000")
    assert refused.code == 2 and "the compiler supports at most 1.0 EiB" in refused.errors
    with pytest.raises(AssertionError, match="traced"):  # The parameters would take 2 TiB.
        bert_jax_here(*words, "--config.model.ffn_dim=2000000000")
