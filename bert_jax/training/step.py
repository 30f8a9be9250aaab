"""The state of a run, and the one train step and evaluation step for every task and mesh."""

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
    """SHA-256 over the names, shapes and 64-bit checksums of float32 parameters.

    The same however they are split over devices and processes. It tells parameters that were
    trained otherwise, not ones that were made to have the same.
    """
    sums = jax.device_get(jax.jit(lambda params: jax.tree.map(_checksum, params))(params))
    content = {
        name: [list(params[name].shape), *(int(value) for value in found)]
        for name, found in sums.items()
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums modulo 2^32 of the bits times odd numbers of their place: order does not matter."""
    bits = jax.lax.bitcast_convert_type(array.astype(jnp.float32), jnp.uint32)
    place = jnp.zeros(array.shape, jnp.uint32)
    for dim, size in enumerate(array.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, array.shape, dim)
    # Multipliers of Knuth and of xxHash; any large odd ones would do.
    first, second = (
        jnp.sum(bits * (place * jnp.uint32(factor) | jnp.uint32(1)), dtype=jnp.uint32)
        for factor in (2_654_435_761, 2_246_822_519)
    )
    return first, second


T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything a checkpoint must hold; randomness is a function of (seed, step) instead.

    step: int32 scalar, updates made so far. opt_state: of the parameters that learn, alone.
    """

    step: jax.Array
    params: Parameters
    opt_state: optax.OptState


def parameter_key(seed: int) -> jax.Array:
    """The key fresh parameters are drawn with."""
    check_seed(seed)
    return jax.random.fold_in(jax.random.key(seed), 0)


def dropout_key(seed: int | np.uint32, step: jax.Array) -> jax.Array:
    """The key of a step's dropout; shares nothing with `parameter_key`."""
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
    """The state as shapes, dtypes and shardings; computes nothing.

    Optimizer moments are laid out like the parameters they belong to: left to itself,
    `jit(optimizer.init)` would give every device a whole copy.
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
    """The sharding of every array of an abstract state."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def init_state(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    is_trainable: IsTrainable = all_trainable,
) -> TrainState:
    """A fresh state, every array created where it stays; the same numbers under any mesh."""
    return make_init(definition, optimizer, mesh, is_trainable)(parameter_key(seed))


Init = Callable[[jax.Array], TrainState]


def make_init(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    is_trainable: IsTrainable = all_trainable,
) -> Init:
    """Compiles on first call: the key of fresh parameters -> a state, as `init_state`'s."""

    def init(key: jax.Array) -> TrainState:
        params = definition.init(key)
        opt_state = optimizer.init(trainable_part(params, is_trainable))
        return TrainState(jnp.zeros((), jnp.int32), params, opt_state)

    shardings = shardings_of(abstract_state(definition, optimizer, mesh, is_trainable))
    return jax.jit(init, out_shardings=shardings)


class StepInputs(NamedTuple):
    """What a train step takes besides the state and its batch.

    Inputs and no constants of the program: runs that differ in these alone compile it once.

    seed: of dropout; 0 up to 2^32 - 1. learning_rate: of this step. teacher: the parameters of the
      model that is learned from, {} where there is none.
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
    """Compiles on first call: (state, batch, inputs) -> (next state, metrics of the batch).

    Dropout is a function of (seed, step, micro-batch): a resumed run draws what an uninterrupted
    one would have. The state's buffers are donated. Besides the task's metrics: `loss` and
    `gradient_norm` (before clipping).

    Args:
      accumulation_steps: the batch is processed in this many parts, one after the other, and
        updates once with the gradient of the whole.
      is_trainable: whether the parameter of a name is updated; gradients of the others are not
        computed.
      teacher: adds to each part of the batch what it says of it, by the parameters of the inputs,
        which are split over the mesh as the task's own.
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
    """The shardings of the teacher's parameters."""
    if teacher is None:
        return {}
    return dict(
        parameter_shardings(teacher.definition.shapes, teacher.definition.logical_axes, mesh)
    )


def _split(batch: Batch, parts: int, mesh: Mesh) -> dict[str, jax.Array]:
    """[batch, ...] to [parts, batch / parts, ...] without moving a row off its device.

    Part p takes rows p, p + parts, ...: a run of rows would sit on a few devices alone.
    """

    def split(x: jax.Array) -> jax.Array:
        x = jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0)
        spec = PartitionSpec(None, *batch_sharding(mesh).spec)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return {name: split(x) for name, x in batch.items()}


def _accumulate(
    gradient: Callable[[Batch, jax.Array], tuple[Any, Metrics]], parts: Batch, key: jax.Array
) -> tuple[Any, Metrics]:
    """Gradient and metrics of all parts; the parts' losses already share one denominator."""
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
    """Compiles on first call: (params, batch) -> the task's metrics, without dropout.

    teacher: see `make_train_step`; its parameters are a third argument.
    """
    definition = task.definition
    param_shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)

    def evaluation_step(params: Parameters, batch: Batch, *taught: Parameters) -> Metrics:
        with layout(mesh):
            if teacher is not None:
                batch = teacher.annotate(teacher.definition.module(*taught), batch)
            return task.metrics(definition.module(params), batch, None)

    of_teacher = () if teacher is None else (_teachers(teacher, mesh),)
    return jax.jit(
        evaluation_step,
        in_shardings=(param_shardings, batch_sharding(mesh), *of_teacher),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )


def make_prediction_step(task: ScoringTask, mesh: Mesh) -> jax.stages.Wrapped:
    """Compiles on first call: (params, batch without targets) -> logits, whole on every process."""
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
    """Compiles on first call: (logits, batch with targets) -> metrics; no model is run.

    Apart from the logits, so that examples with and without targets share the larger program.
    """

    def metrics_step(logits: jax.Array, batch: Batch) -> Metrics:
        return task.metrics_of(logits, batch)

    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        metrics_step, in_shardings=(replicated, batch_sharding(mesh)), out_shardings=replicated
    )
