"""Compare estimates for GPUs with sums made by hand, for part of a real step.

`step_on_h200.txt` was cut from the text that XLA (jax 0.10.2) wrote for a step of BERT-base on an
H200, with round numbers of microseconds and one layer with a single dense product.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bert_jax.analysis.chips import chip, peak_flops
from bert_jax.analysis.custom_calls import Work, pallas_work
from bert_jax.analysis.estimate_step import estimate_step
from bert_jax.analysis.estimates import StepEstimate
from bert_jax.analysis.hlo import Instruction, arrays
from bert_jax.analysis.kernel_times import (
    CALIBRATION,
    CUDNN_TFLOPS,
    PALLAS_GPU_TFLOPS,
    PALLAS_TPU_SHARES,
    PRODUCT_SHARE,
    GpuTimes,
    TpuTimes,
    kernel_times,
)

TEXT = (Path(__file__).parent / "step_on_h200.txt").read_text(encoding="utf-8")
PEAK, BANDWIDTH = 989.5e12, 4.8e12
TOKENS, DIM = 128 * 512, 768
ATTENDED = Work(10**12, 3 * 10**8)
TIMES = GpuTimes(PEAK, BANDWIDTH, {"attend_to_keys": ATTENDED}, calibration=1.0)
LAUNCH = 1e-6


def estimated(times: GpuTimes = TIMES, text: str = TEXT) -> StepEstimate:
    estimate = estimate_step(
        text,
        1,
        times,
        link_bandwidth=450e9,
        memory_bandwidth=BANDWIDTH,
        least_seconds=1e-3,
        num_layers=1,
    )
    assert estimate is not None
    return estimate


@pytest.fixture(scope="module")
def estimate() -> StepEstimate:
    return estimated()


def test_each_kernel_is_estimated_in_its_own_way(estimate: StepEstimate) -> None:
    seconds = {line.name: line.seconds for line in estimate.instructions}
    product = 2 * TOKENS * DIM * DIM / (PRODUCT_SHARE * PEAK)
    scores = 128 * 12 * 512 * 512
    forward, backward = CUDNN_TFLOPS[512]
    # For the product with the vocabulary, writing the float32 result takes longer than multiplying.
    vocabulary = (2 * TOKENS * DIM * 2 + 1024 * 30_528 * 4) / BANDWIDTH
    vocabulary_flops = 2 * 1024 * 30_528 * DIM / (PRODUCT_SHARE * PEAK)
    expected = {
        "loop_convert_fusion": 0.75e-6,
        "cublas-lt-matmul.1": product,
        "dot_product_attention_fwd.1": 2 * 2 * scores * 64 / (forward * 1e12),
        # If XLA compiles a fusion with Triton, its first estimate for the fusion is useless.
        "fusion.1": 43e-6,
        "pallas_call.1": ATTENDED.flops / (PALLAS_GPU_TFLOPS[0] * 1e12),
        "cublas-gemm.1": max(vocabulary, vocabulary_flops),
        "dot_product_attention_bwd.1": 5 * 2 * scores * 64 / (backward * 1e12),
        "cublas-lt-matmul.2": product,
        "copy.1": 2 * DIM * DIM * 2 / BANDWIDTH,
        "loop_add_fusion": 2e-6,
    }
    unknown = seconds.pop("pallas_call.2")
    assert unknown is None and estimate.not_estimated == {"Pallas kernels": 1}
    assert seconds == pytest.approx({name: time + LAUNCH for name, time in expected.items()})
    assert estimate.seconds == pytest.approx(sum(expected.values()) + len(expected) * LAUNCH)


@pytest.mark.parametrize("path", ["jvp(attend_to_keys)", "transpose(jvp(attend_to_keys))"])
def test_the_name_of_a_kernel_may_be_inside_its_transformations(path: str) -> None:
    text = TEXT.replace("jvp()/attend_to_keys", path)
    lines = estimated(text=text).instructions
    seconds = next(line.seconds for line in lines if line.name == "pallas_call.1")
    tflops = PALLAS_GPU_TFLOPS["transpose" in path]
    assert seconds == pytest.approx(ATTENDED.flops / (tflops * 1e12) + LAUNCH)


def test_kinds_and_methods(estimate: StepEstimate) -> None:
    kinds = {line.name: line.kind for line in estimate.instructions}
    assert kinds["cublas-lt-matmul.1"] == kinds["cublas-lt-matmul.2"] == "dense products"
    assert kinds["dot_product_attention_bwd.1"] == kinds["pallas_call.1"] == "fused attention"
    assert kinds["cublas-gemm.1"] == "vocabulary and loss"
    assert kinds["loop_add_fusion"] == "optimizer" and kinds["fusion.1"] == "elementwise"
    methods = {line.name: line.method for line in estimate.instructions}
    assert methods["cublas-gemm.1"] == "cuBLAS, by FLOPs at 68% of the peak or by bytes"
    attention = "cuDNN attention, by FLOPs at 34% of the peak (backward 27%) or by bytes"
    assert methods["dot_product_attention_bwd.1"] == attention
    assert methods["fusion.1"] == "XLA's cost model"
    assert sum(estimate.by_method.values()) == pytest.approx(estimate.seconds)
    assert f"{attention}: " in str(estimate)


def test_the_workspace_of_a_library_is_not_traffic(estimate: StepEstimate) -> None:
    by_name = {line.name: line for line in estimate.instructions}
    assert by_name["cublas-lt-matmul.1"].bytes == 2 * TOKENS * DIM * 2 + DIM * DIM * 2


def test_the_costs_of_a_layer_leave_out_the_vocabulary_and_the_optimizer(
    estimate: StepEstimate,
) -> None:
    layer = estimate.per_layer
    assert layer is not None
    other = ("cublas-gemm.1", "loop_add_fusion")
    lines = [line for line in estimate.instructions if line.name not in other]
    assert layer.kernels == len(lines) == 9
    assert layer.bytes == sum(line.bytes for line in lines)
    assert layer.seconds == pytest.approx(sum(line.seconds or 0 for line in lines))
    # The backward pass reads the product's result, under another name, and the log-sum-exp.
    assert layer.kept_bytes == TOKENS * DIM * 2 + 128 * 12 * 512 * 4
    assert replace(estimate, num_layers=None).per_layer is None
    assert "in 9 kernels, 0.097 GiB kept for the" in str(estimate)


def test_all_times_are_multiplied_by_the_calibration(estimate: StepEstimate) -> None:
    doubled = estimated(replace(TIMES, calibration=2.0))
    assert doubled.seconds == pytest.approx(2 * estimate.seconds)
    # The factor follows from the measured 607,000 tokens/s and the estimate without calibration.
    assert pytest.approx(1.1276, abs=1e-4) == CALIBRATION


def test_other_dtypes_have_different_peaks() -> None:
    def product(text: str) -> float:
        lines = estimated(text=text).instructions
        return next(line.seconds or 0 for line in lines if line.name == "cublas-lt-matmul.1")

    plain = product(TEXT)
    single = TEXT.replace("%x.1 = bf16[", "%x.1 = f32[")
    assert product(single) - LAUNCH == pytest.approx(2 * (plain - LAUNCH))
    eight = TEXT.replace("%x.1 = bf16[", "%x.1 = f8e4m3fn[")
    assert product(eight) - LAUNCH == pytest.approx((plain - LAUNCH) / 2)
    full = single.replace('["DEFAULT","DEFAULT"]', '["HIGHEST","HIGHEST"]')
    flops = 2 * TOKENS * DIM * DIM
    assert product(full) - LAUNCH == pytest.approx(flops / (PRODUCT_SHARE * 67e12))


def test_other_compilers_give_no_estimates() -> None:
    text = jax.jit(lambda x: x @ x).lower(jnp.ones((4, 4))).compile().as_text()
    assert not TIMES.apply_to(text)


def test_each_kind_of_device_has_its_own_estimates() -> None:
    assert isinstance(kernel_times("TPU v5 lite"), TpuTimes)
    hopper = kernel_times("NVIDIA H200 141GB HBM3e")
    assert isinstance(hopper, GpuTimes) and hopper.calibration == CALIBRATION
    assert kernel_times("cpu") is None and kernel_times("NVIDIA B200") is None
    figures = chip("NVIDIA H200")
    assert figures is not None and figures.memory_bandwidth == hopper.memory_bandwidth
    assert peak_flops("NVIDIA H200", "bfloat16") == hopper.peak


# This text was cut from libtpu 0.0.42's output for a Pallas kernel.
ON_TPU = """HloModule jit_f

ENTRY %main (x: f32[512,128]) -> f32[512,128] {
  %x = f32[512,128]{1,0:T(8,128)} parameter(0)
  %twice.1 = f32[512,128]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(f)/twice/pallas_call"}, backend_config={"custom_call_config":{"body":"TUzv",\
"cost_estimate":{"flops":"123456000","transcendentals":"789","bytes_accessed":"555000",\
"remote_bytes_transferred":"0"},"serialization_format":"1"}}
  ROOT %add.1 = f32[512,128]{1,0} add(%twice.1, %x), backend_config={"estimated_cycles":"300"}
}
"""


@pytest.mark.parametrize("flops", [123_456_000, 100])
def test_a_pallas_kernel_on_a_tpu_takes_as_long_as_its_flops_or_bytes(flops: int) -> None:
    times = TpuTimes(1.5e9, 197e12, 819e9)
    text = ON_TPU.replace("123456000", str(flops))
    estimate = estimate_step(
        text, 1, times, link_bandwidth=1, memory_bandwidth=819e9, least_seconds=None
    )
    assert estimate is not None and not estimate.not_estimated
    kernel, _ = estimate.instructions
    longest = max(flops / (PALLAS_TPU_SHARES[0] * 197e12), 555_000 / 819e9)
    assert kernel.seconds == pytest.approx(longest)
    method = "Pallas kernels, by FLOPs at 30% of the peak (backward 53%) or by bytes"
    assert kernel.method == method
    text = text.replace("jit(f)/twice", "jit(f)/transpose(jvp(twice))")
    backward = estimate_step(
        text, 1, times, link_bandwidth=1, memory_bandwidth=819e9, least_seconds=None
    )
    assert backward is not None
    longest = max(flops / (PALLAS_TPU_SHARES[1] * 197e12), 555_000 / 819e9)
    assert backward.instructions[0].seconds == pytest.approx(longest)


def test_tpu_shares_follow_from_the_bundles_of_the_attention_kernels() -> None:
    """Use the bundles listed in the docstring of `models/flash_tpu.py` (32 x 512 tokens, v5e)."""
    product = 2 * 32 * 12 * 512 * 512 * 64
    # A sixth of the kernel's programs compute the tables, which takes 790 bundles.
    for share, products, lines in zip(PALLAS_TPU_SHARES, (2, 5), (4046, 5513), strict=True):
        seconds = 192 * (lines - 790 * 5 / 6) / 1.5e9
        assert products * product / seconds / 197e12 == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize(
    "path", ["jit(f)/jvp()/norm", "jit(f)/jvp(norm)", "jit(f)/transpose(jvp(norm))", "jit(f)/norm"]
)
def test_kernels_are_found_by_name_inside_transformations(path: str) -> None:
    text = (
        f'%x), custom_call_target="__gpu$xla.gpu.triton", metadata={{op_name="{path}/pallas_call"}}'
    )
    line = Instruction("pallas_call.3", "bf16[8]", "custom-call", text)
    assert pallas_work(line, {"norm": Work(0, 32)}) == Work(0, 32)
    assert pallas_work(line, {"other": Work(0, 32)}) is None


def test_small_dtypes_have_a_size() -> None:
    shape = "(f8e4m3fn[4,8]{1,0}, f8e5m2[2]{0}, s8[16]{0})"
    assert [array.bytes for array in arrays(shape)] == [32, 2, 16]
    assert not re.search(r"f8", str(arrays("bf16[4]")[0]))
