"""Pretrain a model from prepared corpora, or go on exactly where a run stopped.

    bert-jax pretrain --config configs/pretrain/tiny.py --config.work_dir=runs/mine

The same command starts a run, continues it after a kill, and does nothing once it is finished.
SIGTERM saves a checkpoint at the next step and leaves with exit code 143; so does Ctrl-C, with 130,
and a second Ctrl-C leaves earlier, after a save that has already begun.
"""

from __future__ import annotations

import argparse
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path

import jax
import optax
from jax.sharding import Mesh

from bert_jax.cli.config import add_config_argument, load_config, write_resolved
from bert_jax.cli.phases import PhaseCorpus, facts, identity, make_phase, open_corpora
from bert_jax.cli.run_config import PretrainConfig
from bert_jax.cli.run_messages import conclude, describe, surplus_rows
from bert_jax.cli.work_dir_lock import only_writer
from bert_jax.data.manifest import MANIFEST, TOKENIZER
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.inference.work_dir import (
    CHECKPOINTS_NAME,
    TOKENIZER_NAME,
    computed_otherwise,
    read_model,
    write_model,
)
from bert_jax.models.config import ComputeConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training import distributed
from bert_jax.training.checkpoint import Checkpointer, load_parameters
from bert_jax.training.interruption import StopRequest
from bert_jax.training.loop import Intervals, Trainer
from bert_jax.training.optimizer import learning_rates, make_optimizer
from bert_jax.training.peaks import peak_flops
from bert_jax.training.planning import state_bytes
from bert_jax.training.preflight import check
from bert_jax.training.reporting import Reporter
from bert_jax.training.sharding import make_mesh, parameter_shardings
from bert_jax.training.state import TrainState, abstract_state, init_state
from bert_jax.training.step import make_evaluation_step, make_train_step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pretrain`."""
    add_config_argument(parser)
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="join the other hosts of a Cloud TPU pod (Slurm, Open MPI and launch/local.sh are "
        "recognised without it)",
    )


def run(args: argparse.Namespace) -> int:
    """Train to the end of the last phase, or until told to stop."""
    config = load_config(PretrainConfig, args.config, args.config_overrides)
    distributed.join(force=args.distributed)
    corpora = open_corpora(config)
    mesh = make_mesh(config.mesh)
    check(
        config.model,
        [facts(config, corpus) for corpus in corpora],
        mesh,
        accumulation_steps=config.accumulation_steps,
        next_sentence=config.next_sentence,
    )
    with ExitStack() as closing:
        # Left last: the save under way is finished before a signal may kill again.
        stop = closing.enter_context(StopRequest())
        if jax.process_index() == 0:
            closing.enter_context(only_writer(Path(config.work_dir)))
        finished = _train(config, corpora, mesh, stop, closing)
    if finished and jax.process_index() == 0:
        print("\n".join(conclude(Path(config.work_dir), corpora[-1])))
    return 0 if finished else stop.exit_code


def _train(
    config: PretrainConfig,
    corpora: list[PhaseCorpus],
    mesh: Mesh,
    stop: StopRequest,
    closing: ExitStack,
) -> bool:
    """Runs the phases; False when told to stop before their end."""
    work_dir = Path(config.work_dir)
    compute = config.compute.resolve(jax.default_backend(), config.model)
    task = Pretraining(config.model, compute, next_sentence=config.next_sentence)
    rates = learning_rates(config.optimizer, config.total_steps)
    optimizer = make_optimizer(config.optimizer)
    evaluation_step = make_evaluation_step(task, mesh)
    phases = [make_phase(config, corpus, mesh, evaluation_step) for corpus in corpora]
    checkpointer = closing.enter_context(
        Checkpointer(work_dir / CHECKPOINTS_NAME, config.checkpoint, identity(config, corpora))
    )
    state, origin = _first_state(config, corpora, task, optimizer, mesh, checkpointer)
    start = int(state.step)
    finished = start >= config.total_steps
    first = jax.process_index() == 0
    if first:
        held = state_bytes(task.definition, optimizer, mesh)
        end = " (finished: nothing to do)" if finished else ""
        print("\n".join(describe(config, task, compute, mesh, corpora, held)))
        if start == 0 and not config.init_from:  # else the size is not to be chosen any more
            for line in surplus_rows(corpora[0].tokenizer.vocab_size, config.model.vocab_size):
                print(line)
        print(f"start      {origin}{end}", flush=True)
        if start == 0:
            _forget_provenance(work_dir)
        _write_provenance(work_dir, config, corpora)
    if finished:
        return True
    reporter = _reporter(config, work_dir, start, mesh, compute, closing) if first else None
    trainer = Trainer(
        mesh=mesh,
        train_step=make_train_step(
            task, optimizer, mesh, accumulation_steps=config.accumulation_steps
        ),
        seed=config.seed,
        learning_rates=rates,
        checkpointer=checkpointer,
        reporter=reporter,
        intervals=Intervals(
            config.reporting.every_steps,
            config.evaluation.every_steps,
            config.checkpoint.every_steps,
            save_evaluated=config.checkpoint.keep_best > 0,
        ),
        stop=stop,
    )
    state, finished = trainer.run(state, phases)
    if first and not finished:
        with suppress(BrokenPipeError):  # a `tee` that heard the same Ctrl-C; the exit code tells
            print(f"told to stop: saved after step {int(state.step):,}; the same command goes on")
    return finished


def _first_state(
    config: PretrainConfig,
    corpora: list[PhaseCorpus],
    task: Pretraining,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    checkpointer: Checkpointer,
) -> tuple[TrainState, str]:
    """The state to start from and where it comes from, in this order.

    This run's newest checkpoint; else random, with the parameters of `init_from` if it is set.

    Raises:
      ValueError: a checkpoint does not fit the run, or `init_from` has another vocabulary or model.
    """
    step = checkpointer.latest_step()
    if step is not None:
        abstract = abstract_state(task.definition, optimizer, mesh)
        return checkpointer.restore(abstract), f"this run's checkpoint of step {step:,}"
    state = init_state(task.definition, optimizer, mesh, config.seed)
    if not config.init_from:
        return state, f"random parameters (seed {config.seed})"
    theirs = Tokenizer.load(Path(config.init_from) / TOKENIZER_NAME)
    if theirs.fingerprint != corpora[0].tokenizer.fingerprint:
        raise ValueError(
            f"init_from={config.init_from} was trained with another tokenizer than "
            f"{corpora[0].config.corpus} was prepared with: its token embeddings would mean other "
            f"tokens. Prepare the corpus with --tokenizer {config.init_from}/{TOKENIZER_NAME}"
        )
    lines = computed_otherwise(read_model(Path(config.init_from))[0].encoder, config.model)
    if lines:
        raise ValueError(
            f"init_from={config.init_from} computes other things with its parameters than this "
            "config's model (there -> here):\n  " + "\n  ".join(lines) + "\n"
            "Set model.* as there"
        )
    shardings = parameter_shardings(task.definition.shapes, task.definition.logical_axes, mesh)
    source = Path(config.init_from) / CHECKPOINTS_NAME
    params = load_parameters(source, task.definition, shardings)
    return TrainState(state.step, params, state.opt_state), f"the parameters of {config.init_from}"


def _reporter(
    config: PretrainConfig,
    work_dir: Path,
    start: int,
    mesh: Mesh,
    compute: ComputeConfig,
    closing: ExitStack,
) -> Reporter:
    peak = peak_flops(mesh.devices.flat[0].device_kind, compute.dtype)
    reporter = Reporter(
        work_dir,
        config.total_steps,
        start_step=start,
        peak_flops=peak * mesh.size if peak else None,
        tensorboard=config.reporting.tensorboard,
    )
    closing.callback(reporter.close)
    return reporter


def _forget_provenance(work_dir: Path) -> None:
    """Removes what a start that was killed before its first checkpoint left of its corpora.

    Nothing binds the next start to them; from the first checkpoint on, the run's identity does.
    """
    shutil.rmtree(work_dir / TOKENIZER_NAME, ignore_errors=True)
    for manifest in work_dir.glob("manifest-*.json"):
        manifest.unlink()


def _write_provenance(work_dir: Path, config: PretrainConfig, corpora: list[PhaseCorpus]) -> None:
    """Puts config, tokenizer and manifests beside the checkpoints: a work directory is whole."""
    write_resolved(config, work_dir)
    write_model(config.model_config(), {"command": "bert-jax pretrain"}, work_dir)
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
    temporary = target.with_name(target.name + ".tmp")
    if source.is_dir():
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source, temporary)
    else:
        shutil.copyfile(source, temporary)
    temporary.rename(target)
