"""Test that all of a run's configs are kept, and that changes between them are printed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from bert_jax.runs import ownership
from bert_jax.runs.ownership import ResolvedConfig


@dataclass(frozen=True)
class Optimizer:
    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Run:
    work_dir: str = "here"
    optimizer: Optimizer = field(default_factory=Optimizer)


def keep_config(run: Run, work_dir: Path, step: int, *, finished: bool) -> list[str]:
    return ownership.keep_config(ResolvedConfig.of(run), work_dir, step, finished=finished)


def test_a_resumed_run_keeps_both_configs_and_prints_the_changes(tmp_path) -> None:
    assert keep_config(Run(), tmp_path, 0, finished=False) == []
    assert keep_config(Run(work_dir="there"), tmp_path, 5, finished=False) == []
    lines = keep_config(Run(optimizer=Optimizer(rate=1e-4)), tmp_path, 7, finished=False)
    assert lines == [
        "changed    since step 7 (old config kept as config-until-7.json):",
        "  optimizer.rate: 0.001 -> 0.0001",
    ]
    rates = {
        name: json.loads((tmp_path / name).read_text())["optimizer"]["rate"]
        for name in ("config-until-7.json", "config.json")
    }
    assert rates == {"config-until-7.json": 1e-3, "config.json": 1e-4}


def test_a_change_without_any_training_leaves_no_trace(tmp_path) -> None:
    """Start a run twice from the same step, as if it had been killed before its next checkpoint."""
    keep_config(Run(), tmp_path, 0, finished=False)
    keep_config(Run(optimizer=Optimizer(rate=1e-4)), tmp_path, 7, finished=False)
    lines = keep_config(Run(optimizer=Optimizer(rate=1e-5)), tmp_path, 7, finished=False)
    assert lines[1:] == ["  optimizer.rate: 0.001 -> 1e-05"]
    kept = json.loads((tmp_path / "config-until-7.json").read_text())
    assert kept["optimizer"]["rate"] == 1e-3
    assert keep_config(Run(), tmp_path, 7, finished=False) == []
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert json.loads((tmp_path / "config.json").read_text())["optimizer"]["rate"] == 1e-3


def test_keys_added_since_an_earlier_version_are_not_changes(tmp_path) -> None:
    earlier = {"work_dir": "there", "optimizer": {"rate": 1e-4}}
    (tmp_path / "config.json").write_text(json.dumps(earlier))
    lines = keep_config(Run(), tmp_path, 7, finished=False)
    assert lines[1:] == ["  optimizer.rate: 0.0001 -> 0.001"]
    assert json.loads((tmp_path / "config-until-7.json").read_text()) == earlier
    (tmp_path / "config.json").write_text(json.dumps({**earlier, "removed": 1}))
    (tmp_path / "config-until-7.json").unlink()
    lines = keep_config(Run(), tmp_path, 7, finished=False)
    assert "  removed: 1 -> None" in lines


def test_the_config_of_a_finished_run_is_not_replaced(tmp_path) -> None:
    keep_config(Run(), tmp_path, 0, finished=False)
    before = (tmp_path / "config.json").read_bytes()
    lines = keep_config(Run(optimizer=Optimizer(rate=1e-4)), tmp_path, 9, finished=True)
    assert lines[1:] == ["  optimizer.rate: 0.001 -> 0.0001"] and "which is kept" in lines[0]
    assert (tmp_path / "config.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json"]


def test_the_config_of_a_start_killed_before_its_first_checkpoint_is_replaced(tmp_path) -> None:
    keep_config(Run(), tmp_path, 0, finished=False)
    assert keep_config(Run(optimizer=Optimizer(rate=1e-4)), tmp_path, 0, finished=False) == []
    assert json.loads((tmp_path / "config.json").read_text())["optimizer"]["rate"] == 1e-4
