"""Estimate the time of each kernel of a compiled step, for TPUs and for GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bert_jax.analysis.chips import chip, clock_rate, peak_flops
from bert_jax.analysis.custom_calls import (
    BACKWARD_PRODUCTS,
    FORWARD_PRODUCTS,
    Work,
    attention_work,
    is_backward,
    is_library_attention,
    is_library_product,
    is_pallas,
    pallas_work,
    product_work,
)
from bert_jax.analysis.hlo import Instruction, arrays

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_COST = re.compile(r'"exec_time_us":([\d.e+-]+),[^{}]*"name":"([\w-]*)"')

# The share of the peak that cuBLAS reaches. On an H200 (jax 0.11.2, 2026-11), it reached 620 to 725
# TFLOP/s in bfloat16 with the shapes of BERT's matrices, which is 63 to 73% of the peak.
PRODUCT_SHARE = 0.68
# The TFLOP/s of fused attention in bfloat16 on an H100 (SXM), with heads of 64 dims and without a
# causal mask, in the forward and the backward pass. The numbers for cuDNN, keyed by the number of
# tokens, are from Shah et al. 2024 ("FlashAttention-3"), figures 5 and 6. Pallas kernels are
# assumed to be as fast as FlashAttention-2 in the same figures, because they work like it: every
# warp alternates between loading, multiplying and computing the softmax.
CUDNN_TFLOPS: Mapping[int, tuple[float, float]] = {
    512: (335, 266),
    1024: (373, 348),
    2048: (395, 395),
    4096: (408, 417),
    8192: (412, 432),
}
PALLAS_GPU_TFLOPS = (282, 198)
_H100_TFLOPS = 989.5
# The time it takes to start a kernel, as in XLA's cost model (kKernelLaunchOverhead).
_LAUNCH_SECONDS = 1e-6
# The peaks relative to bfloat16, from NVIDIA's H100 and H200 datasheets.
_PEAK_FACTORS = {"f8": 2.0, "f32": 0.5}
_FULL_FLOAT32 = 67e12
# The shares of the peak that this package's attention kernels (models/flash_tpu.py) can reach on
# v5e. The forward pass computes 25.8 GFLOP in 192 programs, each with 3,388 instruction bundles.
# The backward pass computes 64.4 GFLOP in 192 programs, each with 4,855 bundles. Since a bundle
# takes at least one cycle, the shares are upper bounds. Other Pallas kernels and chips are assumed
# to reach the same shares.
PALLAS_TPU_SHARES = (0.30, 0.53)


# The ratio of a measured to an estimated step time, by which all estimates for GPUs are multiplied.
# It corrects for the idle time between kernels, and for the assumption of XLA's cost model that
# fusions reach the full bandwidth.
#
# Measured: 607,000 tokens/s on an H200, with a prototype of this program and jax 0.11.2 in 2026-11.
# The model was BERT-base in bfloat16 with cuDNN's attention, attention dropout 0 and hidden dropout
# 0.1, and a step had 128 x 512 tokens, with one document per row. Estimated: 95.75 ms without the
# factor, at commit 33dec6c6, which had no Pallas kernels for norms.
#
# The step of a small ALBERT was also measured, on an H100 with jax 0.11.2 (experiments/gpu, phase
# 2), but this measurement did not influence the factor.
CALIBRATION = 128 * 512 / 607_000 / 95.75e-3


@dataclass(frozen=True)
class KernelTime:
    """The estimated time of one run of a kernel.

    Attributes:
      seconds: the time.
      method: how the time was estimated.
    """

    seconds: float
    method: str


class KernelTimes(Protocol):
    """A method of estimating the time of kernels on one kind of device."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the estimates, one per line."""

    def apply_to(self, hlo: str) -> bool:
        """Return whether a program's text contains the numbers that an estimate needs."""

    def __call__(
        self, line: Instruction, results: Mapping[str, str], moved: int
    ) -> KernelTime | None:
        """Estimate one run of an instruction; None if nothing is known about its time.

        Args:
          line: the instruction.
          results: the shape of each result in the instruction's computation.
          moved: the number of bytes of main memory that the instruction reads and writes.
        """


def kernel_times(device_kind: str, pallas: Mapping[str, Work] | None = None) -> KernelTimes | None:
    """Return the method for estimating kernel times on a device; None for unknown devices.

    Args:
      device_kind: the value of `jax.Device.device_kind`.
      pallas: the work of the Pallas kernels, keyed by name (see `pallas_work`).
    """
    figures, peak = chip(device_kind), peak_flops(device_kind, "bfloat16")
    if figures is None or peak is None:
        return None
    clock = clock_rate(device_kind)
    if clock is not None:
        return TpuTimes(clock, peak, figures.memory_bandwidth, pallas or {})
    return GpuTimes(peak, figures.memory_bandwidth, pallas or {})


@dataclass(frozen=True)
class TpuTimes:
    """Estimates for TPUs, from the compiler's cycle counts and the work of Pallas kernels.

    Attributes:
      clock_rate: the clock rate in Hz.
      peak: the peak in bfloat16 in FLOP/s.
      memory_bandwidth: the bandwidth of main memory in bytes/s.
      pallas: the work of the Pallas kernels, keyed by name (see `pallas_work`).
    """

    clock_rate: float
    peak: float
    memory_bandwidth: float
    pallas: Mapping[str, Work] = field(default_factory=dict)

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the estimates, one per line."""
        return ["one instruction after another; never compared with a measured step"]

    def apply_to(self, hlo: str) -> bool:
        """Return whether the text contains cycle counts."""
        return _CYCLES.search(hlo) is not None

    def __call__(
        self, line: Instruction, results: Mapping[str, str], moved: int
    ) -> KernelTime | None:
        """Estimate one run of an instruction; see `KernelTimes`."""
        cycles = _CYCLES.search(line.rest)
        if cycles:
            method = f"the compiler's cycle counts at {self.clock_rate / 1e9:.2f} GHz"
            return KernelTime(int(cycles[1]) / self.clock_rate, method)
        work = pallas_work(line, self.pallas) if is_pallas(line) else None
        if work is None:
            return None
        forward, backward = PALLAS_TPU_SHARES
        share = backward if is_backward(line) else forward
        seconds = _longer(work, moved, share * self.peak, self.memory_bandwidth)
        shares = f"{forward:.0%} of the peak (backward {backward:.0%})"
        return KernelTime(seconds, f"Pallas kernels, by FLOPs at {shares} or by bytes")


@dataclass(frozen=True)
class GpuTimes:
    """Estimates for GPUs: fusions by XLA's cost model, other kernels by their FLOPs and bytes.

    Attributes:
      peak: the peak in bfloat16 in FLOP/s.
      memory_bandwidth: the bandwidth of main memory in bytes/s.
      pallas: the work of the Pallas kernels, keyed by name (see `pallas_work`).
      calibration: the factor by which all times are multiplied. With the default, the estimate for
        one particular step equals the time that was measured for it.
    """

    peak: float
    memory_bandwidth: float
    pallas: Mapping[str, Work] = field(default_factory=dict)
    calibration: float = CALIBRATION

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the estimates, one per line."""
        return [
            f"all times x {self.calibration:.2f}, with which BERT-base with cuDNN attention (128 x "
            "512 tokens, H200) takes the",
            "measured 108 ms. A small ALBERT on an H100 then takes 20.0 ms (measured: 19.9 ms)",
        ]

    def apply_to(self, hlo: str) -> bool:
        """Return whether the text contains the results of XLA's cost model."""
        return '"reification_cost"' in hlo

    def __call__(
        self, line: Instruction, results: Mapping[str, str], moved: int
    ) -> KernelTime | None:
        """Estimate one run of an instruction; see `KernelTimes`."""
        found = self._without_launch(line, results, moved)
        if found is None:
            return None
        return KernelTime(self.calibration * (found.seconds + _LAUNCH_SECONDS), found.method)

    def _without_launch(
        self, line: Instruction, results: Mapping[str, str], moved: int
    ) -> KernelTime | None:
        if is_library_product(line):
            peak = PRODUCT_SHARE * self._peak_of(line, results)
            seconds = _longer(product_work(line, results), moved, peak, self.memory_bandwidth)
            method = f"cuBLAS, by FLOPs at {PRODUCT_SHARE:.0%} of the peak or by bytes"
            return KernelTime(seconds, method)
        if is_library_attention(line):
            work, length = attention_work(line, results)
            return self._fused(line, work, moved, _cudnn_tflops(length), "cuDNN attention")
        if is_pallas(line):
            stated = pallas_work(line, self.pallas)
            if stated is None:
                return None
            return self._fused(line, stated, moved, PALLAS_GPU_TFLOPS, "Pallas kernels")
        # XLA writes two estimates for a fusion that it compiles with Triton. The first one, which
        # has no name, assumes that each element of a result recomputes the sums it needs.
        costs = {name: float(time) for time, name in _COST.findall(line.rest)}
        microseconds = costs.get("indexing-cost-model", costs.get(""))
        if microseconds is not None:
            return KernelTime(microseconds / 1e6, "XLA's cost model")
        if line.opcode == "custom-call":
            return None
        return KernelTime(moved / self.memory_bandwidth, "bytes at the full bandwidth")

    def _fused(
        self,
        line: Instruction,
        work: Work,
        moved: int,
        published: tuple[float, float],
        name: str,
    ) -> KernelTime:
        """Estimate a run of fused attention from the published TFLOP/s of the H100 in each pass."""
        forward, backward = (tflops / _H100_TFLOPS for tflops in published)
        share = backward if is_backward(line) else forward
        seconds = _longer(work, moved, share * self.peak, self.memory_bandwidth)
        shares = f"{forward:.0%} of the peak (backward {backward:.0%})"
        return KernelTime(seconds, f"{name}, by FLOPs at {shares} or by bytes")

    def _peak_of(self, line: Instruction, results: Mapping[str, str]) -> float:
        """Return the peak for the operands' dtype; float32 is multiplied as TF32 by default."""
        dtype = arrays(results[line.operands[0]])[0].dtype
        if dtype == "f32" and '"HIGHEST"' in line.rest:
            return min(self.peak, _FULL_FLOAT32)
        return self.peak * _PEAK_FACTORS.get(dtype[:2] if dtype.startswith("f8") else dtype, 1.0)


def cudnn_seconds(device_kind: str, size: int, length: int) -> float:
    """Estimate both passes of cuDNN's attention in one layer on an H100 or H200.

    Args:
      device_kind: the value of `jax.Device.device_kind`.
      size: the number of pairs of tokens in all rows, times the hidden dim.
      length: the number of tokens per row.
    """
    peak = peak_flops(device_kind, "bfloat16")
    assert peak is not None, f"the peak of {device_kind} must be known"
    forward, backward = (tflops / _H100_TFLOPS * peak for tflops in _cudnn_tflops(length))
    return CALIBRATION * 2 * size * (FORWARD_PRODUCTS / forward + BACKWARD_PRODUCTS / backward)


def _cudnn_tflops(length: int) -> tuple[float, float]:
    """Return the TFLOP/s in each pass for the longest published length up to `length`."""
    return CUDNN_TFLOPS[max(n for n in CUDNN_TFLOPS if n <= max(length, min(CUDNN_TFLOPS)))]


def _longer(work: Work, moved: int, flops_per_second: float, bandwidth: float) -> float:
    """Return the time for a kernel's FLOPs or for its bytes, whichever is longer."""
    size = moved if work.bytes is None else max(moved, work.bytes)
    return max(work.flops / flops_per_second, size / bandwidth)
