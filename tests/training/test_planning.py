"""Test that a step can be compiled from its input shapes, without allocating the inputs."""

from collections.abc import Callable
from types import SimpleNamespace

import jax
import numpy as np
import optax

from bert_jax.tasks.task import Task
from bert_jax.training.planning import (
    _out_of_memory,
    compile_step,
    read_compiled,
    state_bytes,
)
from bert_jax.training.sharding import MeshConfig, make_mesh

DIM, ROWS = 24, 16


def test_figures_are_per_device(make_task: Callable[[int], Task]) -> None:
    task = make_task(DIM)
    optimizer = optax.adam(1e-3)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    batch = {
        "x": jax.ShapeDtypeStruct((ROWS, DIM), np.float32),
        "y": jax.ShapeDtypeStruct((ROWS, 4), np.float32),
        "weight": jax.ShapeDtypeStruct((ROWS,), np.float32),
    }
    step = compile_step(task, optimizer, mesh, batch, accumulation_steps=1)
    # The kernel [24, 4] is split over fsdp and tensor, and the bias [4] over tensor. Adam keeps two
    # moments of each. Both Adam and the state count the steps.
    state = 3 * 4 * (DIM * 4 // 4 + 4 // 2) + 4 + 4
    rows = ROWS // 4 * (DIM + 4 + 1) * 4
    assert state_bytes(task.definition, optimizer, mesh) == state
    # The seed has 4 bytes. The learning rate is not an input, since it is a constant in Optax's
    # Adam.
    seed = 4
    assert step.arguments == state + rows + seed
    assert step.memory == step.arguments + step.outputs + step.temporaries
    # The state is updated in place; the other outputs are a few scalar metrics.
    assert 0 < step.outputs < 256
    # The step has two matrix products, one for the forward pass and one for the kernel's gradient.
    # It takes more FLOPs than these products, because generating the noise takes FLOPs too.
    assert step.flops is not None and step.flops >= 2 * (ROWS // 4 * DIM * 2 * 2)
    assert "ENTRY" in step.text


def test_the_message_of_the_tpu_compiler_is_parsed() -> None:
    refused = _out_of_memory(
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
    )
    assert refused is not None
    assert (refused.needed, refused.available) == (int(20.5 * 2**30), int(15.75 * 2**30))
    assert _out_of_memory("INTERNAL: something else") is None


def test_a_compiler_may_count_no_flops() -> None:
    memory = SimpleNamespace(
        argument_size_in_bytes=8,
        output_size_in_bytes=6,
        alias_size_in_bytes=4,
        temp_size_in_bytes=2,
    )
    compiled = SimpleNamespace(
        memory_analysis=lambda: memory, cost_analysis=lambda: None, as_text=lambda: "HloModule"
    )
    step = read_compiled(compiled)
    assert step.flops is None and step.bytes_accessed is None
    assert (step.memory, step.text) == (8 + 6 - 4 + 2, "HloModule")
