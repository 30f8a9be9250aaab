"""Pretrain a model from prepared corpora, or go on exactly where a run stopped.

    bert-jax pretrain --config configs/pretrain/tiny.py --config.work_dir=runs/mine

The same command starts a run, continues it after a kill, and does nothing once it is finished.
SIGTERM saves a checkpoint at the next step and exits with code 143; so do SIGHUP (129) and Ctrl-C
(130). A second Ctrl-C exits immediately, or after a save that has already begun. --from-step N
resumes from an earlier checkpoint, such as the last one before the loss diverged.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import jax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bert_jax.analysis.chips import peak_flops
from bert_jax.cli.arguments import add_distributed_argument, add_from_step_argument
from bert_jax.cli.config import add_config_argument
from bert_jax.cli.output import console_report
from bert_jax.conversion import to_plain
from bert_jax.corpus.manifest import MANIFEST, TOKENIZER
from bert_jax.files import temporary_beside, writing
from bert_jax.models.config import ComputeConfig
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.messages import conclude, describe, few_pairs, leaks, surplus_rows
from bert_jax.pretraining.phases import PhaseCorpus, facts, identity, make_phase, open_corpora
from bert_jax.pretraining.plan import check_pretraining
from bert_jax.pretraining.start import check_source, check_work_dir, first_state, forget_provenance
from bert_jax.pretraining.teacher import IDENTITY as TEACHERS
from bert_jax.pretraining.teacher import (
    open_teacher,
    step_flops,
    steps_of,
    tasks_of,
    teachers_identity,
)
from bert_jax.recipes.load import load_config
from bert_jax.runs.outputs import check_work_dir_kind
from bert_jax.runs.ownership import keep_config, only_writer
from bert_jax.runs.runtime import versions
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, PAIRS, TOKENIZER_NAME, write_model
from bert_jax.training import distributed
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import identity_of, recover
from bert_jax.training.distributed import StopRequest
from bert_jax.training.loop import Intervals, StepProfiler, Trainer
from bert_jax.training.optimizer import LearningRates, make_optimizer
from bert_jax.training.planning import state_bytes
from bert_jax.training.preflight import check
from bert_jax.training.reporting import Reporter
from bert_jax.training.sharding import make_mesh

PROFILE_NAME = "profile"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pretrain`."""
    add_config_argument(parser)
    add_distributed_argument(parser)
    add_from_step_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Train to the end of the last phase, or until told to stop."""
    config = load_config(args.config, args.config_overrides, kind="pretrain")
    check_work_dir_kind(Path(config.work_dir))
    distributed.join(force=args.distributed)
    rates = LearningRates(config.optimizer, config.total_steps)
    corpora = open_corpora(config)
    mesh = make_mesh(config.mesh)
    check(
        config.model,
        [facts(config, corpus) for corpus in corpora],
        mesh,
        accumulation_steps=config.accumulation_steps,
        sentence_pairs=config.sentence_pairs,
        vocabulary=config.vocabulary,
        evaluates=config.evaluation.every_steps > 0,
    )
    check_pretraining(config, mesh)
    distributed.check_same(
        {
            "the config": to_plain(config),
            "the corpora": identity(config, corpora),
            "the versions": versions(),
            "--from-step": args.from_step,
        }
    )
    with ExitStack() as closing:
        # Left last: the save under way is finished before a signal may kill again.
        stop = closing.enter_context(StopRequest())
        if jax.process_index() == 0:
            closing.enter_context(only_writer(Path(config.work_dir)))
        checkpoints = Path(config.work_dir) / CHECKPOINTS_NAME
        recovery = recover(checkpoints, identity(config, corpora), args.from_step)
        print(*(f"{line}\n" for line in recovery.lines), sep="", end="", flush=True)
        if recovery.step is None:
            check_source(config, corpora)
        finished = _train(config, rates, corpora, mesh, recovery.step, stop, closing)
    if finished and jax.process_index() == 0:
        print("\n".join(conclude(config, corpora[-1])))
    # JAX gives the first process five minutes after the others have left; counting words over a
    # slow network takes longer.
    multihost_utils.sync_global_devices("concluded")
    return 0 if finished else stop.exit_code


def _train(
    config: PretrainConfig,
    rates: LearningRates,
    corpora: list[PhaseCorpus],
    mesh: Mesh,
    verified: int | None,
    stop: StopRequest,
    closing: ExitStack,
) -> bool:
    """Run the phases; return False if a signal stopped them before the end.

    Args:
      verified: the step of the checkpoint to resume from, as `recover` returned it.
    """
    work_dir = Path(config.work_dir)
    compute = config.compute.resolve(jax.devices()[0], config.model)
    saved = verified or 0
    kept_identity = identity_of(work_dir / CHECKPOINTS_NAME, saved) if saved else {}
    check_work_dir(config, corpora, begun=saved > 0)
    finished = saved >= config.total_steps
    kept = kept_identity.get(TEACHERS, {})
    teacher = None if finished else open_teacher(config, corpora, mesh, kept)
    known = None if teacher is None else teacher.known
    task, learned = tasks_of(config, compute, known)
    optimizer = make_optimizer(config.optimizer)
    shared = identity(config, corpora) | teachers_identity(config.distillation, teacher, kept)
    intervals = Intervals(
        config.reporting.every_steps,
        config.evaluation.every_steps,
        config.checkpoint.every_steps,
        save_evaluated=config.checkpoint.keep_best > 0,
    )
    checkpointer = closing.enter_context(
        Checkpointer(
            work_dir / CHECKPOINTS_NAME,
            config.checkpoint,
            shared,
            intervals.evaluates,
            verified=verified,
        )
    )
    if saved:
        checkpointer.check_identity()
    first = jax.process_index() == 0
    if first:
        held = state_bytes(task.definition, optimizer, mesh)
        print("\n".join(describe(config, task, compute, mesh, corpora, held)))
        if not saved and not config.init_from:  # else the size is not to be chosen any more
            for line in surplus_rows(corpora[0].tokenizer.vocab_size, config.model.vocab_size):
                print(line)
        for line in (*few_pairs(config, corpora), *leaks(corpora)):
            print(line)
        if known is not None:
            print("\n".join(known.lines(config)))
    if finished:
        if first:
            print(f"start      this run's checkpoint of step {saved:,} (finished: nothing to do)")
            write_provenance(work_dir, config, corpora, saved)
        return True
    state, origin = first_state(config, task, optimizer, mesh, checkpointer, teacher)
    if first:
        print(f"start      {origin}", flush=True)
        if not saved:
            forget_provenance(work_dir, corpora[0].tokenizer)
        write_provenance(work_dir, config, corpora, saved)
    costs = [
        step_flops(config, corpus.config, corpus.train.manifest.max_pieces, known)
        for corpus in corpora
    ]
    reporter = None
    if first:
        steps = [corpus.config.num_steps for corpus in corpora]
        planned = list(zip(steps, costs, strict=True))
        reporter = _reporter(config, planned, saved, mesh, compute, closing)
    train_step, evaluation_step = steps_of(config, learned, optimizer, mesh, teacher)
    phases = [
        make_phase(config, corpus, mesh, evaluation_step, flops, stop.while_waiting)
        for corpus, flops in zip(corpora, costs, strict=True)
    ]
    trainer = Trainer(
        mesh=mesh,
        train_step=train_step,
        seed=config.seed,
        learning_rates=rates,
        checkpointer=checkpointer,
        reporter=reporter,
        intervals=intervals,
        stop=stop,
        profiler=closing.enter_context(
            StepProfiler(work_dir / PROFILE_NAME, config.reporting.profile_steps)
        ),
    )
    state, finished = trainer.run(state, phases)
    checkpointer.close()  # raises the error of a failed save before the line below is printed
    if first and not finished:
        with suppress(BrokenPipeError):  # a `tee` that heard the same Ctrl-C; the exit code tells
            print(f"stopped: saved step {int(state.step):,}; the same command resumes")
    return finished


def _reporter(
    config: PretrainConfig,
    planned: list[tuple[int, int]],
    start: int,
    mesh: Mesh,
    compute: ComputeConfig,
    closing: ExitStack,
) -> Reporter:
    peak = peak_flops(mesh.devices.flat[0].device_kind, compute.dtype)
    reporter = Reporter(
        config.work_dir,
        planned,
        start_step=start,
        peak_flops=peak * mesh.size if peak else None,
        tensorboard=config.reporting.tensorboard,
        on_report=console_report,
    )
    closing.callback(reporter.close)
    return reporter


def write_provenance(
    work_dir: Path, config: PretrainConfig, corpora: Sequence[PhaseCorpus], saved: int
) -> None:
    """Puts config, tokenizer and manifests beside the checkpoints: a work directory is whole."""
    origin = {"command": "bert-jax pretrain", PAIRS: config.sentence_pairs}
    # First: it says whose the rest is.
    write_model(config.model_config(), origin, work_dir, tokenizer=corpora[0].tokenizer)
    for line in keep_config(config, work_dir, saved, finished=saved >= config.total_steps):
        print(line, flush=True)
    _copy(corpora[0].train.directory / TOKENIZER, work_dir / TOKENIZER_NAME)
    for corpus in corpora:
        source = corpus.train.directory / MANIFEST
        _copy(source, work_dir / f"manifest-{corpus.name}.json")


def _copy(source: Path, target: Path) -> None:
    """Copies a file or directory under a temporary name, then renames it; once is enough.

    A run goes on only with the corpora it began with, so what is there is what would be copied.
    """
    if target.exists():
        return
    with writing(target), temporary_beside(target, directory=source.is_dir()) as temporary:
        if source.is_dir():
            shutil.copytree(source, temporary, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, temporary)
        temporary.rename(target)
