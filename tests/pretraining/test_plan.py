"""Test that planning a run from Python returns a result and prints nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.analysis.estimate_step import estimate_step
from bert_jax.analysis.kernel_times import kernel_times
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.pretraining.phase_plan import PhasePlan, estimate_of
from bert_jax.pretraining.plan import Plan, plan
from bert_jax.pretraining.plan_text import phase_lines, total_lines
from bert_jax.training.compiled_step import CompiledStep

STEP_ON_V5E = Path(__file__).parents[1] / "analysis" / "step_on_v5e.txt"
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
    assert compiled.estimate is None and result.seconds is None and result.chip_hours is None
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


def test_an_estimate_becomes_the_time_and_the_cost_of_the_run() -> None:
    text = STEP_ON_V5E.read_text(encoding="utf-8")
    times = kernel_times("TPU v5 lite")
    assert times is not None
    estimate = estimate_step(
        text,
        4,
        times,
        link_bandwidth=200e9,
        memory_bandwidth=819e9,
        least_seconds=3.3e-3,
    )
    assert estimate is not None
    # This compiler has counted neither FLOPs nor bytes.
    step = CompiledStep(2 * MIB, 0, MIB, flops=None, bytes_accessed=None, text=text)
    phase = PhasePlan(
        name="phase1",
        phase=PhaseConfig("never-read", num_steps=1_000_000, sequence_length=512, batch_size=128),
        documents_per_row=16,
        dtype="bfloat16",
        state_bytes=MIB,
        model_flops=4 * 650_100_000_000,
        compile_seconds=1.0,
        step=step,
        refused=None,
        estimate=estimate,
    )
    devices: Any = [SimpleNamespace(platform="tpu", device_kind="TPU v5 lite")] * 4
    result = Plan(devices, [phase], limit=None, changes={})
    # A step takes 6 ms of computation and 0.703 ms of communication (see test_estimates.py).
    assert result.seconds == phase.seconds == pytest.approx(6_703.2, abs=0.1)
    assert result.chip_hours == pytest.approx(4 * 6_703.2 / 3_600, abs=1e-3)
    lines = phase_lines(phase, devices, None)
    assert "  FLOPs per step      2.6e+12 of the model on all devices" in lines
    assert "  estimated time      6.70 ms per step, MFU 49.2%" in lines
    # The roofline is still printed as a lower bound.
    assert any("at least 3.30 ms per step, by compute" in line for line in lines)
    first, _, third, *_ = total_lines([phase], devices, 1.2)
    assert "takes an estimated 1 h 52 min (7.4 chip-hours, 8.94 USD at 1.2 USD each)" in first
    assert third.startswith("the run   takes at least 55 min: a lower bound, not a prediction")
    complete = replace(estimate, instructions=[estimate.most_expensive(1)[0]])
    _, last, *_ = total_lines([replace(phase, estimate=complete)], devices)
    assert last.endswith("and waiting for data.")
    assert "optax/_src/update.py:42 <lambda>" in result.explain(3)
    assert "cross_entropy" not in result.explain(3)


def described(phase: PhaseConfig, device_kind: str, dtype: str, text: str) -> list[str]:
    """Describe a plan for devices whose compiler writes `text`."""
    step = CompiledStep(2 * MIB, 0, MIB, flops=None, bytes_accessed=None, text=text)
    platform = "tpu" if "TPU" in device_kind else "gpu"
    devices: Any = [SimpleNamespace(platform=platform, device_kind=device_kind)] * 4
    mesh: Any = SimpleNamespace(size=4, devices=SimpleNamespace(flat=devices))
    plan = PhasePlan(
        name="phase1",
        phase=phase,
        documents_per_row=1,
        dtype=dtype,
        state_bytes=MIB,
        model_flops=10**12,
        compile_seconds=1.0,
        step=step,
        refused=None,
        estimate=estimate_of(step, mesh, dtype, 10**12),
    )
    return [*phase_lines(plan, devices, None), *total_lines([plan], devices, 1.2)]


def test_a_plan_gives_the_reason_for_missing_figures() -> None:
    phase = PhaseConfig("never-read", num_steps=1_000_000, sequence_length=512, batch_size=128)
    text = STEP_ON_V5E.read_text(encoding="utf-8")
    lines = described(phase, "TPU v5 lite", "float32", text)
    peak = "unknown for TPU v5 lite, because its peak in float32 is unknown"
    assert f"  roofline            {peak}" in lines
    assert "  estimated time      6.70 ms per step, MFU unknown without the chip's peak" in lines
    assert any("takes an estimated 1 h 52 min (7.4 chip-hours, 8.94 USD" in line for line in lines)
    assert not any("none:" in line or "the cost  is unknown" in line for line in lines)
    for kind, reason in {
        "cpu": "the compiler estimates no times for cpu",
        "TPU v99": "the clock rate of TPU v99 is unknown",
    }.items():
        lines = described(phase, kind, "bfloat16", text)
        assert f"  roofline            unknown for {kind}" in lines
        assert f"  estimated time      none: {reason}" in lines
        assert f"the cost  is unknown, because {reason}" in lines


def test_fp8_units_halve_the_minimum_time_of_dense_layers() -> None:
    phase = PhaseConfig("never-read", num_steps=1, sequence_length=512, batch_size=128)
    gpu: Any = SimpleNamespace(platform="gpu", compute_capability="9.0", device_kind="NVIDIA H200")
    times = {}
    for products in ("dtype", "fp8"):
        config = PretrainConfig(
            work_dir="never-written",
            model=EncoderConfig(),
            phases={"only": phase},
            compute=ComputeConfig(dtype="bfloat16", products=products),
        )
        setup = config.step_setup(gpu)
        step = CompiledStep(
            MIB, 0, MIB, flops=None, bytes_accessed=None, text=STEP_ON_V5E.read_text("utf-8")
        )
        planned = PhasePlan(
            name="only",
            phase=phase,
            documents_per_row=1,
            dtype="bfloat16",
            state_bytes=MIB,
            model_flops=setup.step_flops(phase, 1),
            compile_seconds=1.0,
            step=step,
            refused=None,
            fp8_flops=setup.fp8_flops(phase),
        )
        bound = planned.roofline([gpu])
        assert bound is not None
        times[products] = bound.compute
    # Training takes 6 FLOPs per token and element of a kernel (Kaplan et al. 2020, table 1).
    elements = 12 * (4 * 768**2 + 2 * 768 * 3072)
    saved = 6 * 128 * 512 * elements / 2 / 989.5e12
    assert times["dtype"] - times["fp8"] == pytest.approx(saved)
