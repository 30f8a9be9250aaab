"""Sum the estimated time and memory traffic of the kernels of a compiled step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bert_jax.analysis.hlo import array_bytes
from bert_jax.analysis.instruction_kinds import DMA_COPIES, SCALARS

_MIB, _GIB = 2**20, 2**30


@dataclass(frozen=True)
class InstructionEstimate:
    """The expected cost of one instruction; time and bytes are sums over all of its runs in a step.

    Attributes:
      name: the name of the instruction in the compiled program.
      kind: the kind of work, one of `instruction_kinds.KINDS`, or a plural noun such as "sorts" for
        an instruction without an estimate.
      shape: the shape of the result, or of all results in parentheses, such as "bf16[32,512,768]".
      stored: the arrays of the result that are in the device's main memory.
      seconds: the expected time; None if there is no estimate.
      method: how the time was estimated; empty without an estimate.
      bytes: the number of bytes read from and written to main memory.
      runs: the number of runs in a step.
      source: the source line that the instruction comes from; empty if unknown. If different parts
        of the step share the function with this line, the line that calls the function is added.
      in_layer: whether the instruction comes from a layer of an encoder.
    """

    name: str
    kind: str
    shape: str
    stored: Sequence[str]
    seconds: float | None
    method: str
    bytes: int
    runs: int
    source: str
    in_layer: bool


@dataclass(frozen=True)
class Buffer:
    """Arrays of the same shape that come from the same source line.

    Attributes:
      shape: the shape, such as "bf16[32,12,512,512]".
      bytes: the size of one array in bytes.
      count: the number of arrays.
      source: the source line, as in `InstructionEstimate`.
    """

    shape: str
    bytes: int
    count: int
    source: str


@dataclass(frozen=True)
class LayerCosts:
    """The mean cost of a layer in one step, without the optimizer's update of its parameters.

    Attributes:
      seconds: the estimated time of the forward and the backward pass.
      bytes: the number of bytes read from and written to main memory.
      kernels: the number of kernels.
      kept_bytes: the size of the arrays in main memory that the backward pass needs from the
        forward pass.
    """

    seconds: float
    bytes: float
    kernels: float
    kept_bytes: float


@dataclass(frozen=True)
class StepEstimate:
    """The estimate for a compiled step on one device; `str()` returns a table.

    Attributes:
      instructions: the instructions that the device runs, in the order of the program.
      notes: notes on the estimates, one per line.
      link_seconds: the time to send the data of all collectives over the device's links. Compilers
        do not estimate collectives.
      least_seconds: the time that the model FLOPs would take at the device's peak; None if the peak
        is unknown.
      memory_bandwidth: the bandwidth of the device's main memory in bytes/s.
      num_layers: the number of layers of the only encoder in the step; None if there are several.
      kept_bytes: the size of the arrays that all layers keep for the backward pass.
    """

    instructions: Sequence[InstructionEstimate] = field(repr=False)
    notes: Sequence[str]
    link_seconds: float
    least_seconds: float | None
    memory_bandwidth: float
    num_layers: int | None
    kept_bytes: int

    @property
    def seconds(self) -> float:
        """The expected time of a step in seconds."""
        return sum(self.by_kind.values())

    @property
    def utilization(self) -> float | None:
        """The model FLOP/s as a fraction of the device's peak; None if the peak is unknown."""
        return None if self.least_seconds is None else self.least_seconds / self.seconds

    @property
    def by_kind(self) -> Mapping[str, float]:
        """The expected seconds for each kind of work, starting with the longest."""
        seconds: Counter[str] = Counter()
        for line in self.instructions:
            if line.seconds is not None:
                seconds[line.kind] += line.seconds  # type: ignore[assignment]
        if self.link_seconds:
            seconds["collectives"] += self.link_seconds  # type: ignore[assignment]
        return dict(seconds.most_common())

    @property
    def by_method(self) -> Mapping[str, float]:
        """The expected seconds for each estimation method, starting with the longest."""
        seconds: Counter[str] = Counter()
        for line in self.instructions:
            if line.seconds is not None:
                seconds[line.method] += line.seconds  # type: ignore[assignment]
        if self.link_seconds:
            method = "collectives, by sending their data at the full bandwidth of the links"
            seconds[method] += self.link_seconds  # type: ignore[assignment]
        return dict(seconds.most_common())

    @property
    def per_layer(self) -> LayerCosts | None:
        """The mean cost of a layer; None if the step has several encoders."""
        if self.num_layers is None:
            return None
        lines = [line for line in self.instructions if line.in_layer]
        kernels = sum(line.runs for line in lines if line.kind not in (DMA_COPIES, SCALARS))
        return LayerCosts(
            seconds=sum(line.seconds or 0.0 for line in lines) / self.num_layers,
            bytes=sum(line.bytes for line in lines) / self.num_layers,
            kernels=kernels / self.num_layers,
            kept_bytes=self.kept_bytes / self.num_layers,
        )

    @property
    def not_estimated(self) -> Mapping[str, int]:
        """The number of times that instructions without an estimate run in a step, by kind."""
        runs: Counter[str] = Counter()
        for line in self.instructions:
            if line.seconds is None and line.kind != "collectives":
                runs[line.kind] += line.runs
        return dict(runs.most_common())

    @property
    def least_unestimated_seconds(self) -> float:
        """The seconds it takes to move the operands and results of kernels without an estimate."""
        size = sum(
            line.bytes
            for line in self.instructions
            if line.seconds is None and line.kind not in ("collectives", DMA_COPIES, SCALARS)
        )
        return size / self.memory_bandwidth

    @property
    def bytes(self) -> int:
        """The number of bytes read from and written to main memory in a step."""
        return sum(line.bytes for line in self.instructions)

    @property
    def kernels(self) -> int:
        """The number of instruction runs, not counting DMA copies and scalar operations."""
        return sum(
            line.runs for line in self.instructions if line.kind not in (DMA_COPIES, SCALARS)
        )

    def largest_buffers(self, count: int = 3) -> list[Buffer]:
        """Return the largest arrays of at least 1 MiB that the step writes to main memory.

        The new parameters and optimizer state are left out.
        """
        counts = Counter(
            (shape, line.source)
            for line in self.instructions
            for shape in line.stored
            if line.kind not in ("optimizer", DMA_COPIES)
        )
        found = [
            Buffer(shape, array_bytes(shape), number, source)
            for (shape, source), number in counts.items()
        ]
        large = [buffer for buffer in found if buffer.bytes >= _MIB]
        return sorted(large, key=lambda buffer: -buffer.bytes)[:count]

    def most_expensive(self, count: int = 10) -> list[InstructionEstimate]:
        """Return the instructions with the longest expected time."""
        estimated = [line for line in self.instructions if line.seconds is not None]
        return sorted(estimated, key=lambda line: -(line.seconds or 0.0))[:count]

    def __str__(self) -> str:
        return "\n".join(_table(self))


def _table(estimate: StepEstimate) -> list[str]:
    """Format the time of each kind of work, the memory traffic and the largest buffers."""
    total, utilization = estimate.seconds, estimate.utilization
    share = "unknown without the chip's peak" if utilization is None else f"{utilization:.1%}"
    lines = [
        f"{'estimated time':20s}{total * 1e3:.2f} ms per step, MFU {share}",
        *(
            f"  {kind:24s}{seconds * 1e3:10.2f} ms{seconds / total:8.1%}"
            for kind, seconds in estimate.by_kind.items()
        ),
    ]
    label = "estimated from"
    for method, seconds in estimate.by_method.items():
        lines.append(f"{label:20s}{method}: {seconds * 1e3:.2f} ms")
        label = ""
    lines += [f"{'':20s}{note}" for note in estimate.notes]
    missing = ", ".join(f"{kind} {count:,}" for kind, count in estimate.not_estimated.items())
    least = f"; their data takes at least {estimate.least_unestimated_seconds * 1e3:.2f} ms"
    lines += [
        f"{'not estimated':20s}{missing + least if missing else 'nothing'}",
        f"{'HBM traffic':20s}{estimate.bytes / _GIB:.2f} GiB per step, in {estimate.kernels:,} "
        "kernels",
        *_layer_lines(estimate.per_layer),
    ]
    buffers = estimate.largest_buffers()
    if not buffers:
        lines.append(f"{'largest buffers':20s}none of 1 MiB or more in HBM, besides the state")
    label = "largest buffers"
    for buffer in buffers:
        lines.append(
            f"{label:20s}{buffer.count} x {buffer.shape}, {buffer.bytes / _MIB:,.1f} MiB"
            + f": {buffer.source}" * bool(buffer.source)
        )
        label = ""
    return lines


def _layer_lines(layer: LayerCosts | None) -> list[str]:
    if layer is None:
        return []
    return [
        f"{'per layer':20s}{layer.seconds * 1e3:.2f} ms, {layer.bytes / _GIB:.2f} GiB of HBM "
        f"traffic in {layer.kernels:,.0f} kernels, {layer.kept_bytes / _GIB:.3f} GiB kept for the",
        f"{'':20s}backward pass (means, by source line, without the optimizer)",
    ]


def explain(estimate: StepEstimate, count: int = 10) -> list[str]:
    """Format the most expensive instructions with their source lines."""
    lines = ["most expensive instructions, with their source lines and the callers in the model"]
    for line in estimate.most_expensive(count):
        assert line.seconds is not None
        times = f" in {line.runs:,} runs" if line.runs > 1 else ""
        origin = f": {line.source}" if line.source else ""
        lines += [
            f"  {line.seconds * 1e3:8.3f} ms{times}  {line.kind}: {line.name} {line.shape}",
            f"  {'':13s}{line.bytes / _MIB:,.1f} MiB of HBM{origin}",
        ]
    return lines
