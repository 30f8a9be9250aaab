"""Find the layer in which values first become NaN or infinite, by repeating a step with checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.models.encoder import Encoder, EncoderOutput
from bert_jax.models.parameters import Parameters
from bert_jax.tasks.task import Batch, Task, Teacher
from bert_jax.training.gradients import BatchGradient
from bert_jax.training.sharding import batch_sharding, layout, parameter_shardings
from bert_jax.training.state import IsTrainable, all_trainable, dropout_key
from bert_jax.training.step import StepInputs, teacher_shardings

Diagnose = Callable[[Parameters, Mapping[str, jax.Array], int, StepInputs], str]
Flags = dict[str, dict[str, jax.Array]]

_LAYER = re.compile(r"(.*?)layers\.(\d+)\.")
_MAX_LISTED = 3


def make_diagnosis(
    task: Task,
    mesh: Mesh,
    *,
    accumulation_steps: int = 1,
    is_trainable: IsTrainable = all_trainable,
    teacher: Teacher | None = None,
) -> Diagnose:
    """Return a function that finds where the values of a step first become NaN or infinite.

    The function takes the parameters, the batch, the number of steps before the batch and the
    step's inputs. It returns a sentence without its full stop. All processes must call it together.
    Its program is compiled on the first call and needs about as much memory as a train step,
    because it computes the same forward pass with the same dropout masks, and the gradient, but no
    update.

    Args:
      task: see `make_train_step`.
      mesh: see `make_train_step`.
      accumulation_steps: see `make_train_step`.
      is_trainable: see `make_train_step`.
      teacher: see `make_train_step`.
    """
    gradient = BatchGradient(task, mesh, accumulation_steps, is_trainable, teacher)
    replicated = NamedSharding(mesh, PartitionSpec())
    definition = task.definition

    def check(params: Parameters, batch: Batch, step: jax.Array, inputs: StepInputs) -> Flags:
        with layout(mesh):
            key = dropout_key(inputs.seed, step)

            def forward(part: tuple[Batch, jax.Array]) -> dict[str, jax.Array]:
                batch, key = part
                batch = gradient.annotated(batch, inputs.teacher)
                return _check_forward(task, params, batch, key)

            stages = jax.lax.map(forward, gradient.parts(batch, key))
            grads, _, _ = gradient(params, batch, key, inputs.teacher)
            return {
                "parameters": _finite(params),
                "stages": {name: flags.all() for name, flags in stages.items()},
                "gradients": _finite(grads),
            }

    compiled = jax.jit(
        check,
        in_shardings=(
            parameter_shardings(definition.shapes, definition.logical_axes, mesh),
            batch_sharding(mesh),
            replicated,
            StepInputs(
                cast(Any, replicated), cast(Any, replicated), teacher_shardings(teacher, mesh)
            ),
        ),
        out_shardings=replicated,
    )

    def diagnose(
        params: Parameters, batch: Mapping[str, jax.Array], step: int, inputs: StepInputs
    ) -> str:
        flags = jax.device_get(compiled(params, batch, jnp.int32(step), inputs))
        parts = {name: {key: bool(x) for key, x in part.items()} for name, part in flags.items()}
        return describe(**parts)

    return diagnose


def _finite(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.isfinite(x).all() for name, x in arrays.items()}


def _check_forward(
    task: Task, params: Parameters, batch: Batch, key: jax.Array
) -> dict[str, jax.Array]:
    """Return whether the output of each layer and the sum of each metric is finite.

    JAX sorts the arrays in a dict by their keys. The keys are chosen so that their order is the
    order of the computation: each key begins with a digit for its encoder.
    """
    model = task.definition.module(params)
    outputs = _recorded(model)
    metrics = task.metrics(model, batch, key)
    flags = {}
    for number, (encoder, states) in enumerate(outputs):
        for layer, state in enumerate(states):
            name = f"layer {layer - 1}" if layer else "the embeddings"
            flags[f"{number} {layer:04} {name} of {encoder}"] = jnp.isfinite(state).all()
    for name, metric in metrics.items():
        flags[f"{len(outputs)} the metric {name}"] = jnp.isfinite(metric.sum)
    return flags


def _recorded(model: nnx.Module) -> list[tuple[str, Sequence[jax.Array]]]:
    """Make a model's encoders record the embeddings and the output of each layer.

    Returns:
      A list that the model's next call fills with each encoder's name and outputs.
    """
    outputs: list[tuple[str, Sequence[jax.Array]]] = []
    for path, module in nnx.iter_modules(model):
        if type(module) is Encoder:
            _record(module, ".".join(map(str, path)), outputs)
    return outputs


def _record(encoder: Encoder, name: str, outputs: list[tuple[str, Sequence[jax.Array]]]) -> None:
    class Recording(Encoder):
        def __call__(self, *args: Any, **options: Any) -> EncoderOutput:
            output = super().__call__(*args, **{**options, "return_hidden_states": True})
            assert output.hidden_states is not None
            outputs.append((name, output.hidden_states))
            return output

    encoder.__class__ = Recording


def describe(
    parameters: Mapping[str, bool], stages: Mapping[str, bool], gradients: Mapping[str, bool]
) -> str:
    """Return a sentence that describes where the values first become NaN or infinite.

    Args:
      parameters: whether each parameter is finite.
      stages: whether each layer's output is finite, followed by whether each metric is finite.
      gradients: whether the gradient of each parameter is finite.
    """
    if bad := sorted((name for name, good in parameters.items() if not good), key=_forward_order):
        return f"The first parameters that are not finite are {_listed(bad)}"
    if bad := [name for name, good in sorted(stages.items()) if not good]:
        stage = re.sub(r"^[\d ]+", "", bad[0])
        if stage.startswith("the metric"):
            return f"The outputs of all layers are finite, but {stage} is not"
        return f"In the forward pass, the output of {stage} is the first that is not finite"
    bad = sorted((name for name, good in gradients.items() if not good), key=_forward_order)
    if bad:
        # The backward pass visits the layers in reverse order.
        last = _forward_order(bad[-1])[:2]
        first = [name for name in bad if _forward_order(name)[:2] == last]
        return (
            "The forward pass is finite. In the backward pass, the first gradients that are not "
            f"finite are those of {_listed(first)}"
        )
    return "When the step was repeated, all values were finite"


def _forward_order(name: str) -> tuple[int, int, str]:
    if match := _LAYER.match(name):
        return 1, int(match[2]), name
    return (0 if "embeddings" in name else 2), 0, name


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if names[_MAX_LISTED:] else ""
    return ", ".join(names[:_MAX_LISTED]) + more
