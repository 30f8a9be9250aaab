"""What a fine-tuning run begins with: a model that fits the task, and its first parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh

from bert_jax.cli.finetune_source import Source, source_identity
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.unknown_tokens import complaint, count_unknown
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.scoring import LOSS
from bert_jax.finetuning.task_data import TaskData
from bert_jax.inference.work_dir import CHECKPOINTS_NAME, read_sentence_embedding
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import Parameters
from bert_jax.sentence_embedding import SETTINGS_DROPPED
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_config import CheckpointConfig
from bert_jax.training.checkpoint_files import steps_in
from bert_jax.training.distributed import agreed
from bert_jax.training.early_stopping import EarlyStopping
from bert_jax.training.sharding import batch_extent
from bert_jax.training.state import TrainState, abstract_state, parameter_key

if TYPE_CHECKING:
    from bert_jax.cli.finetune_run import FinetuneRun

Evaluation = Mapping[str, float]


def encoder_of(config: FinetuneConfig, source: Source) -> EncoderConfig:
    """The encoder as the run trains it.

    Raises:
      ValueError: the run wants longer sequences than it has positions for.
    """
    encoder = source.model.encoder
    if config.max_length > encoder.max_positions:
        raise ValueError(
            f"max_length={config.max_length}, but the model of {config.init_from} has "
            f"{encoder.max_positions} positions: set max_length to that at most"
        )
    if config.dropout != -1.0:
        encoder = dataclasses.replace(
            encoder, hidden_dropout=config.dropout, attention_dropout=config.dropout
        )
    return encoder


def check_mesh(config: FinetuneConfig, mesh: Mesh) -> None:
    """Raises ValueError if a batch cannot be split over the devices."""
    parts = batch_extent(mesh)
    for name, size, by in (
        ("batch_size", config.batch_size, parts * config.accumulation_steps),
        ("evaluation_batch_size", config.rows_evaluated, parts),
    ):
        if size % by:
            raise ValueError(
                f"{name}={size} is not divisible by {by} (parts of the mesh, times "
                f"accumulation_steps in training). Set it to a multiple of {by}"
            )


def check_data(config: FinetuneConfig, data: TaskData, tokenizer: Tokenizer) -> None:
    """Raise ValueError if the task lacks the best metric or a set has too many unknown tokens."""
    check_best_metric(config, data)
    for name, features in data.features.items():
        counts = count_unknown(features.sequences.token_ids, tokenizer)
        if counts.too_many and not config.allow_unknown:
            problem = complaint(tokenizer, counts.unknown, counts.tokens, where=f" of {name}")
            raise ValueError(f"{problem} To train anyway, set allow_unknown=True.")


def check_best_metric(config: FinetuneConfig, data: TaskData) -> None:
    """Raises ValueError if the metric that is to be best is none of the task's."""
    losses = [data.metric_of(name, LOSS) for name in data.validation]
    known = (*data.metrics, *losses)
    if config.best_metric and config.best_metric not in known:
        raise ValueError(
            f"best_metric={config.best_metric!r} is no metric of this task; expected one of "
            f"{', '.join(known)}, or '' for {data.best_metric}"
        )


def open_checkpointer(run: FinetuneRun, early: EarlyStopping, verified: int | None) -> Checkpointer:
    """Return the checkpointer of a run, which keeps the newest checkpoint and the best one.

    Args:
      early: the early-stopping state, which knows the best step.
      verified: the step whose files `recover` has verified.
    """
    intervals = run.intervals
    kept = CheckpointConfig(
        keep_last=1,
        keep_best=1,
        best_metric=run.best_metric,
        lower_is_better=run.best_metric.endswith(LOSS),
    )
    return Checkpointer(
        run.work_dir / CHECKPOINTS_NAME,
        kept,
        identity(run),
        # A state that was saved before it was evaluated also lacks metrics.
        lambda step: intervals.evaluates(step) or step == early.best_step,
        verified=verified,
    )


def first_state(run: FinetuneRun, checkpointer: Checkpointer) -> tuple[TrainState, str]:
    """The state to start from and where it comes from, in this order.

    This run's newest checkpoint; else random, with the parameters of `init_from` that the model
    has too, unless the run is from scratch.
    """
    definition, config = run.task.definition, run.config
    optimizer, learns = run.programs.optimizer, run.programs.tuning.learns
    step = checkpointer.latest_step()
    if step is not None:
        checkpointer.check_identity()  # first: of another run the steps say nothing
        abstract = abstract_state(definition, optimizer, run.mesh, learns)
        if step > run.total_steps:
            raise ValueError(
                f"{config.work_dir} was trained for {step:,} steps, num_epochs={config.num_epochs} "
                f"are {run.total_steps:,}: set num_epochs to what it was or more, or take another "
                "work_dir"
            )
        return checkpointer.restore(abstract), f"this run's checkpoint of step {step:,}"
    state = run.programs.init(parameter_key(config.seed))
    if config.from_scratch:
        return state, f"random parameters (seed {config.seed})"
    found = _parameters_of(run)
    kept = {name: found[name] for name in state.params if name in found}
    fresh = sorted(state.params.keys() - kept.keys())
    told = f"the parameters of {config.init_from}"
    if fresh:
        told += f"; randomly initialized: {', '.join(fresh)}"
    if any(name.startswith("classifier.") for name in kept):
        told += "; its classifier too, of the same labels"
    if read_sentence_embedding(run.source.directory) is not None:
        told += f"; {SETTINGS_DROPPED}"
    return TrainState(state.step, state.params | kept, state.opt_state), told


def with_checkpoints(run: FinetuneRun, past: Sequence[Evaluation]) -> Sequence[Evaluation]:
    """Return the `past` evaluations without the best ones whose checkpoints no longer exist.

    A damaged checkpoint, for example, was moved aside. Evaluations that are not the best never have
    a checkpoint and count for `patience`.
    """
    steps, lost = steps_in(run.work_dir / CHECKPOINTS_NAME), []
    while True:
        early = EarlyStopping(run.best_metric, 0, run.best_metric.endswith(LOSS))
        early.observe_all(past)
        best = early.best_step
        if best is None or agreed(best in steps):
            break
        lost.append(best)
        past = [evaluation for evaluation in past if evaluation["step"] != best]
    if lost and jax.process_index() == 0:
        rest = "" if best is None else f"; the next best is step {best:,}"
        print(f"warning    the best checkpoint so far, of step {lost[0]:,}, is missing{rest}")
    return past


def _parameters_of(run: FinetuneRun) -> Parameters:
    """Those of the source; a classifier of another task or other labels is none of them."""
    found, models = run.source.parameters(), (run.model, run.source.model)
    ours, theirs = ((model.head, model.labels, model.problem) for model in models)
    if ours == theirs:
        return found
    return {name: x for name, x in found.items() if not name.startswith("classifier.")}


def identity(run: FinetuneRun) -> dict[str, object]:
    """What a checkpoint must share with a run for the run to go on from it."""
    config = run.config
    assert run.data.train is not None
    return {
        "model": dataclasses.asdict(run.model),
        "optimizer": dataclasses.asdict(config.optimizer),
        "tuning": dataclasses.asdict(config.tuning),
        "seed": config.seed,
        "init_from": source_identity(config, run.source),
        "from_scratch": config.from_scratch,
        "batch_size": config.batch_size,
        "best_metric": run.best_metric,
        "row_lengths": list(run.row_lengths),
        # The keys are told to a user whose file has changed, to whom the values say nothing.
        "training examples (their file, its columns, max_length)": run.data.train.fingerprint,
        "validation examples (likewise)": {
            name: examples.fingerprint for name, examples in run.data.validation.items()
        },
        "tokenizer": run.tokenizer.fingerprint,
    }
