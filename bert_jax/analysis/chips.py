"""Known chips: memory, bandwidth, peak FLOP/s, and the least time a step can take."""

from __future__ import annotations

import re
from dataclasses import dataclass

# One line a chip: what JAX's `device_kind` looks like, the dense peak in TFLOP/s by type, and where
# the vendor says so. From Hopper and Ada on NVIDIA prints figures with 2:4 sparsity; half of them
# is the dense peak. The first line that matches wins, so a board comes before its family.
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
        r"\bRTX 4090$",  # not the laptop chip nor the 4090 D, which are slower
        {"bfloat16": 165.2, "float16": 165.2},
        "NVIDIA Ada GPU architecture white paper, appendix A (float32 accumulation)",
    ),
    (r"\bTPU v4$", {"bfloat16": 275}, "Google Cloud documentation, TPU v4"),
    (r"\bTPU (v5 lite|v5e)\b", {"bfloat16": 197}, "Google Cloud documentation, TPU v5e"),
    (r"\bTPU (v5p|v5)\b", {"bfloat16": 459}, "Google Cloud documentation, TPU v5p"),
    (r"\bTPU (v6 lite|v6e)\b", {"bfloat16": 918}, "Google Cloud documentation, TPU v6e"),
)


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Return one device's dense matrix peak in FLOP/s, or None where no vendor figure is known.

    Args:
      device_kind: what `jax.Device.device_kind` says, such as "NVIDIA H200" or "TPU v5 lite".
      dtype: the name of the type products are computed in, such as "bfloat16". float32 has no
        single peak (it depends on the matrix-product precision chosen) and gives None.
    """
    if re.search(r"\bMIG\b", device_kind):
        return None  # a slice of a chip, whose share of the peak its name does not tell
    for pattern, by_type, _ in _DENSE_TFLOPS:
        if re.search(pattern, device_kind):
            return by_type[dtype] * 1e12 if dtype in by_type else None
    return None


GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """What a vendor says of a chip; JAX shows each of these chips as one device.

    memory_bytes: HBM that a program may use. memory_bandwidth: of HBM, bytes/s.
    link_bandwidth: bytes/s that leave a chip over all its links to other chips together.
    """

    memory_bytes: int
    memory_bandwidth: float
    link_bandwidth: float
    source: str


# What JAX's `device_kind` looks like -> the chip. Google states links as both directions together
# (400 GB/s for v5e); half of that leaves. The memory that libtpu 0.0.42 lets a program have is what
# its compiler says when a program needs more, a little below the chip's.
_CHIPS: tuple[tuple[str, Chip], ...] = (
    (
        r"\bTPU v4$",
        Chip(
            32 * GIB,
            1200e9,
            300e9,
            "Google Cloud documentation, TPU v4; links: Jouppi et al. 2023, table 4",
        ),
    ),
    (
        r"\bTPU (v5 lite|v5e)\b",
        Chip(16 * GIB, 819e9, 200e9, "Google Cloud documentation, TPU v5e"),
    ),
    (
        r"\bTPU (v5p|v5)\b",
        Chip(95 * GIB, 2765e9, 600e9, "Google Cloud documentation, TPU v5p"),
    ),
    (
        r"\bTPU (v6 lite|v6e)\b",
        Chip(32 * GIB, 1638e9, 400e9, "Google Cloud documentation, TPU v6e"),
    ),
)


def chip(device_kind: str) -> Chip | None:
    """The chip that `jax.Device.device_kind` names, or None where no vendor's figures are known."""
    return next((known for pattern, known in _CHIPS if re.search(pattern, device_kind)), None)


@dataclass(frozen=True)
class Roofline:
    """The least seconds a step needs of each resource of a chip (Williams et al. 2009).

    compute: its products at peak. memory: what must pass through HBM. links: what must leave.
    """

    compute: float
    memory: float
    links: float

    @property
    def seconds(self) -> float:
        """The least seconds of a step, if all three were used at once and without pause."""
        return max(self.compute, self.memory, self.links)

    @property
    def bound(self) -> str:
        """The resource that decides."""
        names = {"compute": self.compute, "memory": self.memory, "links": self.links}
        return max(names, key=names.__getitem__)


def roofline(
    chip: Chip, peak_flops: float, *, flops: float, memory_bytes: float, sent_bytes: float
) -> Roofline:
    """The bound for one chip that does `flops`, moves `memory_bytes` and sends `sent_bytes`."""
    return Roofline(
        compute=flops / peak_flops,
        memory=memory_bytes / chip.memory_bandwidth,
        links=sent_bytes / chip.link_bandwidth,
    )
