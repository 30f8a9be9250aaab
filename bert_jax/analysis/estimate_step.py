"""Estimate the time and the memory traffic of each kernel in the text of a compiled step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bert_jax.analysis.collectives import collectives
from bert_jax.analysis.estimates import InstructionEstimate, StepEstimate
from bert_jax.analysis.hlo import (
    Computations,
    Instruction,
    arrays,
    count_runs,
    parse_computations,
)
from bert_jax.analysis.instruction_kinds import (
    DMA_COPIES,
    caller,
    contents,
    in_layer,
    is_dma,
    is_free,
    is_product,
    kind_of,
    main_part,
    unestimated_kind,
)
from bert_jax.analysis.kept_arrays import kept_bytes
from bert_jax.analysis.kernel_times import KernelTimes
from bert_jax.analysis.memory_traffic import copied_bytes, main_memory_bytes
from bert_jax.analysis.source_lines import Frame, StackFrames


def estimate_step(
    hlo: str,
    num_devices: int,
    times: KernelTimes,
    *,
    link_bandwidth: float,
    memory_bandwidth: float,
    least_seconds: float | None,
    num_layers: int | None = None,
) -> StepEstimate | None:
    """Estimate the time of a compiled step from its text.

    Args:
      hlo: the text of the compiled module.
      num_devices: the number of devices of the mesh.
      times: the method for estimating the times of kernels on the devices.
      link_bandwidth: the total outgoing bandwidth of a device's links, in bytes/s.
      memory_bandwidth: the bandwidth of the device's main memory in bytes/s.
      least_seconds: the time that the model FLOPs of a step would take at the device's peak; None
        if the peak is unknown.
      num_layers: the number of layers of the only encoder in the step; None if there are several.

    Returns:
      the estimate; None if the text lacks the compiler's numbers that an estimate needs.
    """
    if not times.apply_to(hlo):
        return None
    computations, entry = parse_computations(hlo)
    program = _Program(computations, StackFrames(hlo), times)
    runs = count_runs(computations, entry, only_scheduled=True)
    lines = [line for name, count in runs.items() for line in program.read(name, count)]
    sent = sum(traffic.sent for traffic in collectives(hlo, num_devices).values())
    return StepEstimate(
        instructions=lines,
        notes=times.notes,
        link_seconds=sent / link_bandwidth,
        least_seconds=least_seconds,
        memory_bandwidth=memory_bandwidth,
        num_layers=num_layers,
        kept_bytes=program.kept([name for name, count in runs.items() if count]),
    )


@dataclass(frozen=True)
class _Program:
    """A compiled program with the source lines of its instructions.

    Attributes:
      computations: the computations.
      frames: the stacks of calls.
      times: the method for estimating the times of kernels.
    """

    computations: Computations
    frames: StackFrames
    times: KernelTimes

    def read(self, name: str, runs: int) -> Iterator[InstructionEstimate]:
        """Yield those instructions of a computation that do work; nothing if it never runs."""
        results = {line.name: line.result for line in self.computations[name]}
        for line in self.computations[name] if runs else ():
            if is_free(line):
                continue
            parts, stack = self._origin(line)
            kind, moved = kind_of(parts, stack), main_memory_bytes(line, results, self.computations)
            time = None
            if is_dma(line):
                kind, moved = DMA_COPIES, copied_bytes(line)
            elif kind != "collectives":
                time = self.times(line, results, moved)
                if time is None:
                    kind = unestimated_kind(line, parts)
            stored = [str(array) for array in arrays(line.result) if array.in_main_memory]
            yield InstructionEstimate(
                name=line.name,
                kind=kind,
                shape=re.sub(r"\{[^}]*\}|/\*index=\d+\*/", "", line.result),
                stored=stored,
                seconds=None if time is None else runs * time.seconds,
                method="" if time is None else time.method,
                bytes=runs * moved,
                runs=runs,
                source=_source(stack),
                in_layer=kind != "optimizer" and in_layer(stack),
            )

    def kept(self, names: Sequence[str]) -> int:
        """Return the number of bytes that the layers still keep when the loss is computed."""
        for name in names:
            lines = self.computations[name]
            origins = [self._origin(line) for line in lines]
            end = next(
                (
                    number
                    for number, (parts, stack) in enumerate(origins)
                    if any(map(is_product, parts))
                    and kind_of(parts, stack) == "vocabulary and loss"
                ),
                None,
            )
            if end is not None:
                counts = {
                    line.name: in_layer(stack)
                    for line, (_, stack) in zip(lines, origins, strict=True)
                }
                return kept_bytes(lines, end, counts)
        return 0

    def _origin(self, line: Instruction) -> tuple[list[Instruction], list[Frame]]:
        """Return the parts of an instruction (see `contents`), and the calls that created it."""
        parts = contents(line, self.computations)
        stack = self.frames.stack(main_part(line, parts).rest) or self.frames.stack(line.rest)
        return parts, stack


def _source(stack: Sequence[Frame]) -> str:
    inner = next((frame for frame in stack if frame.package), None)
    if inner is None:
        return ""
    outer = caller(stack)
    return f"{inner}" if outer in (None, inner) else f"{inner} < {outer}"
