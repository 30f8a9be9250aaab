"""Test that runs can start their decay from another run's checkpoint.

They must end with the same result as a single run, and reject unsuitable sources.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest
from numpy.testing import assert_array_equal

from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.run import pretrain
from bert_jax.pretraining.stable_phase import StablePhase, undone_decay
from bert_jax.recipes.load import load_config
from bert_jax.training.checkpoint_state import load_state
from bert_jax.training.distributed import StopRequest
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.reports import Report, TrainReport
from bert_jax.training.sharding import make_mesh
from bert_jax.training.state import TrainState, abstract_state

DECAY = {"optimizer.schedule": "wsd", "optimizer.decay_steps": 4, "optimizer.decay_shape": "1-sqrt"}


@pytest.fixture(autouse=True, scope="module")
def no_curves() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_jax.training.reporting.draw_curves", lambda *_, **__: None)
        yield


def config_of(tiny_config: Path, work_dir: Path, **values: Any) -> PretrainConfig:
    words = {
        "work_dir": work_dir,
        "phases.phase2": None,
        "phases.phase1.num_steps": 10,
        "optimizer.warmup_steps": 2,
        "evaluation.every_steps": 100,
        "evaluation.max_records": 16,
        "checkpoint.every_steps": 3,
        "checkpoint.keep_every": 3,
        "reporting.every_steps": 1,
        "reporting.tensorboard": False,
    } | values
    return load_config(tiny_config, [f"{key}={x}" for key, x in words.items()], kind="pretrain")


@pytest.fixture(scope="module")
def stable(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work directory of a run whose learning rate is constant after the warm-up."""
    work_dir = tmp_path_factory.mktemp("stable") / "run"
    values = {"phases.phase1.num_steps": 7, "optimizer.schedule": "constant"}
    assert pretrain(config_of(tiny_config, work_dir, **values)).finished
    return work_dir


def decay_of(tiny_config: Path, stable: Path, run: Path, **values: Any) -> PretrainConfig:
    values = {"init_from": stable, "decay_from": 6, "work_dir": run, **DECAY} | values
    return config_of(tiny_config, values.pop("work_dir"), **values)


def last_state(config: PretrainConfig) -> TrainState:
    setup = config.step_setup(jax.devices()[0])
    mesh = make_mesh(config.mesh)
    abstract = abstract_state(setup.task.definition, setup.transformation, mesh)
    return load_state(Path(config.work_dir) / "checkpoints", config.total_steps, abstract)


@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_decay_ends_like_a_single_run(
    tiny_config: Path, stable: Path, tmp_path: Path, *, stopped: bool
) -> None:
    single = config_of(tiny_config, tmp_path / "single", **DECAY)
    expected = pretrain(single)
    decay = decay_of(tiny_config, stable, tmp_path / "decay")
    stop, lines = StopRequest(), []

    def stop_at_step_8(report: Report) -> None:
        lines.append(str(report))
        if stopped and isinstance(report, TrainReport) and report.step == 8:
            stop.request()

    result = pretrain(decay, on_report=stop_at_step_8, stop=stop)
    assert f"start      the checkpoint of {stable} at step 6, for a decay" in lines
    assert result.finished is not stopped
    if stopped:
        assert 8 <= result.step < 10
        result = pretrain(decay)  # The run resumes from its own checkpoint.
    assert result.finished and result.metrics == expected.metrics
    for leaf, other in zip(
        jax.tree.leaves(last_state(decay)), jax.tree.leaves(last_state(single)), strict=True
    ):
        assert_array_equal(leaf, other)
    logs = [Path(config.work_dir) / "metrics.jsonl" for config in (decay, single)]
    timing = {"tokens_per_second", "stall", "seconds", "compiling", "steps"}
    entries = [
        [
            {key: x for key, x in json.loads(line).items() if key not in timing}
            for line in log.read_text(encoding="utf-8").splitlines()
        ]
        for log in logs
    ]
    assert entries[0] == entries[1]
    rates = [entry["learning_rate"] for entry in entries[0] if entry["kind"] == "train"]
    assert [entry["step"] for entry in entries[0] if entry["kind"] == "train"] == [*range(1, 11)]
    peak = decay.optimizer.peak_learning_rate
    fractions = [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1 - 0.25**0.5, 1 - 0.5**0.5, 1 - 0.75**0.5]
    assert rates == pytest.approx([peak * fraction for fraction in fractions])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"decay_from": 5, "phases.phase1.num_steps": 9}, "decay_from=5: {} has no checkpoint at t"
         "his step. Choose one of its steps: 3, 6, 7."),
        ({"seed": 1}, "this config cannot continue the run in {} (its checkpoint -> this config):"
         "\n  seed: 0 -> 1\n"),
        ({"optimizer.name": "lamb"}, "optimizer: 'adamw' -> 'lamb'"),
        ({"phases.phase1.batch_size": 8}, "phases.phase1.batch_size: 16 -> 8"),
        ({"optimizer.peak_learning_rate": 0.5}, "{} used the learning rate"),
        ({"optimizer.warmup_steps": 3}, "Set peak_learning_rate and warmup_steps to that run's va"
         "lues."),
        ({"decay_from": 4}, "decay_from=4: expected 6, because the decay takes the last 4 of 10 s"
         "teps. Set optimizer.decay_steps=6 and decay_fraction="),
        ({"optimizer.schedule": "linear", "optimizer.decay_steps": 0,
          "optimizer.decay_shape": "linear"}, "schedule='linear': this schedule has no decay that"),
        ({"init_from": ""}, "decay_from=6 without init_from: set init_from to the work directory"),
        ({"init_from": "{}", "work_dir": "{}"}, "is also init_from, the run to start from"),
    ],
)  # fmt: skip
def test_unsuitable_sources_are_refused(
    tiny_config: Path, stable: Path, tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    values = {key: str(stable) if x == "{}" else x for key, x in values.items()}
    with pytest.raises(ValueError, match=re.escape(message.format(stable))):
        pretrain(decay_of(tiny_config, stable, tmp_path / "run", **values))
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (4, "used the learning rate {} in step 5, but the optimizer section of this config gives "
         "{}. That run's own decay had already begun. Set decay_from to an earlier step (3) and l"
         "ower num_steps to match."),
        (2, "in step 3, but the optimizer section of this config gives {}. That run's own decay "
         "had already begun. According to its log, none of its checkpoints is from b"
         "efore. Choose another run."),
    ],
)  # fmt: skip
def test_a_decay_that_has_already_begun_is_refused(
    tiny_config: Path, stable: Path, tmp_path: Path, last: int, message: str
) -> None:
    source = tmp_path / "source"
    shutil.copytree(stable, source)
    log = source / "metrics.jsonl"
    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    for entry in entries:
        if "learning_rate" in entry and entry["step"] > last:
            entry["learning_rate"] *= 0.5
    log.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
    pattern = re.escape(message).replace(r"\{\}", r"[\d.e-]+")
    with pytest.raises(ValueError, match=pattern):
        pretrain(decay_of(tiny_config, source, tmp_path / "run"))


class Rates:
    """The learning rates of a run with a warm-up of 2 steps and a decay of 4 steps."""

    def __init__(self, num_steps: int, **values: Any) -> None:
        settings = {"warmup_steps": 2, "schedule": "wsd", "decay_steps": 4} | values
        config = OptimizerConfig(peak_learning_rate=1e-3, **settings)
        self.rates = LearningRates(config, num_steps)

    def write(self, work_dir: Path, num_steps: int, first: int = 1) -> None:
        """Add steps of this run to a log."""
        with (work_dir / "metrics.jsonl").open("a", encoding="utf-8") as log:
            for step in range(first, num_steps + 1):
                rate = float(self.rates[step - 1])
                log.write(json.dumps({"kind": "train", "step": step, "learning_rate": rate}) + "\n")
                log.write(json.dumps({"kind": "evaluation", "step": step, "mlm_loss": 1.0}) + "\n")


NOTE = (
    "NOTE       the learning rate had already begun to decay by step 8, but this config raises it "
    "again. "
)
KEPT = (
    "To resume from before the decay, stop this run and repeat its command with --from-step N, "
    "where N is one of {}"
)
LOST = "No checkpoint from before the decay was kept"


@pytest.mark.parametrize(
    ("num_steps", "values", "kept", "advice"),
    [
        (12, {}, ("3", "6", "10"), KEPT.format("3, 6")),
        (12, {}, ("10",), LOST),
        (40, {"warmup_steps": 0, "warmup_fraction": 0.3}, ("10",), LOST),
        (11, {"decay_steps": 1}, ("7",), KEPT.format("7")),
        (11, {"decay_steps": 5, "decay_shape": "1-sqrt"}, ("6",), None),
        (11, {"decay_steps": 5}, ("6",), None),
    ],
)
def test_a_decay_is_undone_if_the_learning_rate_rises_again(
    tmp_path: Path,
    num_steps: int,
    values: dict[str, Any],
    kept: tuple[str, ...],
    advice: str | None,
) -> None:
    Rates(10).write(tmp_path, 10)
    for step in kept:
        (tmp_path / "checkpoints" / step).mkdir(parents=True)
    expected = [] if advice is None else [NOTE + advice]
    assert undone_decay(tmp_path, Rates(num_steps, **values).rates, 10) == expected


def test_a_decay_that_was_undone_earlier_is_not_reported_again(tmp_path: Path) -> None:
    Rates(10).write(tmp_path, 10)
    Rates(30).write(tmp_path, 15, first=11)
    assert undone_decay(tmp_path, Rates(30).rates, 15) == []
    assert undone_decay(tmp_path / "missing", Rates(30).rates, 15) == []


def test_a_learning_rate_that_is_not_finite_is_ignored(tmp_path: Path) -> None:
    entry = {"kind": "train", "step": 1, "learning_rate": None}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(entry) + "\n", encoding="utf-8")
    assert undone_decay(tmp_path, Rates(30).rates, 1) == []


def test_a_finished_run_with_more_steps_reports_the_decay_that_it_undoes(
    tiny_config: Path, tmp_path: Path
) -> None:
    def notes_of(num_steps: int) -> list[str]:
        values = {"phases.phase1.num_steps": num_steps, **DECAY}
        lines: list[str] = []
        config = config_of(tiny_config, tmp_path / "run", **values)
        assert pretrain(config, on_report=lambda report: lines.append(str(report))).finished
        return [line for line in lines if line.startswith("NOTE       the learning rate")]

    assert notes_of(10) == []
    assert notes_of(12) == [NOTE + KEPT.format("3, 6")]


def test_only_phases_that_begin_before_the_decay_must_be_the_same(stable: Path) -> None:
    phase = StablePhase(stable, 6)
    identity = dict(phase.identity())
    phases = identity["phases"]
    phase.check_identity({**identity, "phases": phases | {"phase2": {"first_step": 7}}})
    with pytest.raises(ValueError, match="phases.phase2: None -> {'first_step': 5}"):
        phase.check_identity({**identity, "phases": phases | {"phase2": {"first_step": 5}}})


def test_a_directory_with_another_run_is_refused(
    tiny_config: Path, stable: Path, tmp_path: Path
) -> None:
    shutil.copytree(stable, tmp_path / "other")
    with pytest.raises(ValueError, match="started from random parameters"):
        pretrain(decay_of(tiny_config, stable, tmp_path / "other"))
