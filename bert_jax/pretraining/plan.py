"""Plan a pretraining run on other hardware: compile its steps and find changes that make it fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from bert_jax.analysis.chips import chip
from bert_jax.analysis.topology import topology_devices
from bert_jax.models.config import Remat
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.memory import step_parts
from bert_jax.pretraining.messages import teacher_lines
from bert_jax.pretraining.phase_plan import PhasePlan, WhileCompiling, plan_phase
from bert_jax.pretraining.plan_report import flags, gib, header, phase_lines, total_lines
from bert_jax.pretraining.sections import PhaseConfig
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.training.preflight import PhaseFacts, check, check_traceable
from bert_jax.training.reports import Message, OnReport, discard
from bert_jax.training.sharding import MeshConfig, make_mesh

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# `prepare` packs up to one document for this many tokens of a record.
TOKENS_PER_PIECE = 32

Config = TypeVar("Config", bound="DataclassInstance")
Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """The needs of a run on the devices of a topology.

    phases: each with its compiled step, in running order.
    limit: memory of a device in bytes; None for no limit.
    changes: keys and values of the config with which the run fits; {} if it fits as it is, None if
      no change that was tried is enough.
    """

    devices: Sequence[jax.Device]
    phases: Sequence[PhasePlan]
    limit: int | None
    changes: Changes | None

    @property
    def fits(self) -> bool:
        """Whether the run fits as it is."""
        return all(phase.fits(self.limit) for phase in self.phases)

    @property
    def memory(self) -> int:
        """Bytes that the largest phase needs on a device."""
        return max(phase.memory for phase in self.phases)


def plan(
    config: PretrainConfig,
    topology: str | Sequence[jax.Device],
    *,
    pieces: int = 0,
    memory_bytes: int | None = None,
    tries: int = 6,
    on_report: OnReport | None = None,
    while_compiling: WhileCompiling = nullcontext,
) -> Plan:
    """Compile the steps of a run for a topology, and look for changes if it does not fit.

    Args:
      topology: a name such as "cpu:8" or "v5e:4x4", which must be given before JAX has used a
        device; or the devices of `topology_devices`.
      pieces: documents packed in a row; 0 for the number that `prepare` packs.
      memory_bytes: memory of a device; None for the chip's (a CPU has no limit).
      tries: the largest number of changes to compile if the run does not fit.
      on_report: called with a message about each phase as soon as it is compiled.
      while_compiling: returns a context manager to enter while the step it is given is compiled.

    Raises:
      ValueError: the topology does not exist, or the config does not fit it.
    """
    report = on_report or discard
    devices = topology_devices(topology) if isinstance(topology, str) else list(topology)
    limit = _memory_of(devices[0]) if memory_bytes is None else memory_bytes
    mesh, setup = make_mesh(config.mesh, devices), config.step_setup(devices[0])
    phases = [(name, phase) for name, _, phase in config.ordered_phases()]
    for name, phase in phases:
        check_traceable(step_parts(setup, mesh, name, phase), mesh)
    rows = config.evaluation_batch_size
    check(
        config.model,
        [_facts(name, phase, rows(phase), setup, config.vocabulary) for name, phase in phases],
        mesh,
        accumulation_steps=config.accumulation_steps,
        sentence_pairs=config.sentence_pairs,
        evaluates=config.evaluation.every_steps > 0,
    )
    report(Message("\n".join(header(setup, mesh))))
    setup = setup.with_teacher(devices[0], config.longest_sequence)
    if setup.teacher is not None:
        report(Message("\n".join(teacher_lines(setup, phases, width=10))))

    def compiled(name: str, phase: PhaseConfig, changes: Changes) -> PhasePlan:
        changed = with_changes(config, changes)
        longest = changed.longest_sequence
        return plan_phase(
            changed.step_setup(devices[0]).with_teacher(devices[0], longest),
            make_mesh(changed.mesh, devices),
            name,
            phase,
            pieces or _usual_pieces(phase, joined=config.join_documents),
            joined=config.join_documents,
            while_compiling=while_compiling,
        )

    plans = []
    for name, phase in phases:
        plans.append(compiled(name, phase, {}))
        report(Message("\n" + "\n".join(phase_lines(plans[-1], devices, limit))))
    if all(phase.fits(limit) for phase in plans):
        report(Message("\n" + "\n".join(total_lines(plans, devices))))
        return Plan(devices, plans, limit, changes={})
    assert limit is not None
    failing = sorted((p for p in plans if not p.fits(limit)), key=lambda p: -p.memory)
    candidates = remedies(
        failing[0],
        len(devices),
        limit,
        mesh=config.mesh,
        remat=config.compute.remat,
        accumulation_steps=config.accumulation_steps,
        batch_sizes=[phase.batch_size for _, phase in phases],
    )
    changes = _search(failing, islice(candidates, tries), tries, limit, compiled, report)
    return Plan(devices, plans, limit, changes)


def _search(
    failing: Sequence[PhasePlan],
    candidates: Iterable[Changes],
    tries: int,
    limit: int,
    compiled: Callable[[str, PhaseConfig, Changes], PhasePlan],
    report: OnReport,
) -> Changes | None:
    """Compile candidates, the cheapest first, until every phase fits; None if none is enough."""
    start = f"does not fit: looking for what helps (at most {tries} tries)"
    report(Message(start))
    for changes in candidates:
        for plan in failing:
            result = compiled(plan.name, plan.phase, changes)
            fits = result.fits(limit)
            verdict = "fits" if fits else "does not fit"
            line = f"  {flags(changes)}: {plan.name} {gib(result.memory)}, {verdict}"
            report(Message(line))
            if not fits:
                break
        else:
            report(Message(f"\nit fits with: {flags(changes)}"))
            return changes
    report(
        Message(
            "\nnothing that was tried fits: try more changes (--tries), a larger topology, smaller "
            "phases.*.batch_size, or mesh.tensor"
        )
    )
    return None


def _memory_of(device: jax.Device) -> int | None:
    known = chip(device.device_kind)
    return known.memory_bytes if known else None


def _usual_pieces(phase: PhaseConfig, *, joined: bool) -> int:
    return 1 if joined else max(1, phase.sequence_length // TOKENS_PER_PIECE)


def _facts(
    name: str, phase: PhaseConfig, evaluation_batch_size: int, setup: StepSetup, vocabulary: str
) -> PhaseFacts:
    """Return the facts about a phase for a corpus that satisfies the config."""
    return PhaseFacts(
        name=name,
        corpus=phase.corpus,
        sequence_length=phase.sequence_length,
        batch_size=phase.batch_size,
        evaluation_batch_size=evaluation_batch_size,
        corpus_length=phase.sequence_length,
        corpus_vocab_size=setup.model.vocab_size,
        corpus_documents=phase.batch_size + 1,
        held_out_documents=2,
        corpus_sentences=2 * (phase.batch_size + 1),
        held_out_sentences=4,
        corpus_kind=vocabulary,
        num_records=phase.batch_size,
        held_out_records=1,
        corpus_tokenizer_fingerprint="",
        tokenizer_fingerprint="",
    )


def remedies(
    worst: PhasePlan,
    num_devices: int,
    limit: int,
    *,
    mesh: MeshConfig,
    remat: Remat,
    accumulation_steps: int,
    batch_sizes: Collection[int],
) -> Iterator[Changes]:
    """Yield changes of a config to compile, so that `worst` may fit `limit` bytes a device.

    mesh, remat, accumulation_steps, batch_sizes: as in the config, the last one of all phases.

    Accumulation comes first (the same work in smaller products), then rematerialisation (work
    done twice), then both. State that fills half a device is split over all of them before.
    Accumulation in k parts is left out where even 1/k of what is not state would not fit.
    """
    split = _split_state(mesh, num_devices)
    bases: list[Changes] = [split]
    if split and worst.state_bytes <= limit / 2:
        bases = [{}, split]
    parts = _parts(batch_sizes, num_devices // max(mesh.tensor, 1) * accumulation_steps)
    for base in bases:
        if base:
            yield base
        state = 0 if base else worst.state_bytes
        rest = worst.memory - worst.state_bytes
        enough = [more for more in parts if state + rest / more <= limit]
        accumulated = [{"accumulation_steps": accumulation_steps * more} for more in enough]
        if remat == "layer":
            yield from ({**base, **change} for change in accumulated)
            continue
        if accumulated:
            yield {**base, **accumulated[0]}
        if remat == "none":
            yield {**base, "compute.remat": "dots"}
        layer = {**base, "compute.remat": "layer"}
        yield layer
        for more in parts:
            yield {**layer, "accumulation_steps": accumulation_steps * more}


def _split_state(mesh: MeshConfig, num_devices: int) -> Changes:
    """Return FSDP over all devices that the tensor axis leaves; {} if the mesh has it already."""
    tensor = mesh.tensor
    fsdp = num_devices // tensor if tensor > 0 else 1
    if mesh.fsdp in (fsdp, -1):
        return {}
    changes: dict[str, Any] = {"mesh.fsdp": fsdp}
    if mesh.data not in (1, -1):
        changes["mesh.data"] = 1
    return changes


def _parts(batch_sizes: Collection[int], extent: int) -> list[int]:
    """Return 2, 4, 8, ...: the numbers of further parts that all batches can be divided into.

    extent: the number of parts a batch has now, over devices and accumulation steps.
    """
    return [
        more
        for more in (2**n for n in range(1, 16))
        if all(size % (extent * more) == 0 for size in batch_sizes)
    ]


def with_changes(config: Config, changes: Changes) -> Config:
    """Return a config dataclass with changes by dotted name, at most one section deep."""
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        if section:
            inner = dataclasses.replace(getattr(config, section), **{key: value})
            config = dataclasses.replace(config, **{section: inner})
        else:
            config = dataclasses.replace(config, **{key: value})
    return config
