"""Test that pretraining with products in FP8 resumes exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from numpy.testing import assert_array_equal

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.pretraining.run import pretrain
from bert_jax.recipes.load import load_config
from bert_jax.runs.checkpoints import load_model_parameters
from bert_jax.runs.work_dir import read_model
from bert_jax.training.distributed import StopRequest
from bert_jax.training.reports import Report, TrainReport


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_parameters(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert_jax.training.reporting.draw_curves", lambda *_, **__: None)
    settings = ["phases.phase2=None", "phases.phase1.num_steps=6", "optimizer.warmup_steps=2"]
    settings += ["evaluation.every_steps=100", "evaluation.max_records=16"]
    settings += ["compute.dtype=bfloat16", "compute.products=fp8_emulated"]
    whole, stopped = (
        load_config(tiny_config, [f"work_dir={tmp_path / name}", *settings], kind="pretrain")
        for name in ("whole", "stopped")
    )
    stop = StopRequest()

    def stop_at_step_3(report: Report) -> None:
        if isinstance(report, TrainReport) and report.step == 3:
            stop.request()

    expected = pretrain(whole)
    assert not pretrain(stopped, on_report=stop_at_step_3, stop=stop).finished
    assert pretrain(stopped).metrics == expected.metrics
    compute = ComputeConfig(dtype="float32", attention="xla")
    first, second = (
        load_model_parameters(tmp_path / name, read_model(tmp_path / name)[0], compute)
        for name in ("whole", "stopped")
    )
    for name, value in first.items():
        assert_array_equal(value, second[name], err_msg=name)
