"""Plan a run for other hardware: compile its steps, and find config changes that make it fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice

import jax

from bert_jax.analysis.chips import chip
from bert_jax.analysis.estimates import explain
from bert_jax.analysis.topology import topology_devices
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.messages import teacher_lines
from bert_jax.pretraining.phase_config import PhaseConfig
from bert_jax.pretraining.phase_plan import PhasePlan, WhileCompiling, plan_phase, total_seconds
from bert_jax.pretraining.plan_text import gib, header, phase_lines, total_lines
from bert_jax.pretraining.remedies import Changes, flags, remedies, with_changes
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.training.memory import check_traceable
from bert_jax.training.preflight import PhaseFacts, check
from bert_jax.training.reports import Message, OnReport, discard
from bert_jax.training.sharding import MeshConfig, make_mesh
from bert_jax.validation import check_config

# `prepare` packs at most N / TOKENS_PER_PIECE documents into a record of N tokens.
TOKENS_PER_PIECE = 32


@dataclass(frozen=True)
class Plan:
    """The memory and time that a run needs on the devices of a topology.

    Attributes:
      devices: the devices of the topology.
      phases: the phases with their compiled steps, in running order.
      limit: the memory of each device in bytes; None for no limit.
      changes: a dict from config keys to new values that would make the run fit; {} if it fits
        unchanged, None if none of the changes that were tried would make it fit.
    """

    devices: Sequence[jax.Device]
    phases: Sequence[PhasePlan]
    limit: int | None
    changes: Changes | None

    @property
    def fits(self) -> bool:
        """Whether the run fits without changes."""
        return all(phase.fits(self.limit) for phase in self.phases)

    @property
    def memory(self) -> int:
        """The memory that the largest phase needs on each device, in bytes."""
        return max(phase.memory for phase in self.phases)

    @property
    def seconds(self) -> float | None:
        """The estimated time of all steps, in seconds; None if the compiler provides no estimate.

        `PhasePlan.estimate` contains the estimate for one step, broken down by kind of work.
        """
        return total_seconds(self.phases)

    @property
    def chip_hours(self) -> float | None:
        """The estimated time in hours times the number of devices, or None without an estimate."""
        return None if self.seconds is None else self.seconds / 3600 * len(self.devices)

    def explain(self, count: int = 10) -> str:
        """Return a table of each phase's most expensive instructions with their source lines.

        Args:
          count: the number of instructions to list for each phase.
        """
        kind = self.devices[0].device_kind
        unknown = [f"most expensive instructions: unknown, without estimates for {kind}"]
        lines = []
        for phase in self.phases:
            body = explain(phase.estimate, count) if phase.estimate else unknown
            lines += ["", *(f"{phase.name}    {body[0]}", *body[1:])]
        return "\n".join(lines)


def plan(
    config: PretrainConfig,
    topology: str | Sequence[jax.Device],
    *,
    documents_per_row: int = 0,
    memory_bytes: int | None = None,
    tries: int = 6,
    price: float | None = None,
    on_report: OnReport | None = None,
    while_compiling: WhileCompiling = nullcontext,
) -> Plan:
    """Compile a run's steps for a topology, and look for remedies if the run does not fit.

    Args:
      config: the run's config. Its corpora and work directory are not read.
      topology: the name of a topology, such as "cpu:8" or "v5e:4x4", or a list of devices from
        `topology_devices`. A name works only if JAX has not used a device yet.
      documents_per_row: the number of documents packed into a row; 0 means as many as `prepare`
        would pack into it.
      memory_bytes: the memory of each device; defaults to the chip's memory (no limit on CPUs).
      tries: the maximum number of changes to try if the run does not fit.
      price: the price of a chip per hour in USD, to report the cost of the run; None to report no
        cost.
      on_report: called with a message about each phase as soon as it is compiled.
      while_compiling: see `WhileCompiling`.

    Raises:
      ValueError: the topology does not exist, or the config does not fit it.
    """
    check_config(config, PretrainConfig)
    report = on_report or discard
    devices = topology_devices(topology) if isinstance(topology, str) else list(topology)
    limit = _memory_of(devices[0]) if memory_bytes is None else memory_bytes
    compiler = _PhaseCompiler(
        config.step_setup(devices[0]),
        config.mesh,
        devices,
        config.longest_sequence,
        documents_per_row,
        config.join_documents,
        while_compiling,
    )
    phases = [(name, phase) for name, _, phase in config.ordered_phases()]
    batch_sizes = [config.evaluation_batch_size(phase) for _, phase in phases]
    compiler.check(
        phases, batch_sizes, config.vocabulary, evaluates=config.evaluation.every_steps > 0
    )
    compiler.describe(phases, report)
    plans = []
    for name, phase in phases:
        plans.append(compiler.compile(name, phase, {}))
        report(Message("\n" + "\n".join(phase_lines(plans[-1], devices, limit))))
    if all(phase.fits(limit) for phase in plans):
        report(Message("\n" + "\n".join(total_lines(plans, devices, price))))
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
        batch_sizes=[size for _, phase in phases for size in phase.batch_sizes],
    )
    changes = _search(failing, islice(candidates, tries), tries, limit, compiler.compile, report)
    return Plan(devices, plans, limit, changes)


@dataclass(frozen=True)
class _ChangeableSettings:
    """The settings that `remedies` may change, named as in the config."""

    mesh: MeshConfig
    compute: ComputeConfig
    accumulation_steps: int


@dataclass(frozen=True)
class _PhaseCompiler:
    """A compiler for a run's phases on the devices of a topology.

    Attributes:
      setup: the train-step settings, without a teacher.
      mesh: the number of devices on each mesh axis.
      devices: the devices of the topology.
      longest_sequence: the longest sequence length of any phase.
      documents_per_row: the number of documents per row; 0 means as many as `prepare` would pack
        into it.
      joined: whether the documents in a row attend to each other.
      while_compiling: see `WhileCompiling`.
    """

    setup: StepSetup
    mesh: MeshConfig
    devices: Sequence[jax.Device]
    longest_sequence: int
    documents_per_row: int
    joined: bool
    while_compiling: WhileCompiling

    def check(
        self,
        phases: Sequence[tuple[str, PhaseConfig]],
        evaluation_batch_sizes: Sequence[int],
        vocabulary: str,
        *,
        evaluates: bool,
    ) -> None:
        """Reject a run that cannot work on these devices, assuming its corpora match the config."""
        mesh = make_mesh(self.mesh, self.devices)
        for name, phase in phases:
            check_traceable(self.setup.memory_parts(mesh, name, phase), mesh)
        facts = [
            _facts(name, phase, batch_size, self.setup.model.vocab_size, vocabulary)
            for (name, phase), batch_size in zip(phases, evaluation_batch_sizes, strict=True)
        ]
        check(
            self.setup.model,
            facts,
            mesh,
            accumulation_steps=self.setup.accumulation_steps,
            sentence_pairs=self.setup.sentence_pairs,
            evaluates=evaluates,
        )

    def describe(self, phases: Sequence[tuple[str, PhaseConfig]], report: OnReport) -> None:
        """Report the model, the devices and the teacher."""
        mesh = make_mesh(self.mesh, self.devices)
        report(Message("\n".join(header(self.setup, mesh, self.longest_sequence))))
        setup = self.setup.with_teacher(self.devices[0], self.longest_sequence)
        if setup.teacher is not None:
            report(Message("\n".join(teacher_lines(setup, phases, width=10))))

    def compile(self, name: str, phase: PhaseConfig, changes: Changes) -> PhasePlan:
        """Compile a phase's train step with `changes` applied to the settings."""
        setup, device = self.setup, self.devices[0]
        settings = with_changes(
            _ChangeableSettings(self.mesh, setup.requested_compute, setup.accumulation_steps),
            changes,
        )
        changed = dataclasses.replace(
            setup,
            requested_compute=settings.compute,
            compute=settings.compute.resolve(device, setup.model, self.longest_sequence),
            accumulation_steps=settings.accumulation_steps,
        ).for_phase(phase)
        return plan_phase(
            changed.with_teacher(device, self.longest_sequence),
            make_mesh(settings.mesh, self.devices),
            name,
            phase,
            self.documents_per_row or _usual_documents_per_row(phase, joined=self.joined),
            joined=self.joined,
            while_compiling=self.while_compiling,
        )


def _search(
    failing: Sequence[PhasePlan],
    candidates: Iterable[Changes],
    tries: int,
    limit: int,
    compile_phase: Callable[[str, PhaseConfig, Changes], PhasePlan],
    report: OnReport,
) -> Changes | None:
    """Return the first candidate that makes every phase compile and fit, or None."""
    report(Message(f"the run does not fit: trying at most {tries} changes"))
    for changes in candidates:
        for plan in failing:
            result = compile_phase(plan.name, plan.phase, changes)
            fits = result.fits(limit)
            verdict = "fits" if fits else "does not fit"
            line = f"  {flags(changes)}: {plan.name} {gib(result.memory)}, {verdict}"
            report(Message(line))
            if not fits:
                break
        else:
            report(Message(f"\nthe run fits with: {flags(changes)}"))
            return changes
    report(
        Message(
            "\nthe run does not fit with any of these changes: try more changes (--tries), a "
            "larger topology, a smaller phases.*.batch_size, or mesh.tensor"
        )
    )
    return None


def _memory_of(device: jax.Device) -> int | None:
    figures = chip(device.device_kind)
    return figures.memory_bytes if figures else None


def _usual_documents_per_row(phase: PhaseConfig, *, joined: bool) -> int:
    return 1 if joined else max(1, phase.sequence_length // TOKENS_PER_PIECE)


def _facts(
    name: str, phase: PhaseConfig, evaluation_batch_size: int, vocab_size: int, vocabulary: str
) -> PhaseFacts:
    """Describe a phase for the preflight check, assuming that its corpus matches the config."""
    return PhaseFacts(
        name=name,
        corpus=phase.corpus,
        sequence_length=phase.sequence_length,
        batch_size=phase.batch_size,
        warmup_batch_sizes=phase.warmup_batch_sizes,
        evaluation_batch_size=evaluation_batch_size,
        corpus_length=phase.sequence_length,
        corpus_vocab_size=vocab_size,
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
