"""Test the lines about the attention implementation and the settings that a faster one needs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.analysis.estimates import InstructionEstimate, StepEstimate
from bert_jax.analysis.kernel_times import CALIBRATION, CUDNN_TFLOPS
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.variants import variant
from bert_jax.pretraining.attention_text import attention_lines, attention_reason, cudnn_lines
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.pretraining.step_setup import StepSetup

H200: Any = SimpleNamespace(
    platform="gpu", compute_capability="9.0", device_kind="NVIDIA H200 141GB HBM3e"
)
MESH: Any = SimpleNamespace(size=2, devices=SimpleNamespace(flat=[H200, H200]))
CPU: Any = SimpleNamespace(platform="cpu", device_kind="cpu")
PHASE = PhaseConfig("never-read", num_steps=1, sequence_length=512, batch_size=256)


def setup_on(device: Any, attention: Any = "auto", **changes: Any) -> StepSetup:
    compute = ComputeConfig(attention=attention)
    config = PretrainConfig(
        "unused", {"phase1": PHASE}, variant("base", **changes), compute=compute
    )
    return config.step_setup(device)


def estimate_with(**milliseconds: float) -> StepEstimate:
    lines = [
        InstructionEstimate(
            name=kind,
            kind=kind.replace("_", " "),
            shape="",
            stored=(),
            seconds=time / 1e3,
            method="",
            bytes=0,
            runs=1,
            source="",
            in_layer=True,
        )
        for kind, time in milliseconds.items()
    ]
    return StepEstimate(lines, (), 0.0, None, 1.0, 12, 0)


def test_the_reason_names_the_setting_that_a_faster_attention_needs() -> None:
    reason = attention_reason(setup_on(H200), H200, 512)
    assert "model.attention_dropout=0" in reason
    assert attention_lines("xla", reason, 10) == [f"attention xla, because {reason}"]


def test_nothing_is_printed_for_the_fastest_attention() -> None:
    for device, changes in ((CPU, {}), (H200, {"attention_dropout": 0.0})):
        setup = setup_on(device, **changes)
        assert attention_reason(setup, device, 512) == ""
    assert attention_lines("cudnn", "", 10) == []


def test_a_requested_attention_is_compared_with_the_automatic_choice() -> None:
    setup = setup_on(H200, "xla", attention_dropout=0.0)
    expected = "compute.attention='xla'; 'auto' would select 'cudnn'"
    assert attention_reason(setup, H200, 512) == expected
    fastest = setup_on(H200, "cudnn", attention_dropout=0.0)
    assert attention_reason(fastest, H200, 512) == ""


def test_the_time_that_cudnn_would_save_is_estimated() -> None:
    estimate = estimate_with(attention_products=40.0, attention_softmax=60.0, dense_products=50.0)
    (line,) = cudnn_lines(setup_on(H200), MESH, PHASE, estimate)
    forward, backward = CUDNN_TFLOPS[512]
    product = 2 * 128 * 512 * 512 * 768
    cudnn = 12 * CALIBRATION * product * (2 / forward + 5 / backward) / 1e12
    # The estimate of the whole step contains the same time.
    assert cudnn == pytest.approx(17.3e-3, rel=0.01)
    assert line == (
        f"attention           100.00 ms of the step; with cuDNN, an estimated "
        f"{100 - cudnn * 1e3:.2f} ms less (needs model.attention_dropout=0)"
    )


def test_nothing_is_estimated_where_cudnn_would_not_help() -> None:
    slow, fast = estimate_with(attention_products=100.0), estimate_with(fused_attention=10.0)
    setup = setup_on(H200)
    assert cudnn_lines(setup, MESH, PHASE, None) == []
    assert cudnn_lines(setup, MESH, PHASE, fast) == []
    assert cudnn_lines(setup_on(H200, attention_dropout=0.0), MESH, PHASE, slow) == []
    single = replace(setup, compute=replace(setup.compute, dtype="float32"))
    assert cudnn_lines(single, MESH, PHASE, slow) == []
    rotary = setup_on(H200, positions="rotary")
    assert cudnn_lines(rotary, MESH, PHASE, slow) == []
