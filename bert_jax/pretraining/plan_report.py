"""Describe a plan in lines: memory, collectives, FLOPs, and the least time a step can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import chip
from bert_jax.analysis.collectives import collectives
from bert_jax.models.parameters import count
from bert_jax.pretraining.phase_plan import PhasePlan
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.training.sharding import undivided


def header(setup: StepSetup, mesh: Mesh) -> list[str]:
    """Return lines about the model and the devices of a plan."""
    definition, compute = setup.task.definition, setup.compute
    sizes = " x ".join(f"{size} {axis}" for axis, size in mesh.shape.items())
    lines = [
        f"model     {count(definition.shapes):,} parameters, {compute.dtype}, "
        f"{compute.attention} attention, remat {compute.remat}, "
        f"accumulation_steps {setup.accumulation_steps}",
        f"devices   {mesh.size} x {mesh.devices.flat[0].device_kind} ({sizes})",
    ]
    return lines + [
        f"  {line}" for line in undivided(definition.shapes, definition.logical_axes, mesh)
    ]


def phase_lines(plan: PhasePlan, devices: list[jax.Device], limit: int | None) -> list[str]:
    """Lines: memory, collectives, FLOPs and the bound of one phase."""
    phase = plan.phase
    lines = [
        f"{plan.name}    {phase.num_steps:,} steps of {phase.batch_size} x "
        f"{phase.sequence_length} tokens, up to {plan.pieces} documents a row "
        f"(compiled in {plan.compile_seconds:.0f} s)"
    ]
    if plan.step is None:
        assert plan.refused is not None
        return lines + [
            f"  memory a device     {gib(plan.refused.needed)} needed, the compiler has "
            f"{gib(plan.refused.available)}: does not fit",
            f"    state             {gib(plan.state_bytes)}",
        ]
    step = plan.step
    share = "" if limit is None else f" of {gib(limit)} ({step.memory / limit:.0%})"
    lines += [
        f"  memory a device     {gib(step.memory)}{share}"
        + ("" if plan.fits(limit) else ": does not fit"),
        f"    arguments         {gib(step.arguments)} (state {gib(plan.state_bytes)}, and a batch)",
        f"    outputs           {gib(step.outputs)} beside the state, which is replaced in place",
        f"    temporaries       {gib(step.temporaries)}",
        f"  collectives a step  {'count':>8s}{'bytes':>14s}{'sent':>14s}  (of one device)",
    ]
    traffic = collectives(step.text, len(devices))
    lines += [
        f"    {kind:18s}{found.count:8,d}{mib(found.bytes):>14s}{mib(found.sent):>14s}"
        for kind, found in traffic.items()
    ] or ["    none"]
    lines += [
        f"  FLOPs a step        {plan.model_flops:.4g} of the model on all devices; the compiler "
        f"counts {step.flops:.4g} on each (loops once)",
        *_bound_lines(plan, devices),
    ]
    return lines


def total_lines(plans: Sequence[PhasePlan], devices: list[jax.Device]) -> list[str]:
    """Lines: the bound of the whole run, where it is known."""
    bounds = [(plan, plan.roofline(devices)) for plan in plans]
    if any(bound is None for _, bound in bounds):
        return ["the run   fits"]
    seconds = sum(bound.seconds * plan.phase.num_steps for plan, bound in bounds if bound)
    return [
        f"the run   takes at least {duration(seconds)}: a bound, not a prediction. It has every "
        "product at the chip's peak,",
        "          memory and links used meanwhile, and no evaluation, checkpoint or pause.",
    ]


def _bound_lines(plan: PhasePlan, devices: list[jax.Device]) -> list[str]:
    bound = plan.roofline(devices)
    if bound is None:
        return [f"  roofline            no figures are known for {devices[0].device_kind}"]
    known = chip(devices[0].device_kind)
    assert known is not None and plan.step is not None
    busy = plan.step.bytes_accessed / known.memory_bandwidth
    return [
        f"  roofline            at least {bound.seconds * 1e3:.2f} ms a step, by {bound.bound} "
        f"(compute {bound.compute * 1e3:.2f}, memory {bound.memory * 1e3:.2f}, "
        f"links {bound.links * 1e3:.2f} ms); {duration(bound.seconds * plan.phase.num_steps)} "
        "for the phase",
        f"                      memory counts what must pass; all operands of all operations "
        f"would take {busy * 1e3:.2f} ms",
    ]


def gib(size: float) -> str:
    """Bytes for a person."""
    return f"{size / 2**30:.3f} GiB"


def mib(size: float) -> str:
    """Bytes for a person, smaller."""
    return f"{size / 2**20:,.2f} MiB"


def duration(seconds: float) -> str:
    """Days, hours and minutes."""
    minutes = round(seconds / 60)
    days, hours = divmod(minutes // 60, 24)
    parts = [f"{days} d"] * bool(days) + [f"{hours} h"] * bool(days or hours)
    return " ".join([*parts, f"{minutes % 60} min"])


def flags(changes: Mapping[str, Any]) -> str:
    """Return changes of a config as options to type."""
    return " ".join(f"--config.{name}={value}" for name, value in changes.items())
