"""Estimate what a pretraining run needs, report it, and suggest changes that need less."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import Roofline, chip, peak_flops, roofline
from bert_jax.analysis.collectives import collectives
from bert_jax.analysis.counts import parameter_counts
from bert_jax.models.config import ComputeConfig
from bert_jax.models.parameters import count
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.processes import check_workers
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.planning import CompiledStep, OutOfMemory
from bert_jax.training.preflight import (
    PRETRAINING_ARRAYS,
    Part,
    batch_part,
    check_ahead,
    check_fits,
    check_traceable,
    model_size_keys,
    state_parts,
)
from bert_jax.training.sharding import make_mesh, undivided


def check_pretraining(
    config: PretrainConfig, mesh: Mesh, *, only: str | None = None, trains: bool = True
) -> None:
    """Refuse a run that does not fit into this machine's memory, before any of it is traced.

    Args:
      only: the phase to check; None for all.
      trains: whether batches are also loaded and evaluated; False for `bench step`.

    Raises:
      ValueError: the run does not fit; names the largest part and the keys that determine it.
    """
    compute = config.compute.resolve(jax.devices()[0], config.model)
    if trains:
        check_workers("loader.num_workers", config.loader.num_workers)
    for name, _, phase in config.ordered_phases():
        if only not in (None, name):
            continue
        parts = pretraining_parts(config, mesh, compute, name, phase)
        check_traceable(parts, mesh)
        check_fits(parts, mesh)
        if not trains:
            continue
        if config.evaluation.every_steps:
            # During evaluation a run keeps its state but no gradients.
            kept = [part for part in parts[:-1] if part.name != "gradients"]
            check_fits([*kept, _evaluation_part(config, mesh, compute, phase)], mesh)
        ahead = min(config.loader.prefetch * max(1, config.loader.num_workers), phase.num_steps)
        rows = -(-phase.batch_size // jax.process_count())
        row = phase.sequence_length * PRETRAINING_ARRAYS * 4
        check_ahead(f"loader.prefetch={config.loader.prefetch}", ahead, rows * row)


def pretraining_parts(
    config: PretrainConfig, mesh: Mesh, compute: ComputeConfig, name: str, phase: PhaseConfig
) -> list[Part]:
    """Return the least memory a phase's train step needs on one device, in parts."""
    parameters = parameter_counts(config.model_config()).total
    clips = config.optimizer.clip_norm > 0 or config.accumulation_steps > 1
    state = state_parts(
        mesh, parameters, parameters, all_gradients=clips, keys=model_size_keys(config.model)
    )
    batch = batch_part(
        mesh,
        config.model,
        compute,
        name="one batch",
        rows=phase.batch_size,
        rows_at_once=phase.batch_size // config.accumulation_steps,
        length=phase.sequence_length,
        arrays=PRETRAINING_ARRAYS,
        keys=f"phases.{name}.batch_size={phase.batch_size} or sequence_length="
        f"{phase.sequence_length}, or raise accumulation_steps={config.accumulation_steps}",
    )
    return [*state, batch]


def _evaluation_part(
    config: PretrainConfig, mesh: Mesh, compute: ComputeConfig, phase: PhaseConfig
) -> Part:
    rows = config.evaluation_batch_size(phase)
    return batch_part(
        mesh,
        config.model,
        compute,
        name="one evaluation batch",
        rows=rows,
        rows_at_once=rows,
        length=phase.sequence_length,
        arrays=PRETRAINING_ARRAYS,
        keys=f"evaluation.batch_size={rows}",
    )


@dataclass(frozen=True)
class PhasePlan:
    """A phase and its compiled step, or why the compiler refused it.

    state_bytes: parameters and optimizer on one device. model_flops: of a step, on all devices.
    """

    name: str
    phase: PhaseConfig
    pieces: int
    dtype: str
    state_bytes: int
    model_flops: int
    compile_seconds: float
    step: CompiledStep | None
    refused: OutOfMemory | None

    @property
    def memory(self) -> int:
        """Bytes a device needs."""
        if self.step is not None:
            return self.step.memory
        assert self.refused is not None
        return self.refused.needed

    def fits(self, limit: int | None) -> bool:
        """Whether a device with `limit` bytes can run it; None is no limit."""
        return self.step is not None and (limit is None or self.step.memory <= limit)

    def roofline(self, devices: list[jax.Device]) -> Roofline | None:
        """The bound of a step, or None where the chip's figures are not known."""
        known = chip(devices[0].device_kind)
        peak = peak_flops(devices[0].device_kind, self.dtype)
        if self.step is None or known is None or peak is None:
            return None
        traffic = collectives(self.step.text, len(devices)).values()
        return roofline(
            known,
            peak,
            # Rematerialisation makes the compiler's count the larger one, loops the smaller.
            flops=max(self.model_flops / len(devices), self.step.flops),
            memory_bytes=self.step.least_traffic,
            sent_bytes=sum(kind.sent for kind in traffic),
        )


def header(config: PretrainConfig, devices: list[jax.Device]) -> list[str]:
    """Lines: what is planned, and for what."""
    mesh = make_mesh(config.mesh, devices)
    compute = config.compute.resolve(devices[0], config.model)
    definition = Pretraining(config.model, compute, sentence_pairs=config.sentence_pairs).definition
    sizes = " x ".join(f"{size} {axis}" for axis, size in mesh.shape.items())
    lines = [
        f"model     {count(definition.shapes):,} parameters, {compute.dtype}, "
        f"{compute.attention} attention, remat {compute.remat}, "
        f"accumulation_steps {config.accumulation_steps}",
        f"devices   {mesh.size} x {devices[0].device_kind} ({sizes})",
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


def total_lines(plans: list[PhasePlan], devices: list[jax.Device]) -> list[str]:
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


Changes = Mapping[str, Any]


def remedies(
    config: PretrainConfig, worst: PhasePlan, num_devices: int, limit: int
) -> Iterator[Changes]:
    """Changes of `config` to compile, so that `worst` may fit `limit` bytes a device.

    Accumulation comes first (the same work in smaller products), then rematerialisation (work
    done twice), then both. State that fills half a device is split over all of them before.
    Accumulation in k parts is left out where even 1/k of what is not state would not fit.
    """
    split = _split_state(config, num_devices)
    bases: list[Changes] = [split]
    if split and worst.state_bytes <= limit / 2:
        bases = [{}, split]
    parts = _parts(config, num_devices)
    for base in bases:
        if base:
            yield base
        state = 0 if base else worst.state_bytes
        rest = worst.memory - worst.state_bytes
        enough = [more for more in parts if state + rest / more <= limit]
        accumulated = [{"accumulation_steps": config.accumulation_steps * more} for more in enough]
        if config.compute.remat == "layer":
            yield from ({**base, **change} for change in accumulated)
            continue
        if accumulated:
            yield {**base, **accumulated[0]}
        if config.compute.remat == "none":
            yield {**base, "compute.remat": "dots"}
        layer = {**base, "compute.remat": "layer"}
        yield layer
        for more in parts:
            yield {**layer, "accumulation_steps": config.accumulation_steps * more}


def _split_state(config: PretrainConfig, num_devices: int) -> Changes:
    """FSDP over every device that the tensor axis leaves; nothing if it is so already."""
    tensor = config.mesh.tensor
    fsdp = num_devices // tensor if tensor > 0 else 1
    if config.mesh.fsdp in (fsdp, -1):
        return {}
    changes: dict[str, Any] = {"mesh.fsdp": fsdp}
    if config.mesh.data not in (1, -1):
        changes["mesh.data"] = 1
    return changes


def _parts(config: PretrainConfig, num_devices: int) -> list[int]:
    """2, 4, 8, ...: into how many more parts the batches of all phases can be processed."""
    extent = num_devices // max(config.mesh.tensor, 1) * config.accumulation_steps
    sizes = [phase.batch_size for phase in config.phases.values()]
    return [
        more
        for more in (2**n for n in range(1, 16))
        if all(size % (extent * more) == 0 for size in sizes)
    ]


def with_changes(config: PretrainConfig, changes: Changes) -> PretrainConfig:
    """The config with `changes` by dotted name, at most one section deep."""
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        if section:
            inner = dataclasses.replace(getattr(config, section), **{key: value})
            config = dataclasses.replace(config, **{section: inner})
        else:
            config = dataclasses.replace(config, **{key: value})
    return config


def flags(changes: Changes) -> str:
    """The words to type."""
    return " ".join(f"--config.{name}={value}" for name, value in changes.items())
