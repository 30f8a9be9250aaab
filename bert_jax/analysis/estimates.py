"""Sum the time that the TPU compiler expects each instruction of a compiled step to take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bert_jax.analysis.collectives import collectives
from bert_jax.analysis.hlo import (
    Computations,
    array_bytes,
    arrays,
    count_runs,
    parse_computations,
)
from bert_jax.analysis.instruction_kinds import (
    DMA_COPIES,
    SCALARS,
    caller,
    contents,
    is_dma,
    is_free,
    kind_of,
    main_part,
    unestimated_kind,
)
from bert_jax.analysis.memory_traffic import copied_bytes, main_memory_bytes
from bert_jax.analysis.source_lines import Frame, StackFrames

_MIB = 2**20
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclass(frozen=True)
class InstructionEstimate:
    """The expected cost of one instruction; time and bytes are sums over all of its runs in a step.

    Attributes:
      name: the name of the instruction in the compiled program.
      kind: the kind of work, one of `instruction_kinds.KINDS`, or a plural noun such as "sorts" for
        an instruction without an estimate.
      shape: the shape of the result, or of all results in parentheses, such as "bf16[32,512,768]".
      stored: the arrays of the result that are in the device's main memory.
      seconds: the expected time; None if the compiler gives no estimate.
      bytes: the number of bytes read from and written to main memory.
      runs: the number of runs in a step.
      source: the source line that the instruction comes from and, if that is in a function that
        different parts of the step share, the line that called the function; empty if unknown.
    """

    name: str
    kind: str
    shape: str
    stored: Sequence[str]
    seconds: float | None
    bytes: int
    runs: int
    source: str


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
class StepEstimate:
    """The compiler's estimate for a compiled step on one device; `str()` returns a table.

    Attributes:
      instructions: the instructions that the device runs, in the order of the program.
      clock_rate: the device's clock rate in Hz, which converts cycles to seconds.
      link_seconds: the time to send the data of all collectives over the device's links. The
        compiler does not estimate collectives.
      least_seconds: the time that the model FLOPs would take at the device's peak; None if the peak
        is unknown.
      memory_bandwidth: the bandwidth of the device's main memory in bytes/s.
    """

    instructions: Sequence[InstructionEstimate] = field(repr=False)
    clock_rate: float
    link_seconds: float
    least_seconds: float | None
    memory_bandwidth: float

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
    def not_estimated(self) -> Mapping[str, int]:
        """The number of runs of instructions without an estimate, for each of their kinds."""
        runs: Counter[str] = Counter()
        for line in self.instructions:
            if line.seconds is None and line.kind != "collectives":
                runs[line.kind] += line.runs
        return dict(runs.most_common())

    @property
    def least_unestimated_seconds(self) -> float:
        """The time to move the operands and results of kernels without an estimate, in seconds."""
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
        """The number of instructions run, not counting DMA copies and scalar operations."""
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


def estimate_step(
    hlo: str,
    num_devices: int,
    *,
    clock_rate: float,
    link_bandwidth: float,
    memory_bandwidth: float,
    least_seconds: float | None,
) -> StepEstimate | None:
    """Read the compiler's estimates in the text of a compiled step.

    Args:
      hlo: the text of the compiled module.
      num_devices: the number of devices of the mesh.
      clock_rate: the device's clock rate in Hz.
      link_bandwidth: the total outgoing bandwidth of a device's links, in bytes/s.
      memory_bandwidth: the bandwidth of the device's main memory in bytes/s.
      least_seconds: the time that the model FLOPs of a step would take at the device's peak; None
        if the peak is unknown.

    Returns:
      the estimate; None if the text contains none, since only the TPU compiler writes them.
    """
    if not _CYCLES.search(hlo):
        return None
    computations, entry = parse_computations(hlo)
    frames = StackFrames(hlo)
    lines = [
        line
        for name, runs in count_runs(computations, entry, only_scheduled=True).items()
        for line in _read(computations, name, runs, frames, clock_rate)
    ]
    sent = sum(traffic.sent for traffic in collectives(hlo, num_devices).values())
    return StepEstimate(lines, clock_rate, sent / link_bandwidth, least_seconds, memory_bandwidth)


def _read(
    computations: Computations, name: str, runs: int, frames: StackFrames, clock_rate: float
) -> Iterator[InstructionEstimate]:
    """Yield the instructions of a computation that do work, if the computation runs at all."""
    results = {line.name: line.result for line in computations[name]}
    for line in computations[name] if runs else ():
        if is_free(line):
            continue
        parts = contents(line, computations)
        stack = frames.stack(main_part(line, parts).rest) or frames.stack(line.rest)
        cycles = _CYCLES.search(line.rest)
        kind = kind_of(parts, stack)
        seconds = None
        if is_dma(line):
            kind = DMA_COPIES
        elif cycles and kind != "collectives":
            seconds = runs * int(cycles[1]) / clock_rate
        elif kind != "collectives":
            kind = unestimated_kind(line, parts)
        moved = main_memory_bytes(line, results, computations)
        if is_dma(line):
            moved = copied_bytes(line)
        stored = [str(array) for array in arrays(line.result) if array.in_main_memory]
        yield InstructionEstimate(
            name=line.name,
            kind=kind,
            shape=re.sub(r"\{[^}]*\}|/\*index=\d+\*/", "", line.result),
            stored=stored,
            seconds=seconds,
            bytes=runs * moved,
            runs=runs,
            source=_source(stack),
        )


def _source(stack: Sequence[Frame]) -> str:
    inner = next((frame for frame in stack if frame.package), None)
    if inner is None:
        return ""
    outer = caller(stack)
    return f"{inner}" if outer in (None, inner) else f"{inner} < {outer}"


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
    missing = ", ".join(f"{kind} {count:,}" for kind, count in estimate.not_estimated.items())
    least = f"; their data takes at least {estimate.least_unestimated_seconds * 1e3:.2f} ms"
    lines += [
        f"{'':20s}from the compiler's cycle counts at {estimate.clock_rate / 1e9:.2f} GHz, one "
        "instruction after another; collectives",
        f"{'':20s}take as long as sending their data at the full bandwidth of the links",
        f"{'not estimated':20s}{missing + least if missing else 'nothing'}",
        f"{'HBM traffic':20s}{estimate.bytes / 2**30:.2f} GiB per step, in {estimate.kernels:,} "
        "kernels",
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


def explain(estimate: StepEstimate, count: int = 10) -> list[str]:
    """Format the most expensive instructions with their source lines."""
    lines = ["most expensive instructions, with the source line and its caller in the model"]
    for line in estimate.most_expensive(count):
        assert line.seconds is not None
        times = f" in {line.runs:,} runs" if line.runs > 1 else ""
        origin = f": {line.source}" if line.source else ""
        lines += [
            f"  {line.seconds * 1e3:8.3f} ms{times}  {line.kind}: {line.name} {line.shape}",
            f"  {'':13s}{line.bytes / _MIB:,.1f} MiB of HBM{origin}",
        ]
    return lines
