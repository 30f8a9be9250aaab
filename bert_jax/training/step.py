"""Build the train, evaluation and prediction steps for any task on any mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.models.parameters import Parameters
from bert_jax.tasks.task import (
    Batch,
    Metric,
    Metrics,
    ScoringTask,
    Task,
    Teacher,
    total_loss,
)
from bert_jax.training.divergence import GuardedState, Observed
from bert_jax.training.gradients import BatchGradient
from bert_jax.training.sharding import batch_sharding, layout, parameter_shardings
from bert_jax.training.state import (
    IsTrainable,
    TrainState,
    abstract_state,
    all_trainable,
    dropout_key,
    shardings_of,
    trainable_part,
)
from bert_jax.training.transformations import global_norm


class StepInputs(NamedTuple):
    """The inputs to a train step other than the state and the batch.

    They are not compiled in as constants, so runs that differ only in these inputs share a compiled
    program.

    Attributes:
      seed: the dropout seed, from 0 to 2^32 - 1.
      learning_rate: the step's learning rate.
      teacher: the teacher's parameters; {} if there is no teacher.
    """

    seed: np.uint32
    learning_rate: np.float32
    teacher: Parameters = {}


TrainStep = Callable[[TrainState, Batch, StepInputs], tuple[TrainState, Metrics]]
EvaluationStep = Callable[[Parameters, Batch], Metrics]
PredictionStep = Callable[[Parameters, Batch], jax.Array]
MetricsStep = Callable[[jax.Array, Batch], Metrics]


def make_train_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    accumulation_steps: int = 1,
    is_trainable: IsTrainable = all_trainable,
    teacher: Teacher | None = None,
) -> jax.stages.Wrapped:
    """Build the train step, which is compiled on its first call.

    It maps (state, batch, inputs) to the next state and the batch's metrics. In addition to the
    task's own metrics, these include `loss`, `gradient_norm` (before clipping) and, if the
    optimizer is `guarded`, those in `VERDICT_METRICS`. Dropout is a function of (seed, step,
    micro-batch), so a resumed run draws the same masks as an uninterrupted one. The state's buffers
    are donated.

    Args:
      task: the model and the loss.
      optimizer: the optimizer.
      mesh: the device mesh.
      accumulation_steps: the number of micro-batches into which the batch is split. They are
        processed one after another, and the parameters are updated once, with the gradient of the
        whole batch.
      is_trainable: returns whether the parameter with a given name is updated. No gradients are
        computed for the other parameters.
      teacher: a model whose outputs are added to each micro-batch. Its parameters are part of the
        inputs and are sharded like the task's parameters.
    """
    gradient = BatchGradient(task, mesh, accumulation_steps, is_trainable, teacher)
    state_shardings = shardings_of(abstract_state(task.definition, optimizer, mesh, is_trainable))
    replicated = NamedSharding(mesh, PartitionSpec())
    input_shardings = StepInputs(
        cast(Any, replicated), cast(Any, replicated), teacher_shardings(teacher, mesh)
    )

    def train_step(
        state: TrainState, batch: Batch, inputs: StepInputs
    ) -> tuple[TrainState, Metrics]:
        with layout(mesh):
            key = dropout_key(inputs.seed, state.step)
            grads, metrics, weights = gradient(state.params, batch, key, inputs.teacher)
            learning = trainable_part(state.params, is_trainable)
            frozen = {name: x for name, x in state.params.items() if name not in learning}
            observed = {}
            if isinstance(state.opt_state, GuardedState):
                loss = total_loss(task, metrics, weights)
                observed["observed"] = Observed(loss, global_norm(grads))
            updates, opt_state = optax.with_extra_args_support(optimizer).update(
                grads,
                state.opt_state,
                learning,
                learning_rate=inputs.learning_rate,
                step=state.step,
                **observed,
            )
            if isinstance(opt_state, GuardedState):
                learned = updates
            else:
                learned = cast(Parameters, optax.apply_updates(learning, updates))
            one = jnp.ones(())
            metrics["loss"] = Metric(total_loss(task, metrics, weights), one)
            metrics["gradient_norm"] = Metric(global_norm(grads), one)
            if isinstance(opt_state, GuardedState):
                metrics |= opt_state.verdict.metrics()
        return TrainState(state.step + 1, frozen | learned, opt_state), metrics

    return jax.jit(
        train_step,
        in_shardings=(state_shardings, batch_sharding(mesh), input_shardings),
        out_shardings=(state_shardings, replicated),
        donate_argnums=0,
    )


def teacher_shardings(teacher: Teacher | None, mesh: Mesh) -> dict[str, Any]:
    """Return the shardings of the teacher's parameters."""
    if teacher is None:
        return {}
    return dict(
        parameter_shardings(teacher.definition.shapes, teacher.definition.logical_axes, mesh)
    )


def make_evaluation_step(
    task: Task, mesh: Mesh, *, teacher: Teacher | None = None
) -> jax.stages.Wrapped:
    """Build the evaluation step, which is compiled on its first call.

    It maps (params, batch) to the task's metrics, without dropout.

    Args:
      task: the model and the metrics.
      mesh: the device mesh.
      teacher: see `make_train_step`. If given, the step takes its parameters as a third argument.
    """
    definition = task.definition
    param_shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)

    def evaluation_step(params: Parameters, batch: Batch, *teacher_params: Parameters) -> Metrics:
        with layout(mesh):
            if teacher is not None:
                batch = teacher.annotate(teacher.definition.module(*teacher_params), batch)
            return task.metrics(definition.module(params), batch, None)

    of_teacher = () if teacher is None else (teacher_shardings(teacher, mesh),)
    return jax.jit(
        evaluation_step,
        in_shardings=(param_shardings, batch_sharding(mesh), *of_teacher),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )


def make_prediction_step(task: ScoringTask, mesh: Mesh) -> jax.stages.Wrapped:
    """Build the prediction step, which is compiled on its first call.

    It maps (params, batch without targets) to logits, which every process gets in full.
    """
    definition = task.definition
    param_shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)

    def prediction_step(params: Parameters, batch: Batch) -> jax.Array:
        with layout(mesh):
            return task.logits(definition.module(params), batch)

    return jax.jit(
        prediction_step,
        in_shardings=(param_shardings, batch_sharding(mesh)),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )


def make_metrics_step(task: ScoringTask, mesh: Mesh) -> jax.stages.Wrapped:
    """Build the metrics step, which is compiled on its first call.

    It maps (logits, batch with targets) to metrics. It is a separate step so that examples with and
    without targets can share the prediction step, which is the larger program.
    """

    def metrics_step(logits: jax.Array, batch: Batch) -> Metrics:
        return task.metrics_of(logits, batch)

    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        metrics_step, in_shardings=(replicated, batch_sharding(mesh)), out_shardings=replicated
    )
