"""Compile a phase's train step for real or hypothetical devices, and report its memory and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import Roofline, chip, clock_rate, peak_flops, roofline
from bert_jax.analysis.collectives import collectives
from bert_jax.analysis.estimates import StepEstimate, estimate_step
from bert_jax.analysis.instruction_kinds import PALLAS_KERNELS
from bert_jax.models.heads import GENERATOR
from bert_jax.models.parameters import count
from bert_jax.pretraining.messages import generator_line, rotary_line
from bert_jax.pretraining.phases import PhaseConfig
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.pretraining.step_timing import random_batch
from bert_jax.training.compiled_step import CompiledStep
from bert_jax.training.planning import OutOfMemory, compile_step, state_bytes
from bert_jax.training.sharding import undivided

# A function from a step's name to a context manager that is active while the step compiles.
WhileCompiling = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class PhasePlan:
    """A phase with its compiled step or, if the step is too large to compile, the memory it needs.

    Attributes:
      name: the phase's name.
      phase: the phase's config.
      documents_per_row: the number of documents packed into a row.
      dtype: the compute dtype.
      state_bytes: the size of the parameters and optimizer state on one device, in bytes.
      model_flops: the model FLOPs per step, summed over all devices.
      compile_seconds: the compile time in seconds.
      step: the compiled step; None if the compiler ran out of device memory.
      refused: the memory needed by a step that did not compile; None if it compiled.
      estimate: the compiler's estimate of the time of a step; None if it makes none.
    """

    name: str
    phase: PhaseConfig
    documents_per_row: int
    dtype: str
    state_bytes: int
    model_flops: int
    compile_seconds: float
    step: CompiledStep | None
    refused: OutOfMemory | None
    estimate: StepEstimate | None = None

    @property
    def seconds(self) -> float | None:
        """The estimated time of all steps of the phase in seconds; None without an estimate."""
        return None if self.estimate is None else self.estimate.seconds * full_steps(self.phase)

    @property
    def memory(self) -> int:
        """The memory that the step needs on each device, in bytes."""
        if self.step is not None:
            return self.step.memory
        assert self.refused is not None
        return self.refused.needed

    def fits(self, limit: int | None) -> bool:
        """Return whether the step fits in `limit` bytes per device; None means no limit."""
        return self.step is not None and (limit is None or self.step.memory <= limit)

    def roofline(self, devices: Sequence[jax.Device]) -> Roofline | None:
        """Return the minimum step time; None if the step did not compile or the chip is unknown."""
        chip_figures = chip(devices[0].device_kind)
        peak = peak_flops(devices[0].device_kind, self.dtype)
        if self.step is None or chip_figures is None or peak is None:
            return None
        traffic = collectives(self.step.text, len(devices)).values()
        return roofline(
            chip_figures,
            peak,
            # Rematerialization raises the compiler's FLOP count above the model's; loops lower it.
            flops=max(self.model_flops / len(devices), self.step.flops or 0.0),
            memory_bytes=self.step.least_traffic,
            sent_bytes=sum(kind.sent for kind in traffic),
        )


def plan_phase(
    setup: StepSetup,
    mesh: Mesh,
    name: str,
    phase: PhaseConfig,
    documents_per_row: int,
    *,
    joined: bool,
    while_compiling: WhileCompiling = nullcontext,
) -> PhasePlan:
    """Compile the train step of a phase.

    Args:
      setup: the train-step settings, with the teacher.
      mesh: the device mesh.
      name: the phase's name.
      phase: the phase's config.
      documents_per_row: the number of documents packed into a row.
      joined: whether the documents in a row attend to each other.
      while_compiling: see `WhileCompiling`.
    """
    # Only the shapes of the batch matter, so make one row and replace the size of its first axis.
    row = random_batch(
        phase.sequence_length,
        documents_per_row,
        rows=1,
        vocab_size=setup.model.vocab_size,
        predictions=setup.max_predictions(phase),
        joined=joined,
    )
    batch = {
        field: jax.ShapeDtypeStruct((phase.batch_size, *array.shape[1:]), array.dtype)
        for field, array in row.items()
    }
    step = refused = None
    began = time.perf_counter()
    with while_compiling(f"{name} ({phase.batch_size} x {phase.sequence_length})"):
        try:
            step = compile_step(
                setup.trained_task,
                setup.transformation,
                mesh,
                batch,
                accumulation_steps=setup.accumulation_steps,
                teacher=None if setup.teacher is None else setup.teacher.teacher,
            )
        except OutOfMemory as error:
            refused = error
    model_flops = setup.step_flops(phase, documents_per_row)
    return PhasePlan(
        name=name,
        phase=phase,
        documents_per_row=documents_per_row,
        dtype=setup.compute.dtype,
        state_bytes=state_bytes(setup.task.definition, setup.transformation, mesh),
        model_flops=model_flops,
        compile_seconds=time.perf_counter() - began,
        step=step,
        refused=refused,
        estimate=estimate_of(step, mesh, setup.compute.dtype, model_flops),
    )


def estimate_of(
    step: CompiledStep | None, mesh: Mesh, dtype: str, model_flops: float
) -> StepEstimate | None:
    """Return the compiler's estimate; None if it makes none or the chip's figures are unknown.

    Args:
      step: the compiled step; None if the compiler ran out of device memory.
      mesh: the device mesh.
      dtype: the compute dtype.
      model_flops: the model FLOPs per step, summed over all devices.
    """
    kind = mesh.devices.flat[0].device_kind
    figures, peak, clock = chip(kind), peak_flops(kind, dtype), clock_rate(kind)
    if step is None or figures is None or clock is None:
        return None
    return estimate_step(
        step.text,
        mesh.size,
        clock_rate=clock,
        link_bandwidth=figures.link_bandwidth,
        memory_bandwidth=figures.memory_bandwidth,
        least_seconds=None if peak is None else model_flops / mesh.size / peak,
    )


def header(setup: StepSetup, mesh: Mesh) -> list[str]:
    """Describe the model and the devices of a plan."""
    definition, compute = setup.task.definition, setup.compute
    sizes = " x ".join(f"{size} {axis}" for axis, size in mesh.shape.items())
    shapes = {n: s for n, s in definition.shapes.items() if not n.startswith(GENERATOR)}
    lines = [
        f"model     {count(shapes):,} parameters, {compute.dtype}, "
        f"{compute.attention} attention, remat {compute.remat}, "
        f"accumulation_steps {setup.accumulation_steps}",
        f"devices   {mesh.size} x {mesh.devices.flat[0].device_kind} ({sizes})",
    ]
    if setup.generator is not None:
        lines.insert(1, generator_line(setup.generator, definition.shapes, width=10))
    return lines + [
        f"  {line}" for line in undivided(definition.shapes, definition.logical_axes, mesh)
    ]


def phase_lines(plan: PhasePlan, devices: Sequence[jax.Device], limit: int | None) -> list[str]:
    """Describe the memory, collectives, FLOPs and minimum time of one phase."""
    phase = plan.phase
    lines = [
        f"{plan.name}    {phase.num_steps:,} steps of {phase.batch_size} x "
        f"{phase.sequence_length} tokens, up to {plan.documents_per_row} documents per row "
        f"({_compiled(plan)})",
        *rotary_line(phase, width=2),
    ]
    if plan.step is None:
        assert plan.refused is not None
        return lines + [
            f"  memory per device   {gib(plan.refused.needed)} needed, but only "
            f"{gib(plan.refused.available)} available to the compiler: does not fit",
            f"    state             {gib(plan.state_bytes)}",
        ]
    step = plan.step
    share = "" if limit is None else f" of {gib(limit)} ({step.memory / limit:.0%})"
    lines += [
        f"  memory per device   {gib(step.memory)}{share}"
        + ("" if plan.fits(limit) else ": does not fit"),
        f"    arguments         {gib(step.arguments)} (state {gib(plan.state_bytes)}, and a batch)",
        f"    outputs           {gib(step.outputs)} without the state, which is updated in place",
        f"    temporaries       {gib(step.temporaries)}",
        f"  collectives per step{'count':>8s}{'bytes':>14s}{'sent':>14s}  (per device)",
    ]
    traffic = collectives(step.text, len(devices))
    lines += [
        f"    {kind:18s}{total.count:8,d}{mib(total.bytes):>14s}{mib(total.sent):>14s}"
        for kind, total in traffic.items()
    ] or ["    none"]
    lines += [
        f"  FLOPs per step      {plan.model_flops:.4g} of the model on all devices"
        + (
            ""
            if step.flops is None
            else f"; the compiler counts {step.flops:.4g} per device (each loop once)"
        ),
        *_roofline_lines(plan, devices),
    ]
    if plan.estimate is None:
        return [*lines, f"  estimated time      none: {_no_estimate(devices[0].device_kind)}"]
    return lines + [f"  {line}" for line in str(plan.estimate).splitlines()]


def _compiled(plan: PhasePlan) -> str:
    if plan.step is not None and plan.step.cached:
        return "compiled by an earlier command"
    return f"compiled in {plan.compile_seconds:.0f} s"


def total_lines(
    plans: Sequence[PhasePlan], devices: Sequence[jax.Device], price: float | None = None
) -> list[str]:
    """Describe the estimated and the minimum time of the whole run, if they are known.

    Args:
      plans: the phases, all of which compiled.
      devices: the devices of the topology.
      price: the price of a chip per hour in USD, to describe the cost as well; None for no cost.
    """
    lines = []
    seconds = total_seconds(plans)
    if seconds is not None:
        hours = seconds / 3600 * len(devices)
        amount = f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"
        cost = "" if price is None else f", {hours * price:,.2f} USD at {price:g} USD each"
        lines = [
            f"the run   takes an estimated {duration(seconds)} ({amount} chip-hours{cost}), "
            "without evaluations, checkpoints, pauses",
            f"          and {_left_out(plans)}.",
        ]
    elif price is not None:
        lines = [f"the cost  is unknown, because {_no_estimate(devices[0].device_kind)}"]
    bounds = [(plan, plan.roofline(devices)) for plan in plans]
    if any(bound is None for _, bound in bounds):
        return ["the run   fits", *lines]
    least = sum(bound.seconds * full_steps(plan.phase) for plan, bound in bounds if bound)
    return lines + [
        f"the run   takes at least {duration(least)}: a lower bound, not a prediction. It "
        "assumes that every matrix multiplication runs at the",
        "          chip's peak and overlaps with memory and link traffic, and it ignores "
        "evaluations, checkpoints and pauses.",
    ]


def _no_estimate(device_kind: str) -> str:
    """Say why a step that compiled has no estimate."""
    if device_kind.startswith("TPU") and clock_rate(device_kind) is None:
        return f"the clock rate of {device_kind} is unknown"
    return f"the compiler estimates no times for {device_kind}"


def _left_out(plans: Sequence[PhasePlan]) -> str:
    """Describe the instructions that are missing from the estimates."""
    counts = [plan.estimate.not_estimated for plan in plans if plan.estimate is not None]
    if any(PALLAS_KERNELS in count for count in counts):
        return (
            "Pallas kernels, whose time the compiler does not estimate: it takes longer than that"
        )
    return "instructions that the compiler does not estimate"


def total_seconds(plans: Sequence[PhasePlan]) -> float | None:
    """Return the estimated time of all phases in seconds; None if one has no estimate."""
    seconds = [plan.seconds for plan in plans]
    return sum(filter(None, seconds)) if None not in seconds else None


def full_steps(phase: PhaseConfig) -> float:
    """Return the number of full-size batches that contain as many sequences as the phase."""
    return phase.num_sequences / phase.batch_size


def _roofline_lines(plan: PhasePlan, devices: Sequence[jax.Device]) -> list[str]:
    bound = plan.roofline(devices)
    kind = devices[0].device_kind
    chip_figures = chip(kind)
    if bound is None:
        # The peak in float32 depends on the matmul precision.
        reason = f", because its peak in {plan.dtype} is unknown" if chip_figures else ""
        return [f"  roofline            unknown for {kind}{reason}"]
    assert chip_figures is not None and plan.step is not None
    lines = [
        f"  roofline            at least {bound.seconds * 1e3:.2f} ms per step, by {bound.bound} "
        f"(compute {bound.compute * 1e3:.2f}, memory {bound.memory * 1e3:.2f}, "
        f"links {bound.links * 1e3:.2f} ms); {duration(bound.seconds * full_steps(plan.phase))} "
        "for the phase",
    ]
    if plan.step.bytes_accessed is not None:
        busy = plan.step.bytes_accessed / chip_figures.memory_bandwidth
        lines.append(
            f"                      memory counts only the necessary traffic; moving every operand "
            f"of every operation would take {busy * 1e3:.2f} ms"
        )
    return lines


def gib(size: float) -> str:
    """Format a number of bytes in GiB."""
    return f"{size / 2**30:.3f} GiB"


def mib(size: float) -> str:
    """Format a number of bytes in MiB."""
    return f"{size / 2**20:,.2f} MiB"


def duration(seconds: float) -> str:
    """Format a duration in days, hours and minutes, or in seconds if it is less than a minute."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    days, hours = divmod(minutes // 60, 24)
    parts = [f"{days} d"] * bool(days) + [f"{hours} h"] * bool(days or hours)
    return " ".join([*parts, f"{minutes % 60} min"])
