"""What `bert-jax plan` does once its devices are known: compile, report, look for what helps."""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
import time
from collections.abc import Iterator

import jax

from bert_jax.analysis.chips import GIB, chip
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.pretraining.phases import random_batch
from bert_jax.pretraining.plan import (
    PhasePlan,
    flags,
    gib,
    header,
    phase_lines,
    pretraining_parts,
    remedies,
    total_lines,
    with_changes,
)
from bert_jax.pretraining.teacher import known_teacher, step_flops, tasks_of
from bert_jax.recipes.load import load_config
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.planning import OutOfMemory, compile_step, state_bytes
from bert_jax.training.preflight import PhaseFacts, check, check_traceable
from bert_jax.training.sharding import make_mesh

# `prepare` packs up to one document for this many tokens of a record.
TOKENS_PER_PIECE = 32
ON_A_SCREEN, ELSEWHERE = 1.0, 60.0  # seconds between two signs of life


def plan_run(args: argparse.Namespace, devices: list[jax.Device]) -> int:
    """Plans every phase and prints the report; 1 if the run does not fit, else 0."""
    config = load_config(args.config, args.config_overrides, kind="pretrain")
    known = chip(devices[0].device_kind)
    limit = known.memory_bytes if known else None
    if args.hbm is not None:
        limit = int(args.hbm * GIB)
    _check(config, devices)
    print("\n".join(header(config, devices)), flush=True)
    teacher = known_teacher(config, devices[0])
    if teacher is not None:
        print("\n".join(teacher.lines(config, width=10)))
    plans = []
    for name, _, phase in config.ordered_phases():
        plans.append(plan_phase(config, name, phase, devices, args.pieces))
        print("\n" + "\n".join(phase_lines(plans[-1], devices, limit)), flush=True)
    if all(plan.fits(limit) for plan in plans):
        print("\n" + "\n".join(total_lines(plans, devices)))
        return 0
    assert limit is not None
    print("\n" + _search(config, plans, devices, args, limit))
    return 1


def plan_phase(
    config: PretrainConfig, name: str, phase: PhaseConfig, devices: list[jax.Device], pieces: int
) -> PhasePlan:
    """Compiles the train step of one phase."""
    mesh = make_mesh(config.mesh, devices)
    compute = config.compute.resolve(devices[0], config.model)
    known = known_teacher(config, devices[0])
    task, learned = tasks_of(config, compute, known)
    optimizer = make_optimizer(config.optimizer)
    usual = 1 if config.join_documents else max(1, phase.sequence_length // TOKENS_PER_PIECE)
    pieces = pieces or usual
    # One row tells the shapes of all: the batch itself is never made.
    row = random_batch(config, phase, pieces, rows=1)
    batch = {
        field: jax.ShapeDtypeStruct((phase.batch_size, *array.shape[1:]), array.dtype)
        for field, array in row.items()
    }
    step = refused = None
    began = time.perf_counter()
    with _signs_of_life(f"{name} ({phase.batch_size} x {phase.sequence_length})"):
        try:
            step = compile_step(
                learned,
                optimizer,
                mesh,
                batch,
                accumulation_steps=config.accumulation_steps,
                teacher=None if known is None else known.teacher,
            )
        except OutOfMemory as error:
            refused = error
    return PhasePlan(
        name=name,
        phase=phase,
        pieces=pieces,
        dtype=compute.dtype,
        state_bytes=state_bytes(task.definition, optimizer, mesh),
        model_flops=step_flops(config, phase, pieces, known),
        compile_seconds=time.perf_counter() - began,
        step=step,
        refused=refused,
    )


def _check(config: PretrainConfig, devices: list[jax.Device]) -> None:
    """The preflight of `pretrain`, for corpora such as the config asks for."""
    facts = [
        PhaseFacts(
            name=name,
            corpus=phase.corpus,
            sequence_length=phase.sequence_length,
            batch_size=phase.batch_size,
            evaluation_batch_size=config.evaluation_batch_size(phase),
            corpus_length=phase.sequence_length,
            corpus_vocab_size=config.model.vocab_size,
            corpus_documents=phase.batch_size + 1,
            held_out_documents=2,
            corpus_sentences=2 * (phase.batch_size + 1),
            held_out_sentences=4,
            corpus_kind=config.vocabulary,
            num_records=phase.batch_size,
            held_out_records=1,
            corpus_tokenizer_fingerprint="",
            tokenizer_fingerprint="",
        )
        for name, _, phase in config.ordered_phases()
    ]
    mesh = make_mesh(config.mesh, devices)
    compute = config.compute.resolve(devices[0], config.model)
    for name, _, phase in config.ordered_phases():
        check_traceable(pretraining_parts(config, mesh, compute, name, phase), mesh)
    check(
        config.model,
        facts,
        mesh,
        accumulation_steps=config.accumulation_steps,
        sentence_pairs=config.sentence_pairs,
        evaluates=config.evaluation.every_steps > 0,
    )


def _search(
    config: PretrainConfig,
    plans: list[PhasePlan],
    devices: list[jax.Device],
    args: argparse.Namespace,
    limit: int,
) -> str:
    """Compiles changes, the cheapest first, until every phase fits; says which flags to type."""
    failing = sorted((p for p in plans if not p.fits(limit)), key=lambda p: -p.memory)
    print(f"does not fit: looking for what helps (at most {args.tries} tries)", flush=True)
    found = remedies(config, failing[0], len(devices), limit)
    for changes, _ in zip(found, range(args.tries), strict=False):
        changed = with_changes(config, changes)
        for plan in failing:
            result = plan_phase(changed, plan.name, plan.phase, devices, args.pieces)
            verdict = "fits" if result.fits(limit) else "does not fit"
            print(f"  {flags(changes)}: {plan.name} {gib(result.memory)}, {verdict}", flush=True)
            if not result.fits(limit):
                break
        else:
            return f"it fits with: {flags(changes)}"
    return (
        "nothing that was tried fits: try more changes (--tries), a larger topology, smaller "
        "phases.*.batch_size, or mesh.tensor"
    )


@contextlib.contextmanager
def _signs_of_life(what: str) -> Iterator[None]:
    """Says on stderr what is compiled and for how long."""
    began = time.perf_counter()
    screen = sys.stderr.isatty()
    done = threading.Event()

    def show(doing: str, end: str) -> None:
        seconds = time.perf_counter() - began
        print(f"{doing} {what}: {seconds:.0f} s", end=end, file=sys.stderr, flush=True)

    def tick() -> None:
        while not done.wait(ON_A_SCREEN if screen else ELSEWHERE):
            show("compiling", "\r" if screen else "\n")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        show("compiled ", "\n")
