"""What is compiled for fine-tuning, to be shared by runs of one task."""

from __future__ import annotations

from dataclasses import dataclass

import optax
from jax.sharding import Mesh

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import ModelConfig
from bert_jax.tasks.classifier_task import ClassifierTask
from bert_jax.tasks.finetuning import task_of
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.state import Init, make_init
from bert_jax.training.step import (
    MetricsStep,
    PredictionStep,
    TrainStep,
    make_metrics_step,
    make_prediction_step,
    make_train_step,
)
from bert_jax.training.tuning import Tuning


@dataclass(frozen=True)
class Programs:
    """The steps of a run, and of those that differ from it as `FinetuneRun.turned` does."""

    task: ClassifierTask
    optimizer: optax.GradientTransformation
    tuning: Tuning
    train_step: TrainStep
    prediction_step: PredictionStep
    metrics_step: MetricsStep
    init: Init


def make_programs(
    config: FinetuneConfig, model: ModelConfig, compute: ComputeConfig, mesh: Mesh
) -> Programs:
    """The steps, compiled when a batch of a shape first comes.

    Raises:
      ValueError: more layers are to be tuned than there are, or some of them in a scan over all.
    """
    task, tuning = task_of(model, compute), Tuning(config.tuning, model.encoder)
    _check_scan(compute, tuning)
    rate = tuning.rate if config.tuning.layer_decay < 1.0 else None
    optimizer = make_optimizer(config.optimizer, rate)
    train_step = make_train_step(
        task,
        optimizer,
        mesh,
        accumulation_steps=config.accumulation_steps,
        learns=tuning.learns,
    )
    return Programs(
        task,
        optimizer,
        tuning,
        train_step,
        make_prediction_step(task, mesh),
        make_metrics_step(task, mesh),
        make_init(task.definition, optimizer, mesh, tuning.learns),
    )


def _check_scan(compute: ComputeConfig, tuning: Tuning) -> None:
    """Refuses what would be correct but differentiate every layer: a scan is over all of them."""
    if compute.scan_layers and 0 < tuning.num_learning_layers < tuning.num_layers:
        raise ValueError(
            f"compute.scan_layers=True differentiates all {tuning.num_layers} layers, of which "
            f"tuning.top_layers={tuning.num_learning_layers} learn: set compute.scan_layers=False "
            "(scanning saves compile time only for deep models that are trained whole)"
        )
