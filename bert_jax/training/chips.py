"""Memory and bandwidth of known chips, and the least time that a step can take on them."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
