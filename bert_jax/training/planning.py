"""Compile a train step for devices that need not be present, and read the compiler's statistics."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.analysis.pallas_costs import pallas_costs
from bert_jax.models.parameters import ModelDefinition
from bert_jax.tasks.task import Task, Teacher
from bert_jax.training.compiled_cache import cached_step
from bert_jax.training.compiled_step import CompiledStep
from bert_jax.training.sharding import batch_sharding
from bert_jax.training.state import abstract_state
from bert_jax.training.step import StepInputs, make_train_step


class OutOfMemory(Exception):
    """The compiler rejected a step that needs more memory per device than is available."""

    def __init__(self, needed: int, available: int):
        super().__init__(f"{needed} bytes needed, {available} available")
        self.needed, self.available = needed, available


def compile_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    batch: Mapping[str, jax.ShapeDtypeStruct],
    *,
    accumulation_steps: int,
    teacher: Teacher | None = None,
) -> CompiledStep:
    """Compile the train step for a mesh without creating any arrays.

    The result for devices that are not present is kept on disk; see `compiled_cache`.

    Args:
      task: the model and the loss.
      optimizer: the optimizer.
      mesh: the device mesh.
      batch: the shape and dtype of each array in a batch.
      accumulation_steps: see `make_train_step`.
      teacher: see `make_train_step`.

    Raises:
      OutOfMemory: the step needs more memory than the devices have. This is raised only if the
        compiler knows the devices' memory.
    """
    sharding = batch_sharding(mesh)
    placed = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
        for name, array in batch.items()
    }
    parts = accumulation_steps
    step = make_train_step(task, optimizer, mesh, accumulation_steps=parts, teacher=teacher)
    teacher_params = {}
    if teacher is not None:
        teacher_params = abstract_state(teacher.definition, optax.identity(), mesh).params
    inputs = StepInputs(np.uint32(0), np.float32(0), teacher_params)
    traced = step.trace(abstract_state(task.definition, optimizer, mesh), placed, inputs)
    lowered = traced.lower()
    pallas = {
        name: [work.flops, work.bytes or 0] for name, work in pallas_costs(traced.jaxpr).items()
    }
    return replace(cached_step(lowered, mesh, lambda: _compile(lowered)), pallas=pallas)


def _compile(lowered: jax.stages.Lowered) -> CompiledStep:
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        refused = _out_of_memory(str(error))
        if refused is None:
            raise
        raise refused from error
    return read_compiled(compiled)


def state_bytes(
    definition: ModelDefinition[Any], optimizer: optax.GradientTransformation, mesh: Mesh
) -> int:
    """Return how many bytes the parameters and the optimizer state take on one device."""
    leaves = jax.tree.leaves(abstract_state(definition, optimizer, mesh))
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves
    )


def read_compiled(compiled: Any) -> CompiledStep:
    """Read the compiler's statistics on a compiled step."""
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    return CompiledStep(
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        flops=cost.get("flops"),
        bytes_accessed=cost.get("bytes accessed"),
        text=compiled.as_text(),
    )


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _out_of_memory(message: str) -> OutOfMemory | None:
    """Parse a TPU compiler message such as "Used 20.41G of 15.75G hbm"."""
    size = r"([\d.]+)([KMGT]?)"
    match = re.search(rf"Used {size} of {size} hbm", message)
    if match is None:
        return None
    used, used_unit, limit, limit_unit = match.groups()
    return OutOfMemory(int(float(used) * _UNITS[used_unit]), int(float(limit) * _UNITS[limit_unit]))
