"""The state of a run, and the train and evaluation steps for all tasks and meshes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.models.parameters import ModelDefinition, Parameters
from bert_jax.tasks.task import (
    Batch,
    Metric,
    Metrics,
    ScoringTask,
    Task,
    Teacher,
    add_metrics,
    check_metrics,
    total_loss,
)
from bert_jax.training.sharding import batch_sharding, layout, parameter_shardings
from bert_jax.validation import check_seed


def fingerprint(params: Parameters) -> str:
    """Return a SHA-256 over the names, shapes and 64-bit checksums of float32 parameters.

    It does not depend on how the parameters are split over devices and processes. It detects
    parameters that were trained differently, but not a deliberate collision.
    """
    sums = jax.device_get(jax.jit(lambda params: jax.tree.map(_checksum, params))(params))
    content = {
        name: [list(params[name].shape), *(int(value) for value in values)]
        for name, values in sums.items()
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two sums, modulo 2^32, of the bits times odd numbers that depend on their position.

    The order of addition does not matter.
    """
    bits = jax.lax.bitcast_convert_type(array.astype(jnp.float32), jnp.uint32)
    position = jnp.zeros(array.shape, jnp.uint32)
    for dim, size in enumerate(array.shape):
        position = position * jnp.uint32(size) + jax.lax.broadcasted_iota(
            jnp.uint32, array.shape, dim
        )
    # Multipliers of Knuth and of xxHash; any large odd numbers work.
    first, second = (
        jnp.sum(bits * (position * jnp.uint32(factor) | jnp.uint32(1)), dtype=jnp.uint32)
        for factor in (2_654_435_761, 2_246_822_519)
    )
    return first, second


T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The state that a checkpoint contains. Randomness is a function of (seed, step) instead.

    Attributes:
      step: the number of updates so far, an int32 scalar.
      params: the parameters by name.
      opt_state: the optimizer state of the trainable parameters.
    """

    step: jax.Array
    params: Parameters
    opt_state: optax.OptState


def parameter_key(seed: int) -> jax.Array:
    """Return the key of randomly initialized parameters."""
    check_seed(seed)
    return jax.random.fold_in(jax.random.key(seed), 0)


def dropout_key(seed: int | np.uint32, step: jax.Array) -> jax.Array:
    """Return the key of a step's dropout, which is independent of `parameter_key`."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), step)


IsTrainable = Callable[[str], bool]


def all_trainable(name: str) -> bool:
    """Return True: every parameter is trainable."""
    return True


def trainable_part(params: Mapping[str, T], is_trainable: IsTrainable) -> dict[str, T]:
    """Return the trainable parameters."""
    return {name: value for name, value in params.items() if is_trainable(name)}


def abstract_state(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    is_trainable: IsTrainable = all_trainable,
) -> TrainState:
    """Return the state as shapes, dtypes and shardings, without computing anything.

    Optimizer moments are sharded like their parameters; without that, `jit(optimizer.init)` would
    give every device a whole copy.

    Args:
      definition: the model.
      optimizer: the optimizer.
      mesh: the devices.
      is_trainable: whether the parameter of a name is updated.
    """
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    replicated = NamedSharding(mesh, PartitionSpec())

    def place(shape: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    params = {name: place(shape, shardings[name]) for name, shape in definition.shapes.items()}
    opt_state = optax.tree.map_params(
        optimizer,
        place,
        jax.eval_shape(optimizer.init, trainable_part(params, is_trainable)),
        trainable_part(shardings, is_trainable),
        transform_non_params=lambda shape: place(shape, replicated),
    )
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
    return TrainState(cast(jax.Array, step), cast(Parameters, params), opt_state)


def shardings_of(state: TrainState) -> TrainState:
    """Return the sharding of every array of an abstract state."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def init_state(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    is_trainable: IsTrainable = all_trainable,
) -> TrainState:
    """Return a randomly initialized state, sharded, with the same numbers for all meshes."""
    return make_init(definition, optimizer, mesh, is_trainable)(parameter_key(seed))


Init = Callable[[jax.Array], TrainState]


def make_init(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    is_trainable: IsTrainable = all_trainable,
) -> Init:
    """Return a function from the key of parameters to a state, compiled on the first call."""

    def init(key: jax.Array) -> TrainState:
        params = definition.init(key)
        opt_state = optimizer.init(trainable_part(params, is_trainable))
        return TrainState(jnp.zeros((), jnp.int32), params, opt_state)

    shardings = shardings_of(abstract_state(definition, optimizer, mesh, is_trainable))
    return jax.jit(init, out_shardings=shardings)


class StepInputs(NamedTuple):
    """The inputs of a train step besides the state and the batch.

    They are not constants of the program, so runs that differ only in them share it.

    Attributes:
      seed: the seed of dropout, 0 to 2^32 - 1.
      learning_rate: the learning rate of the step.
      teacher: the parameters of the teacher; {} without a teacher.
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
    """Return the train step, which is compiled on the first call.

    It maps (state, batch, inputs) to the next state and the metrics of the batch: the task's own,
    `loss` and `gradient_norm` (before clipping). Dropout is a function of (seed, step,
    micro-batch), so a resumed run samples the same as an uninterrupted one. The state's buffers are
    donated.

    Args:
      task: the model and the loss.
      optimizer: the optimizer.
      mesh: the devices.
      accumulation_steps: the number of parts in which the batch is processed, one after the other.
        The parameters are updated once, with the gradient of the whole batch.
      is_trainable: whether the parameter of a name is updated; gradients of the others are not
        computed.
      teacher: adds its outputs to each part of the batch. Its parameters are among the inputs and
        sharded like the task's.
    """
    state_shardings = shardings_of(abstract_state(task.definition, optimizer, mesh, is_trainable))
    replicated = NamedSharding(mesh, PartitionSpec())
    input_shardings = StepInputs(
        cast(Any, replicated), cast(Any, replicated), _teachers(teacher, mesh)
    )

    def loss_and_metrics(
        learning: Parameters,
        frozen: Parameters,
        batch: Batch,
        weights: dict[str, jax.Array],
        key: jax.Array,
    ) -> tuple[jax.Array, Metrics]:
        model = task.definition.module({**frozen, **learning})
        metrics = task.metrics(model, batch, key)
        check_metrics(task, metrics, weights)
        return total_loss(task, metrics, weights), metrics

    def train_step(
        state: TrainState, batch: Batch, inputs: StepInputs
    ) -> tuple[TrainState, Metrics]:
        with layout(mesh):
            key = dropout_key(inputs.seed, state.step)
            weights = task.loss_weights(batch)
            learning = trainable_part(state.params, is_trainable)
            frozen = {name: x for name, x in state.params.items() if name not in learning}

            def gradient(batch: Batch, key: jax.Array) -> tuple[Parameters, Metrics]:
                if teacher is not None:
                    batch = teacher.annotate(teacher.definition.module(inputs.teacher), batch)
                differentiated = jax.grad(loss_and_metrics, has_aux=True)
                return differentiated(learning, frozen, batch, weights, key)

            if accumulation_steps == 1:
                grads, metrics = gradient(batch, key)
            else:
                parts = _split(batch, accumulation_steps, mesh)
                grads, metrics = _accumulate(gradient, parts, key)
            updates, opt_state = optax.with_extra_args_support(optimizer).update(
                grads, state.opt_state, learning, learning_rate=inputs.learning_rate
            )
            params = frozen | cast(Parameters, optax.apply_updates(learning, updates))
            one = jnp.ones(())
            metrics["loss"] = Metric(total_loss(task, metrics, weights), one)
            metrics["gradient_norm"] = Metric(optax.tree.norm(grads), one)
        return TrainState(state.step + 1, params, opt_state), metrics

    return jax.jit(
        train_step,
        in_shardings=(state_shardings, batch_sharding(mesh), input_shardings),
        out_shardings=(state_shardings, replicated),
        donate_argnums=0,
    )


def _teachers(teacher: Teacher | None, mesh: Mesh) -> dict[str, Any]:
    """Return the shardings of the teacher's parameters."""
    if teacher is None:
        return {}
    return dict(
        parameter_shardings(teacher.definition.shapes, teacher.definition.logical_axes, mesh)
    )


def _split(batch: Batch, parts: int, mesh: Mesh) -> dict[str, jax.Array]:
    """Reshape [batch, ...] to [parts, batch / parts, ...] without moving rows between devices.

    Part p has rows p, p + parts, ..., since consecutive rows are on a few devices only.
    """

    def split(x: jax.Array) -> jax.Array:
        x = jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0)
        spec = PartitionSpec(None, *batch_sharding(mesh).spec)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return {name: split(x) for name, x in batch.items()}


def _accumulate(
    gradient: Callable[[Batch, jax.Array], tuple[Any, Metrics]], parts: Batch, key: jax.Array
) -> tuple[Any, Metrics]:
    """Return the gradient and metrics of all parts, whose losses share one denominator."""
    keys = jax.random.split(key, next(iter(parts.values())).shape[0])

    def body(carry: tuple[Any, Metrics], part: tuple[Batch, jax.Array]) -> tuple[Any, None]:
        grads, metrics = gradient(*part)
        return (jax.tree.map(jnp.add, carry[0], grads), add_metrics(carry[1], metrics)), None

    first = jax.tree.map(lambda x: x[0], parts)
    shapes = jax.eval_shape(gradient, first, keys[0])
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(body, zeros, (parts, keys))[0]


def make_evaluation_step(
    task: Task, mesh: Mesh, *, teacher: Teacher | None = None
) -> jax.stages.Wrapped:
    """Return the evaluation step, which is compiled on the first call.

    It maps (params, batch) to the task's metrics, without dropout.

    Args:
      task: the model and the metrics.
      mesh: the devices.
      teacher: see `make_train_step`. Its parameters are a third argument.
    """
    definition = task.definition
    param_shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)

    def evaluation_step(params: Parameters, batch: Batch, *teacher_params: Parameters) -> Metrics:
        with layout(mesh):
            if teacher is not None:
                batch = teacher.annotate(teacher.definition.module(*teacher_params), batch)
            return task.metrics(definition.module(params), batch, None)

    teacher_shardings = () if teacher is None else (_teachers(teacher, mesh),)
    return jax.jit(
        evaluation_step,
        in_shardings=(param_shardings, batch_sharding(mesh), *teacher_shardings),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )


def make_prediction_step(task: ScoringTask, mesh: Mesh) -> jax.stages.Wrapped:
    """Return the prediction step, which is compiled on the first call.

    It maps (params, batch without targets) to logits, which are whole on every process.
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
    """Return the metrics step, which is compiled on the first call.

    It maps (logits, batch with targets) to metrics. It is separate from the prediction step, so
    that examples with and without targets share the larger program.
    """

    def metrics_step(logits: jax.Array, batch: Batch) -> Metrics:
        return task.metrics_of(logits, batch)

    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        metrics_step, in_shardings=(replicated, batch_sharding(mesh)), out_shardings=replicated
    )
