"""List the memory, bandwidth and peak FLOP/s of chips, and compute lower bounds on step time."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Each row has a pattern for JAX's `device_kind`, a dict from dtype to the dense peak in TFLOP/s,
# and the source of the figures. Starting with Hopper and Ada, NVIDIA publishes figures with 2:4
# sparsity, which are twice the dense peak. The first match is used, so specific boards are listed
# before their families.
_DENSE_TFLOPS: tuple[tuple[str, dict[str, float], str], ...] = (
    (r"\bA100\b", {"bfloat16": 312, "float16": 312}, "NVIDIA A100 datasheet, 2021"),
    (r"\bH100 NVL\b", {"bfloat16": 835.5, "float16": 835.5}, "NVIDIA H100 datasheet, 2024"),
    (r"\bH100 PCIe\b", {"bfloat16": 756.5, "float16": 756.5}, "NVIDIA H100 datasheet, 2022"),
    (r"\bH100\b", {"bfloat16": 989.5, "float16": 989.5}, "NVIDIA H100 datasheet, 2024 (SXM)"),
    (r"\bH200 NVL\b", {"bfloat16": 835.5, "float16": 835.5}, "NVIDIA H200 datasheet, 2024"),
    (r"\bH200\b", {"bfloat16": 989.5, "float16": 989.5}, "NVIDIA H200 datasheet, 2024 (SXM)"),
    (r"\bB200\b", {"bfloat16": 2250, "float16": 2250}, "NVIDIA HGX B200 specifications, 2024"),
    (r"\bL4\b", {"bfloat16": 121, "float16": 121}, "NVIDIA L4 datasheet, 2023"),
    (r"\bT4\b", {"float16": 65}, "NVIDIA T4 datasheet, 2019 (it has no bfloat16 units)"),
    (
        r"\bRTX 4090$",  # The laptop chip and the 4090 D do not match: they are slower.
        {"bfloat16": 165.2, "float16": 165.2},
        "NVIDIA Ada GPU architecture white paper, appendix A (float32 accumulation)",
    ),
    (r"\bTPU v4$", {"bfloat16": 275}, "Google Cloud documentation, TPU v4"),
    (r"\bTPU (v5 lite|v5e)\b", {"bfloat16": 197}, "Google Cloud documentation, TPU v5e"),
    (r"\bTPU (v5p|v5)\b", {"bfloat16": 459}, "Google Cloud documentation, TPU v5p"),
    (r"\bTPU (v6 lite|v6e)\b", {"bfloat16": 918}, "Google Cloud documentation, TPU v6e"),
)


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Return a device's peak FLOP/s for dense matmuls, or None if it is unknown.

    Args:
      device_kind: the value of `jax.Device.device_kind`, such as "NVIDIA H200" or "TPU v5 lite".
      dtype: the matmul dtype, such as "bfloat16". For float32, the result is None, since the peak
        depends on the matmul precision.
    """
    if re.search(r"\bMIG\b", device_kind):
        # The device is a part of a chip, and its name does not reveal its share of the peak.
        return None
    for pattern, by_type, _ in _DENSE_TFLOPS:
        if re.search(pattern, device_kind):
            return by_type[dtype] * 1e12 if dtype in by_type else None
    return None


GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """The specifications of a chip that JAX treats as a single device.

    Attributes:
      memory_bytes: HBM size in bytes.
      memory_bandwidth: HBM bandwidth in bytes/s.
      link_bandwidth: total outgoing bandwidth of the links to other chips, in bytes/s.
      multiply_adds: the number of bfloat16 multiply-adds per cycle in all of the chip's matrix
        units; None for GPUs, because only the TPU compiler estimates cycles.
      source: where these figures were published.
    """

    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    multiply_adds: int | None
    source: str


# Patterns for JAX's `device_kind`, with the matching chips.
#
# Bandwidth and memory: Google publishes the link bandwidth as the sum of both directions (400 GB/s
# for v5e), so the outgoing bandwidth is half of that. Out-of-memory errors from libtpu 0.0.42 show
# that a program can use slightly less memory than the chip has.
#
# Matrix units: their number and size are in Google Cloud's documentation. Each core of v4, v5e and
# v5p has four 128 x 128 units, and a v4 or v5p chip has two cores. A v6e chip has two 256 x 256
# units, but libtpu counts cycles as if each of them finished two products per cycle, at a clock
# rate of 1.75 GHz. With only one product per cycle, the published peak would require 3.5 GHz, which
# contradicts libtpu's counts: it estimates 301,616 cycles for multiplying two 4096 x 4096 matrices,
# and at 3.5 GHz, this multiplication would exceed the published peak.
_CHIPS: tuple[tuple[str, Chip], ...] = (
    (
        r"\bTPU v4$",
        Chip(
            32 * GIB,
            1200e9,
            300e9,
            2 * 4 * 128**2,
            "Google Cloud documentation, TPU v4; links: Jouppi et al. 2023, table 4",
        ),
    ),
    (
        r"\bTPU (v5 lite|v5e)\b",
        Chip(16 * GIB, 819e9, 200e9, 4 * 128**2, "Google Cloud documentation, TPU v5e"),
    ),
    (
        r"\bTPU (v5p|v5)\b",
        Chip(95 * GIB, 2765e9, 600e9, 2 * 4 * 128**2, "Google Cloud documentation, TPU v5p"),
    ),
    (
        r"\bTPU (v6 lite|v6e)\b",
        Chip(32 * GIB, 1638e9, 400e9, 4 * 256**2, "Google Cloud documentation, TPU v6e"),
    ),
    # The GPUs are SXM boards, which are connected by NVLink. The memory sizes are the ones that the
    # driver reports, as listed in XLA's descriptions in `gpu_targets`.
    (
        r"\bH100 80GB HBM3$",
        Chip(84_942_979_072, 3352e9, 450e9, None, "NVIDIA H100 datasheet, 2024 (SXM)"),
    ),
    (
        r"\bH200( 141GB HBM3e)?$",
        Chip(151_397_597_184, 4800e9, 450e9, None, "NVIDIA H200 datasheet, 2024 (SXM)"),
    ),
)


def chip(device_kind: str) -> Chip | None:
    """Return the chip for a `jax.Device.device_kind`, or None if it is unknown."""
    return next((chip for pattern, chip in _CHIPS if re.search(pattern, device_kind)), None)


def clock_rate(device_kind: str) -> float | None:
    """Return a TPU's clock rate in Hz, or None for other devices and for unknown TPUs.

    The rate is derived from the peak, which the chip reaches if its matrix units are never idle:
    1.05 GHz for v4 (also given by Jouppi et al. 2023, table 4), 1.50 GHz for v5e, and 1.75 GHz for
    v5p and v6e. Published peaks are rounded, so the result is rounded to a multiple of 50 MHz.
    """
    figures, peak = chip(device_kind), peak_flops(device_kind, "bfloat16")
    if figures is None or peak is None:
        return None
    if figures.multiply_adds is None:
        return None
    return round(peak / (2 * figures.multiply_adds) / 50e6) * 50e6


@dataclass(frozen=True)
class Roofline:
    """Lower bounds on step time, one for each of a chip's resources (Williams et al. 2009).

    Attributes:
      compute: the time for matmuls at peak FLOP/s, in seconds.
      memory: the time for transfers to and from HBM at peak bandwidth, in seconds.
      links: the time for transfers to other chips at peak bandwidth, in seconds.
    """

    compute: float
    memory: float
    links: float

    @property
    def seconds(self) -> float:
        """The minimum step time in seconds, reached if all resources are fully used in parallel."""
        return max(self.compute, self.memory, self.links)

    @property
    def bound(self) -> str:
        """The name of the limiting resource."""
        names = {"compute": self.compute, "memory": self.memory, "links": self.links}
        return max(names, key=names.__getitem__)


def roofline(
    chip: Chip, peak_flops: float, *, flops: float, memory_bytes: float, sent_bytes: float
) -> Roofline:
    """Return a lower bound on step time for each of a chip's resources.

    Args:
      chip: the chip.
      peak_flops: the chip's peak FLOP/s.
      flops: the number of floating-point operations in the step.
      memory_bytes: the number of bytes read from and written to HBM.
      sent_bytes: the number of bytes sent to other chips.
    """
    return Roofline(
        compute=flops / peak_flops,
        memory=memory_bytes / chip.memory_bandwidth,
        links=sent_bytes / chip.link_bandwidth,
    )
