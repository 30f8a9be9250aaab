"""Describe the memory, the time and the communication of a plan in lines of text."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import chip, clock_rate
from bert_jax.analysis.collectives import between_slices, collectives
from bert_jax.analysis.instruction_kinds import PALLAS_KERNELS
from bert_jax.models.heads import GENERATOR
from bert_jax.models.parameters import count
from bert_jax.pretraining.attention_text import attention_lines, attention_reason
from bert_jax.pretraining.messages import generator_line, rotary_line
from bert_jax.pretraining.phase_plan import PhasePlan, full_steps, total_seconds
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.training.sharding import num_slices, undivided


def header(setup: StepSetup, mesh: Mesh, longest_sequence: int) -> list[str]:
    """Describe the model, the attention implementation and the devices of a plan.

    Args:
      setup: the train-step settings.
      mesh: the device mesh.
      longest_sequence: the longest sequence length of any phase.
    """
    definition, compute = setup.task.definition, setup.compute
    sizes = " x ".join(f"{size} {axis}" for axis, size in mesh.shape.items())
    shapes = {n: s for n, s in definition.shapes.items() if not n.startswith(GENERATOR)}
    lines = [
        f"model     {count(shapes):,} parameters, {compute.summary}, remat {compute.remat}, "
        f"accumulation_steps {setup.accumulation_steps}",
        f"devices   {mesh.size} x {mesh.devices.flat[0].device_kind} ({sizes})",
    ]
    reason = attention_reason(setup, mesh.devices.flat[0], longest_sequence)
    lines[1:1] = attention_lines(compute.attention, reason, width=10)
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
    slices = num_slices(devices)
    if slices > 1:
        total = between_slices(step.text, slices)
        lines += [
            f"    between slices    {total.count:8,d}{mib(total.bytes):>14s}{mib(total.sent):>14s}"
            "  (over the data-center network, not in the times below)"
        ]
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
    return lines + [f"  {line}" for line in [*str(plan.estimate).splitlines(), *plan.notes]]


def _compiled(plan: PhasePlan) -> str:
    if plan.step is not None and plan.step.cached:
        return "compiled by an earlier command"
    return f"compiled in {plan.compile_seconds:.0f} s"


def total_lines(
    plans: Sequence[PhasePlan], devices: Sequence[jax.Device], price: float | None = None
) -> list[str]:
    """Describe the estimated and the minimum time of the whole run, if they are known.

    Args:
      plans: the plans of the phases, which have all been compiled.
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
    """Explain why there is no time estimate for a compiled step."""
    if device_kind.startswith("TPU") and clock_rate(device_kind) is None:
        return f"the clock rate of {device_kind} is unknown"
    return f"the compiler estimates no times for {device_kind}"


def _left_out(plans: Sequence[PhasePlan]) -> str:
    """Describe the instructions and the waiting time that are missing from the estimates."""
    counts = [plan.estimate.not_estimated for plan in plans if plan.estimate is not None]
    if any(PALLAS_KERNELS in count for count in counts):
        return "Pallas kernels whose FLOPs are unknown, so it will take longer"
    return "instructions without an estimate" if any(counts) else "waiting for data"


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
