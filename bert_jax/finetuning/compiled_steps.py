"""Check a fine-tuning run's mesh, data and memory requirements, and compile its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import optax
from jax.sharding import Mesh

from bert_jax.analysis.counts import parameter_counts
from bert_jax.finetuning.scoring import LOSS
from bert_jax.finetuning.task_data import TaskData
from bert_jax.labeled_data.features import Features
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig
from bert_jax.tasks.finetuning import ClassifierTask
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import WARNED_SHARE, count_unknown, describe_unknown
from bert_jax.training.divergence import NO_CHECKS, DivergenceConfig, guarded
from bert_jax.training.memory import (
    FINETUNING_ARRAYS,
    batch_part,
    check_fits,
    check_traceable,
    model_size_keys,
    state_parts,
)
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import batch_extent
from bert_jax.training.state import Init, make_init
from bert_jax.training.step import (
    MetricsStep,
    PredictionStep,
    TrainStep,
    make_metrics_step,
    make_prediction_step,
    make_train_step,
)
from bert_jax.training.tuning import Tuning, TuningConfig


@dataclass(frozen=True)
class CompiledSteps:
    """The compiled steps of a run.

    Runs created by `FinetuneRun.with_hyperparameters` share them.

    Attributes:
      task: the model and its loss.
      optimizer_config: the optimizer's settings. The peak learning rate is not compiled into the
        train step, so runs that share the steps may use different ones.
      accumulation_steps: the number of parts that each batch is split into for gradient
        accumulation.
      optimizer: the optimizer that `optimizer_config` describes.
      tuning: the trainable parameters and their learning rates.
      divergence: which train steps to skip.
      train_step: the step that updates the parameters.
      prediction_step: the step that computes logits.
      metrics_step: the step that computes the loss from logits.
      init: the function that initializes the training state.
      mesh: the device mesh.
    """

    task: ClassifierTask
    optimizer_config: OptimizerConfig
    accumulation_steps: int
    optimizer: optax.GradientTransformation
    tuning: Tuning
    divergence: DivergenceConfig
    train_step: TrainStep
    prediction_step: PredictionStep
    metrics_step: MetricsStep
    init: Init
    mesh: Mesh


def make_steps(
    optimizer_config: OptimizerConfig,
    tuning_config: TuningConfig,
    accumulation_steps: int,
    task: ClassifierTask,
    mesh: Mesh,
    others: Sequence[CompiledSteps] = (),
    divergence: DivergenceConfig = NO_CHECKS,
) -> CompiledSteps:
    """Return the compiled steps of a run; JAX compiles each step again for every new batch shape.

    Args:
      optimizer_config: the optimizer's settings.
      tuning_config: which parameters to train.
      accumulation_steps: the number of parts that each batch is split into.
      task: the model and its loss.
      mesh: the device mesh.
      others: existing steps; any that have the same settings as this run are reused.
      divergence: which train steps to skip.

    Raises:
      ValueError: `tuning.top_layers` exceeds the number of layers, or is combined with
        `compute.scan_layers`.
    """
    tuning = Tuning(tuning_config, task.config.encoder)
    _check_scan(task.compute, tuning)
    settings = optimizer_config, tuning, accumulation_steps, mesh, divergence
    for other in others:
        same = other.optimizer_config, other.tuning, other.accumulation_steps, other.mesh
        if (*same, other.divergence) == settings and _are_equal(task, other.task):
            return other
    rate = tuning.rate if tuning_config.layer_decay < 1.0 else None
    optimizer = guarded(make_optimizer(optimizer_config, rate), divergence)
    train_step = make_train_step(
        task,
        optimizer,
        mesh,
        accumulation_steps=accumulation_steps,
        is_trainable=tuning.is_trainable,
    )
    return CompiledSteps(
        task,
        optimizer_config,
        accumulation_steps,
        optimizer,
        tuning,
        divergence,
        train_step,
        make_prediction_step(task, mesh),
        make_metrics_step(task, mesh),
        make_init(task.definition, optimizer, mesh, tuning.is_trainable),
        mesh,
    )


def _are_equal(task: ClassifierTask, other: ClassifierTask) -> bool:
    is_same_kind = type(task) is type(other)
    return is_same_kind and (task.config, task.compute) == (other.config, other.compute)


def _check_scan(compute: ComputeConfig, tuning: Tuning) -> None:
    """Raise ValueError if `compute.scan_layers` is set but some layers are not trainable.

    A scan computes the gradients of all layers.
    """
    if compute.scan_layers and 0 < tuning.num_trainable_layers < tuning.num_layers:
        raise ValueError(
            f"compute.scan_layers=True: a scan differentiates all {tuning.num_layers} layers, but "
            f"only tuning.top_layers={tuning.num_trainable_layers} are trainable. Set "
            "compute.scan_layers=False (a scan saves compile time only for deep models)."
        )


def check_batches(
    batch_size: int, evaluation_batch_size: int, accumulation_steps: int, mesh: Mesh
) -> None:
    """Raise ValueError if a batch cannot be split evenly over the devices."""
    parts = batch_extent(mesh)
    for name, size, by in (
        ("batch_size", batch_size, parts * accumulation_steps),
        ("evaluation_batch_size", evaluation_batch_size, parts),
    ):
        if size % by:
            raise ValueError(
                f"{name}={size} is not divisible by {by} (the number of parts that the mesh splits "
                "a batch into, multiplied by accumulation_steps in training). Set it to a multiple "
                f"of {by}"
            )


def check_data(
    data: TaskData, tokenizer: Tokenizer, best_metric: str, *, allow_unknown: bool
) -> None:
    """Raise ValueError if the task lacks `best_metric` or a set has too many unknown tokens."""
    _check_best_metric(data, best_metric)
    for name, features in data.features.items():
        counts = count_unknown(features.sequences.token_ids, tokenizer)
        if counts.too_many and not allow_unknown:
            problem = describe_unknown(
                tokenizer, counts.unknown, counts.tokens, where=f" of {name}"
            )
            raise ValueError(f"{problem} To train anyway, set allow_unknown=True.")


def _check_best_metric(data: TaskData, best_metric: str) -> None:
    """Raise ValueError if the task lacks the metric that selects the best checkpoint."""
    losses = [data.metric_of(name, LOSS) for name in data.validation]
    names = (*data.metrics, *losses)
    if best_metric and best_metric not in names:
        raise ValueError(
            f"best_metric={best_metric!r}: not a metric of this task. Use one of "
            f"{', '.join(names)}, or '' for {data.best_metric}."
        )


def unknown_lines(features: Mapping[str, Features], tokenizer: Tokenizer) -> list[str]:
    """Return a line with each set's fraction of unknown tokens, and a warning if any exceeds 1%."""
    sets = {
        name: count_unknown(rows.sequences.token_ids, tokenizer) for name, rows in features.items()
    }
    shares = ", ".join(f"{counts.share:.2%} of {name}" for name, counts in sets.items())
    lines = [f"unknown    {shares} ({tokenizer.specials.unk})"]
    name, worst = max(sets.items(), key=lambda item: item[1].share)
    if worst.share > WARNED_SHARE:
        warning = describe_unknown(tokenizer, worst.unknown, worst.tokens, where=f" of {name}")
        lines.append(f"WARNING    {warning}")
    return lines


def check_memory(
    model: ModelConfig,
    compute: ComputeConfig,
    tuning: Tuning,
    mesh: Mesh,
    train: Features,
    *,
    longest: int,
    batch_size: int,
    accumulation_steps: int,
    optimizer: OptimizerConfig,
    init_from: str,
    max_length: int,
) -> None:
    """Check that a fine-tuning run fits in this machine's memory.

    Args:
      model: the encoder's and the head's sizes.
      compute: the compute settings, with "auto" resolved.
      tuning: the trainable parameters.
      mesh: the device mesh.
      train: the training examples.
      longest: the length of the longest rows in `train`; such rows occur in every epoch.
      batch_size: the number of examples per step.
      accumulation_steps: the number of parts that each batch is split into.
      optimizer: the optimizer's settings.
      init_from: the config's value, for the error message.
      max_length: the config's value, for the error message.

    Raises:
      ValueError: the run needs more memory than the devices have or the compiler supports.
    """
    counts = parameter_counts(model)
    rows = batch_size * train.sequences_per_example
    trained = counts.above
    trained += counts.layers * tuning.num_trainable_layers // model.encoder.num_layers
    trained += counts.embeddings if tuning.is_trainable("encoder.embeddings.token") else 0
    parts = state_parts(
        mesh,
        counts.total,
        trained,
        moments=optimizer.optimizer.moments,
        # Clipping and accumulation need all gradients in memory at once.
        all_gradients=optimizer.clips_gradients or accumulation_steps > 1,
        keys=f"the model's size ({init_from}: {model_size_keys(model.encoder)})",
    )
    batch = batch_part(
        mesh,
        model.encoder,
        compute,
        name="one batch",
        rows=rows,
        rows_at_once=rows // accumulation_steps,
        length=longest,
        arrays=FINETUNING_ARRAYS,
        keys=f"batch_size={batch_size} or max_length={max_length}, or raise "
        f"accumulation_steps={accumulation_steps}",
    )
    check_traceable([*parts, batch], mesh)
    check_fits([*parts, batch], mesh)
