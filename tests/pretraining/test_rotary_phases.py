"""Check runs whose phases have different rotary angles (Warner et al. 2024, section 2.2)."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.interop.export import export
from bert_jax.models.model import infer
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.phases import open_corpora, phases_identity, training_batches
from bert_jax.pretraining.run import pretrain
from bert_jax.pretraining.stable_phase import StablePhase
from bert_jax.recipes.command_line import pretrain_config
from bert_jax.recipes.load import load_config
from bert_jax.recipes.tables import config_tables
from bert_jax.runs.checkpoints import load_model
from bert_jax.runs.extraction import extract
from bert_jax.training.checkpoint_state import load_state
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.metrics_log import read_metrics
from bert_jax.training.sharding import local_rows, make_mesh, to_global
from bert_jax.training.state import TrainState, abstract_state
from bert_jax.training.step import StepInputs

from ..commands import Command

BASE, LONG = 10_000.0, 160_000.0
MODERN = {
    "model.positions": "rotary",
    "model.num_segments": 0,
    "model.norm": "pre",
    "model.first_norm": False,
    "model.norm_bias": False,
    "model.dense_bias": False,
    "model.gated_ffn": True,
    "model.attention_window": 9,
    "model.global_every": 2,
    "model.local_rotary_theta": BASE,
    "model.classifier_transform": "prediction",
    "model.initializer_range": 0.2,
    "sentence_pairs": "none",
}
THETA = "phases.phase2.rotary_theta"
LEFT_OUT = "left out"  # With this value, `config_of` does not set the key.


@pytest.fixture(autouse=True, scope="module")
def no_curves() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_jax.training.reporting.draw_curves", lambda *_, **__: None)
        yield


def words_of(work_dir: Path, **values: Any) -> list[str]:
    """Return the values in which a config differs from `tiny_config`."""
    words = {
        "work_dir": work_dir,
        "phases.phase1.num_steps": 6,
        "phases.phase2.num_steps": 6,
        THETA: LONG,
        "evaluation.every_steps": 6,
        "evaluation.max_records": 16,
        "checkpoint.every_steps": 3,
        "checkpoint.keep_every": 3,
        "reporting.every_steps": 1,
        **MODERN,
    } | values
    words = {key: value for key, value in words.items() if value != LEFT_OUT}
    return [f"{key}={x}" for key, x in words.items()]


def config_of(tiny_config: Path, work_dir: Path, **values: Any) -> PretrainConfig:
    return load_config(tiny_config, words_of(work_dir, **values), kind="pretrain")


@pytest.fixture(scope="module")
def run(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainConfig:
    """Return the config of a finished run with 6 steps in each of two phases."""
    config = config_of(tiny_config, tmp_path_factory.mktemp("phases") / "run")
    assert pretrain(config).finished
    return config


def state_at(config: PretrainConfig, step: int) -> TrainState:
    setup, mesh = config.step_setup(jax.devices()[0]), make_mesh(config.mesh)
    abstract = abstract_state(setup.task.definition, setup.transformation, mesh)
    return load_state(Path(config.work_dir) / "checkpoints", step, abstract)


def logged(config: PretrainConfig, kind: str) -> dict[int, dict[str, float]]:
    entries = read_metrics(Path(config.work_dir) / "metrics.jsonl")
    return {entry["step"]: entry for entry in entries if entry["kind"] == kind}


@pytest.mark.parametrize("step", [6, pytest.param(9, marks=pytest.mark.slow)])
def test_a_resumed_run_ends_with_the_same_state(
    tiny_config: Path, run: PretrainConfig, tmp_path: Path, step: int
) -> None:
    shutil.copytree(run.work_dir, tmp_path / "run")
    again = config_of(tiny_config, tmp_path / "run")
    assert pretrain(again, from_step=step).finished
    for leaf, other in zip(
        jax.tree.leaves(state_at(again, 12)), jax.tree.leaves(state_at(run, 12)), strict=True
    ):
        assert_array_equal(leaf, other)
    for kind in ("train", "evaluation"):
        entries, expected = logged(again, kind), logged(run, kind)
        assert list(entries) == list(expected)
        assert [entry.get("mlm_loss") for entry in entries.values()] == [
            entry.get("mlm_loss") for entry in expected.values()
        ]


def test_a_phase_trains_like_a_model_with_the_same_angles(
    tiny_config: Path, run: PretrainConfig
) -> None:
    other = config_of(tiny_config, Path("x"), **{THETA: 0, "model.rotary_theta": LONG})
    setup, mesh = other.step_setup(jax.devices()[0]), make_mesh(other.mesh)
    corpus = open_corpora(run.ordered_phases(), run.evaluation_batch_size)[1]
    (stage,) = corpus.config.stages
    rows = local_rows(mesh, stage.batch_size)
    batch = training_batches(corpus, run.examples, stage, run.total_steps, rows)[0]
    train_step, _ = setup.steps(mesh, None)
    inputs = StepInputs(np.uint32(run.seed), LearningRates(run.optimizer, run.total_steps)[6])
    _, metrics = train_step(
        state_at(run, 6), to_global(batch, mesh, rows, stage.batch_size), inputs
    )
    loss = metrics["mlm_loss"]
    mean = float(loss.sum) / float(loss.weight)
    assert mean == logged(run, "train")[7]["mlm_loss"]


def test_the_last_evaluation_uses_the_angles_of_the_last_phase(
    tiny_config: Path, run: PretrainConfig, tmp_path: Path
) -> None:
    extract(run.work_dir, tmp_path / "model", 12)
    assert load_model(tmp_path / "model").config.encoder.rotary_theta == LONG
    values = {"init_from": tmp_path / "model", "phases.phase1": None, THETA: 0}
    values |= {"phases.phase1.num_steps": LEFT_OUT, "optimizer.warmup_steps": 1}
    values |= {"model.rotary_theta": LONG, "phases.phase2.num_steps": 1}
    continued = config_of(tiny_config, tmp_path / "continued", **values)
    pretrain(continued)
    first = logged(continued, "evaluation")[0]
    assert first["mlm_loss"] == logged(run, "evaluation")[12]["mlm_loss"]


@pytest.mark.parametrize(("step", "theta"), [(6, BASE), (9, LONG)])
def test_an_exported_checkpoint_equals_modernbert(
    run: PretrainConfig, tmp_path: Path, step: int, theta: float
) -> None:
    extract(run.work_dir, tmp_path / "model", step)
    export(tmp_path / "model", tmp_path / "theirs", format="huggingface")
    theirs = transformers.ModernBertForMaskedLM.from_pretrained(
        tmp_path / "theirs", attn_implementation="eager"
    ).eval()
    kept = json.loads((tmp_path / "theirs/config.json").read_text(encoding="utf-8"))
    stored = kept["rope_parameters"]
    assert stored["full_attention"]["rope_theta"] == theta
    assert stored["sliding_attention"]["rope_theta"] == BASE
    ids = np.random.default_rng(0).integers(5, 300, (2, 64))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    ours = load_model(run.work_dir, "float32", step)
    assert ours.config.encoder.rotary_theta == theta
    logits = infer(ours.model, ids, None, None)["token_logits"]
    assert_allclose(logits, expected, atol=1e-4)
    # The angles matter: with the other phase's angles, the logits differ.
    swapped = dataclasses.replace(ours.config.encoder, rotary_theta=BASE + LONG - theta)
    ours.model.encoder.config = swapped
    wrong = infer(ours.model, ids, None, None)["token_logits"]
    assert np.abs(np.asarray(wrong) - expected).max() > 1e-2


def test_the_mean_of_checkpoints_with_different_angles_is_refused(
    run: PretrainConfig, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"average=3: .* before step 9.* Use at most 2"):
        extract(run.work_dir, tmp_path / "mean", 12, average=3)
    extract(run.work_dir, tmp_path / "mean", 12, average=2)
    assert load_model(tmp_path / "mean").config.encoder.rotary_theta == LONG


def test_the_angles_are_part_of_the_identity(tiny_config: Path, run: PretrainConfig) -> None:
    def identity(**values: Any) -> dict[str, Any]:
        config = config_of(tiny_config, Path("x"), **values)
        corpora = open_corpora(config.ordered_phases(), config.evaluation_batch_size)
        return {**config.identity(), "phases": phases_identity(corpora, config.model)}

    own = identity()
    assert own["phases"]["phase2"]["rotary_theta"] == LONG
    assert "rotary_theta" not in own["phases"]["phase1"]
    for theta in (0, BASE):
        assert "rotary_theta" not in identity(**{THETA: theta})["phases"]["phase2"]
    late = StablePhase(Path(run.work_dir), 9)
    late.check_identity(own)
    with pytest.raises(ValueError, match=r"phases\.phase2\.rotary_theta: 160000\.0 -> 10000\.0"):
        late.check_identity(identity(**{THETA: 0}))
    with pytest.raises(ValueError, match=r"\n  model\.rotary_theta: 10000\.0 -> 160000\.0\n"):
        late.check_identity(identity(**{THETA: 0, "model.rotary_theta": LONG}))
    StablePhase(Path(run.work_dir), 6).check_identity(identity(**{THETA: 0}))


def test_a_run_resumes_without_its_initial_model(
    tiny_config: Path, run: PretrainConfig, tmp_path: Path
) -> None:
    """Resume from a checkpoint whose angles differ from those in the run's config."""
    words = [f"work_dir={run.work_dir}", f"{THETA}={LONG}", "model.initializer_range=0.2"]
    words = [f"--config.{word}" for word in words]
    config = pretrain_config(str(tiny_config), words, str(tmp_path / "removed"))
    assert config.model.identity == run.model.identity
    assert config.model.rotary_theta == BASE


@pytest.mark.parametrize(("decay_from", "theta"), [(0, LONG), (9, BASE)])
def test_a_decay_uses_the_angles_in_the_config_of_its_initial_model(
    tiny_config: Path, run: PretrainConfig, tmp_path: Path, decay_from: int, theta: float
) -> None:
    """Other runs use the angles of the newest checkpoint."""
    values = {
        "work_dir": tmp_path / "run",
        "decay_from": decay_from,
        "phases.phase1.num_steps": 6,
        "phases.phase2.num_steps": 6,
        THETA: LONG,
        "optimizer.schedule": "wsd",
        "optimizer.decay_steps": 3,
        "optimizer.warmup_steps": 2,
    }
    words = [f"--config.{key}={value}" for key, value in values.items()]
    config = pretrain_config(str(tiny_config), words, run.work_dir)
    assert config.model.rotary_theta == theta
    assert config.model.local_rotary_theta == BASE
    if decay_from:
        assert config.model == run.model
    else:  # The run need not have the dropout and the initializer of the initial model.
        assert config.model.initializer_range != run.model.initializer_range


@pytest.mark.slow
def test_a_mesh_does_not_change_the_run(
    tiny_config: Path, run: PretrainConfig, tmp_path: Path
) -> None:
    sharded = config_of(tiny_config, tmp_path / "run", **{"mesh.fsdp": 2, "mesh.tensor": 2})
    metrics = pretrain(sharded).metrics
    assert metrics["mlm_loss"] == pytest.approx(logged(run, "evaluation")[12]["mlm_loss"], 1e-5)


@pytest.mark.slow
def test_the_context_is_extended_to_8192_tokens(
    tiny_config: Path, tiny_text: Path, bert_jax: Command, tmp_path: Path
) -> None:
    """Train on packed rows of 1,024 tokens, then on packed rows of 8,192 tokens."""
    values: dict[str, Any] = {"model.max_positions": 8_192, "model.attention_window": 129}
    values |= {"optimizer.warmup_steps": 1, "evaluation.every_steps": 0, "checkpoint.keep_best": 0}
    for number, length in enumerate((1_024, 8_192), start=1):
        words = ["prepare", "--input", tiny_text, "--tokenizer", tiny_config.parent / "tokenizer"]
        words += ["--max-length", str(length), "--held-out", "0.1", "--workers", "1"]
        bert_jax(*words, "--output", tmp_path / str(length))
        phase = f"phases.phase{number}"
        values |= {f"{phase}.corpus": tmp_path / str(length), f"{phase}.sequence_length": length}
        values |= {f"{phase}.batch_size": 8_192 // length, f"{phase}.num_steps": 2}
    config = config_of(tiny_config, tmp_path / "run", **values)
    corpus = open_corpora(config.ordered_phases(), config.evaluation_batch_size)[1]
    (stage,) = corpus.config.stages
    batches = training_batches(corpus, config.examples, stage, config.total_steps, np.arange(1))
    num_documents = []
    for index in range(stage.num_steps):
        documents, positions = batches[index]["document_ids"], batches[index]["position_ids"]
        assert documents.shape == (1, 8_192)
        num_documents.append(documents.max())
        # Positions restart at 0 in every document.
        assert ((positions == 0) & (documents > 0)).sum() == num_documents[-1]
    assert max(num_documents) > 50

    words = [f"--config.{word}" for word in words_of(tmp_path / "run", **values)]
    bert_jax("pretrain", "--config", tiny_config, *words)
    losses = [entry["mlm_loss"] for entry in logged(config, "train").values()]
    assert len(losses) == 4 and np.isfinite(losses).all()


def test_a_config_shows_the_angles_of_its_phases(tiny_config: Path) -> None:
    values = {"work_dir": "x", THETA: LONG, **MODERN}
    lines = list(config_tables(tiny_config, [f"{key}={value}" for key, value in values.items()]))
    assert [line.strip() for line in lines if "theta" in line] == ["rotary_theta 160,000"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({THETA: -1.0}, "phase rotary_theta=-1.0: must be positive and finite, or 0 for"),
        ({THETA: float("inf")}, "phase rotary_theta=inf: must be positive"),
        ({THETA: float("nan")}, "phase rotary_theta=nan: must be positive"),
    ],
)
def test_impossible_angles_are_refused(
    tiny_config: Path, values: dict[str, float], message: str
) -> None:
    phase = config_of(tiny_config, Path("x")).phases["phase2"]
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(phase, rotary_theta=values[THETA])


def test_angles_without_rotary_positions_are_refused(tiny_config: Path) -> None:
    with pytest.raises(ValueError, match=r"phases\.phase2\.rotary_theta=160000\.0: has no effect"):
        load_config(tiny_config, ["work_dir=x", f"{THETA}={LONG}"], kind="pretrain")
