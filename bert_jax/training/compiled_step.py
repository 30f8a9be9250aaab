"""Hold the statistics of a compiled train step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class CompiledStep:
    """A train step compiled for one mesh; all numbers are per device.

    Attributes:
      arguments: the size of the arguments in bytes.
      outputs: the size in bytes of the outputs that do not reuse an argument's memory.
      temporaries: the size of the temporary buffers in bytes.
      flops: the FLOPs per step as counted by the compiler, which counts a loop body only once; None
        if the compiler does not count them.
      bytes_accessed: the bytes read and written per step, counted in the same way.
      text: the partitioned program as HLO.
      pallas: the FLOPs and the bytes of one call of each Pallas kernel whose cost is known, keyed
        by the kernel's name. The bytes are 0 if only the FLOPs are known.
      cached: whether an earlier call compiled the step (see `compiled_cache`).
    """

    arguments: int
    outputs: int
    temporaries: int
    flops: float | None
    bytes_accessed: float | None
    text: str = field(repr=False)
    pallas: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cached: bool = False

    @property
    def memory(self) -> int:
        """The memory that a device needs, in bytes."""
        return self.arguments + self.outputs + self.temporaries

    @property
    def least_traffic(self) -> int:
        """A lower bound on the number of bytes that a step reads and writes.

        The state and the batch are read, the state is written, and the temporaries that exist at
        the peak are both written and read.
        """
        return 2 * self.arguments + self.outputs + 2 * self.temporaries
