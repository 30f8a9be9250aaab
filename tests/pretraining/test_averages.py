"""Test the moving average of a run's parameters, and how `extract` averages checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load_file

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.prepared_run import PretrainResult
from bert_jax.pretraining.run import pretrain
from bert_jax.recipes.load import load_config
from bert_jax.runs.checkpoints import load_model_parameters
from bert_jax.runs.work_dir import read_model
from bert_jax.training.checkpoint_checksums import AVERAGE, PARAMETERS
from bert_jax.training.distributed import StopRequest
from bert_jax.training.reports import Report, TrainReport

from ..commands import Finished

COMPUTE = ComputeConfig(dtype="float32", attention="xla")


@pytest.fixture(autouse=True, scope="module")
def no_curves() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_jax.training.reporting.draw_curves", lambda *_, **__: None)
        yield


def config_of(tiny_config: Path, work_dir: Path, *words: str) -> PretrainConfig:
    settings = [f"work_dir={work_dir}", "phases.phase2=None", "phases.phase1.num_steps=6"]
    settings += ["evaluation.every_steps=100", "evaluation.max_records=16"]
    settings += ["optimizer.warmup_steps=2", "checkpoint.every_steps=2", "checkpoint.keep_every=2"]
    settings += ["averaging.ema_decay=0.5", "checkpoint.best_metric=average_mlm_loss"]
    return load_config(tiny_config, [*settings, *words], kind="pretrain")


@pytest.fixture(scope="module")
def run(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainResult:
    return pretrain(config_of(tiny_config, tmp_path_factory.mktemp("averages") / "run"))


def parameters(work_dir: Path, step: int | None = None, part: str = PARAMETERS) -> Any:
    return load_model_parameters(work_dir, read_model(work_dir)[0], COMPUTE, step, part)


def test_the_parameters_and_their_average_are_evaluated(run: PretrainResult) -> None:
    names = {"mlm_loss", "mlm_perplexity", "nsp_accuracy"}
    assert run.metrics.keys() >= names | {f"average_{name}" for name in names}
    assert run.metrics["average_mlm_loss"] != run.metrics["mlm_loss"]


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_average(
    tiny_config: Path, run: PretrainResult, tmp_path: Path
) -> None:
    stop = StopRequest()

    def stop_at_step_3(report: Report) -> None:
        if isinstance(report, TrainReport) and report.step == 3:
            stop.request()

    config = config_of(tiny_config, tmp_path / "run")
    assert not pretrain(config, on_report=stop_at_step_3, stop=stop).finished
    assert pretrain(config).metrics == run.metrics
    for part in (PARAMETERS, AVERAGE):
        expected = parameters(run.work_dir, part=part)
        for name, value in parameters(tmp_path / "run", part=part).items():
            assert_array_equal(value, expected[name])


def test_an_average_can_be_extracted_and_exported(
    run: PretrainResult, bert_jax_here: Callable[..., Finished], tmp_path: Path
) -> None:
    outputs = {name: tmp_path / name for name in ("ema", "mean")}
    finished = bert_jax_here("extract", run.work_dir, "--ema", "--output", outputs["ema"])
    assert "the moving average of the parameters of" in finished.output, finished.errors
    moving = parameters(run.work_dir, part=AVERAGE)
    for name, value in parameters(outputs["ema"]).items():
        assert_array_equal(value, moving[name])
    words = ["export", outputs["ema"], "--format", "huggingface", "--output", tmp_path / "exported"]
    assert bert_jax_here(*words).code == 0
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    assert_array_equal(
        exported["bert.embeddings.word_embeddings.weight"],
        moving["encoder.embeddings.token"],
    )

    words = ["extract", run.work_dir, "--average", 2, "--output"]
    finished = bert_jax_here(*map(str, words), outputs["mean"])
    assert f"the mean of the parameters of {run.work_dir} at steps 4, 6" in finished.output
    steps = [parameters(run.work_dir, step) for step in (4, 6)]
    for name, value in parameters(outputs["mean"]).items():
        mean = np.mean([np.asarray(step[name], np.float64) for step in steps], axis=0)
        assert_allclose(value, mean, rtol=1e-7)
        assert name.endswith("key.bias") or (np.asarray(value) != steps[1][name]).any()

    for extra, message in (
        (["--average", "4"], f"average=4: {run.work_dir} has only 3 checkpoints up to step 6 (2, "),
        (["--average", "2", "--ema"], "Use only one of them"),
    ):
        refused = bert_jax_here("extract", run.work_dir, *extra, "--output", tmp_path / "no")
        assert refused.code == 2 and message in refused.errors and not (tmp_path / "no").exists()
    refused = bert_jax_here("extract", outputs["ema"], "--ema", "--output", tmp_path / "no")
    assert refused.code == 2 and "has no moving average of the parameters" in refused.errors


@pytest.mark.slow
def test_another_run_starts_from_the_average(
    tiny_config: Path, run: PretrainResult, bert_jax_here: Callable[..., Finished], tmp_path: Path
) -> None:
    bert_jax_here("extract", run.work_dir, "--ema", "--output", tmp_path / "ema")
    words = [f"init_from={tmp_path / 'ema'}", "optimizer.peak_learning_rate=0.0"]
    words += ["optimizer.weight_decay=0.0"]
    pretrain(config_of(tiny_config, tmp_path / "next", *words))
    # With a learning rate of 0, the parameters and their average stay the same.
    for part in (PARAMETERS, AVERAGE):
        loaded = parameters(tmp_path / "next", part=part)
        for name, value in parameters(tmp_path / "ema").items():
            assert_allclose(loaded[name], value, rtol=1e-6, err_msg=name)
