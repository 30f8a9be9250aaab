"""Compile a train step for devices that need not exist, and read the compiler's figures."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.models.parameters import ModelDefinition
from bert_jax.tasks.task import Task, Teacher
from bert_jax.training.sharding import batch_sharding
from bert_jax.training.state import abstract_state
from bert_jax.training.step import StepInputs, make_train_step


@dataclass(frozen=True)
class CompiledStep:
    """A train step compiled for one mesh, with figures per device.

    Attributes:
      arguments: the bytes of the arguments.
      outputs: the bytes of the outputs that do not reuse the memory of an argument.
      temporaries: the bytes of temporary buffers.
      flops: the FLOPs of one run as counted by the compiler: the body of a loop counts once.
      bytes_accessed: the bytes read and written in one run, counted in the same way.
      text: the partitioned program as HLO.
    """

    arguments: int
    outputs: int
    temporaries: int
    flops: float
    bytes_accessed: float
    text: str = field(repr=False)

    @property
    def memory(self) -> int:
        """The bytes that a device needs."""
        return self.arguments + self.outputs + self.temporaries

    @property
    def least_traffic(self) -> int:
        """The least number of bytes that pass through memory.

        The state and the batch are read, the state is written, and the temporaries at their peak
        have been written and are still to be read.
        """
        return 2 * self.arguments + self.outputs + 2 * self.temporaries


class OutOfMemory(Exception):
    """The compiler refused a step that needs more bytes per device than are available."""

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
    """Compile the train step for the devices of a mesh, without creating any array.

    Args:
      task: the model and the loss.
      optimizer: the optimizer.
      mesh: the devices.
      batch: the shapes of a batch.
      accumulation_steps: see `make_train_step`.
      teacher: see `make_train_step`.

    Raises:
      OutOfMemory: the compiler knows the devices' memory, which is too small.
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
    lowered = step.lower(abstract_state(task.definition, optimizer, mesh), placed, inputs)
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
    """Return the bytes of parameters and optimizer state on one device."""
    leaves = jax.tree.leaves(abstract_state(definition, optimizer, mesh))
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves
    )


def read_compiled(compiled: Any) -> CompiledStep:
    """Return the compiler's figures for a compiled step."""
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    return CompiledStep(
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        flops=cost["flops"],
        bytes_accessed=cost["bytes accessed"],
        text=compiled.as_text(),
    )


_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _out_of_memory(message: str) -> OutOfMemory | None:
    """Parse the TPU compiler's message "Used 20.41G of 15.75G hbm"."""
    size = r"([\d.]+)([KMGT]?)"
    match = re.search(rf"Used {size} of {size} hbm", message)
    if match is None:
        return None
    used, used_unit, limit, limit_unit = match.groups()
    return OutOfMemory(int(float(used) * _UNITS[used_unit]), int(float(limit) * _UNITS[limit_unit]))
