"""Compare the lower bounds on memory use with the compiler's count and with a device's limit."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.analysis.counts import parameter_counts
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training import memory
from bert_jax.training.memory import (
    Part,
    batch_part,
    check_ahead,
    check_fits,
    check_traceable,
    state_parts,
)
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.planning import compile_step
from bert_jax.training.sharding import MeshConfig, make_mesh

ENCODER = EncoderConfig(
    vocab_size=64, hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=32, max_positions=16
)
COMPUTE = ComputeConfig(dtype="float32", attention="xla")
ROWS, LENGTH, PREDICTIONS = 16, 16, 2


def parts_of(mesh: Any, **changes: Any) -> list[Part]:
    parameters = parameter_counts(ModelConfig(ENCODER)).total
    state = state_parts(
        mesh, parameters, parameters, moments=2, all_gradients=True, keys="the model"
    )
    sizes: dict[str, Any] = dict(rows=ROWS, rows_at_once=ROWS, length=LENGTH, arrays=4)
    sizes |= dict(name="one batch", keys="batch_size") | changes
    return [*state, batch_part(mesh, ENCODER, COMPUTE, **sizes)]


@pytest.mark.parametrize("mesh_config", [MeshConfig(), MeshConfig(data=2, fsdp=2, tensor=2)])
def test_the_bound_is_below_the_compilers_count(mesh_config: MeshConfig) -> None:
    mesh = make_mesh(mesh_config)
    ids = jax.ShapeDtypeStruct((ROWS, LENGTH), np.int32)
    few = jax.ShapeDtypeStruct((ROWS, PREDICTIONS), np.int32)
    one = jax.ShapeDtypeStruct((ROWS, 1), np.int32)
    batch = dict.fromkeys(("token_ids", "segment_ids", "position_ids", "document_ids"), ids)
    batch |= dict.fromkeys(("masked_positions", "masked_labels"), few)
    batch |= dict.fromkeys(("cls_positions", "pair_labels"), one)
    batch["masked_weights"] = jax.ShapeDtypeStruct(few.shape, np.float32)
    batch["pair_weights"] = jax.ShapeDtypeStruct(one.shape, np.float32)
    optimizer = make_optimizer(OptimizerConfig())
    task = Pretraining(ENCODER, COMPUTE)
    compiled = compile_step(task, optimizer, mesh, batch, accumulation_steps=1)
    bound = sum(part.bytes for part in parts_of(mesh))
    assert compiled.arguments < bound <= compiled.memory


def test_only_fsdp_and_tensor_shard_the_state() -> None:
    whole, split = (make_mesh(config) for config in (MeshConfig(), MeshConfig(fsdp=2, tensor=2)))
    sizes = [
        [
            part.bytes
            for part in state_parts(mesh, 1_000, 400, moments=2, all_gradients=True, keys="")
        ]
        for mesh in (whole, split)
    ]
    assert sizes == [[4_000, 3_200, 1_600], [1_000, 800, 400]]
    fewer = state_parts(whole, 1_000, 400, moments=2, all_gradients=False, keys="")
    assert [part.name for part in fewer] == ["parameters", "optimizer state"]


def test_a_run_that_exceeds_a_cpus_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = make_mesh(MeshConfig())
    needed = 8 * sum(part.bytes for part in parts_of(mesh))
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed)
    check_fits(parts_of(mesh), mesh)
    monkeypatch.setattr(memory, "memory_bytes", lambda: needed - 8)
    with pytest.raises(ValueError) as error:
        check_fits(parts_of(mesh), mesh)
    assert "does not fit in memory: it needs at least" in str(error.value)
    assert "on each of 8 devices (parameters " in str(error.value)
    assert str(error.value).endswith("KiB. Lower batch_size.")
    monkeypatch.setattr(memory, "memory_bytes", lambda: 1_000)
    with pytest.raises(ValueError, match=r"this machine has 1000 bytes\. Lower the model\.$"):
        check_fits(parts_of(mesh), mesh)


class Accelerator:
    platform, device_kind, process_index = "gpu", "NVIDIA H100", 0

    def __init__(self, limit: int | None):
        self._stats = None if limit is None else {"bytes_limit": limit}

    def memory_stats(self) -> dict[str, int] | None:
        return self._stats


@dataclasses.dataclass
class Accelerators:
    devices: np.ndarray


def test_a_run_must_fit_into_the_memory_of_one_accelerator() -> None:
    parts = [Part("parameters", 600, "model.hidden_dim"), Part("one batch", 400, "batch_size")]

    def mesh(limit: int | None) -> Any:
        return Accelerators(np.array([Accelerator(limit)] * 4))

    check_fits(parts, mesh(1_000))
    check_fits(parts, mesh(None))  # This device does not report how much memory it has.
    with pytest.raises(ValueError, match="each NVIDIA H100 has 999 bytes.*or shard the state with"):
        check_fits(parts, mesh(999))


def test_sizes_that_overflow_the_compiler_are_refused() -> None:
    mesh = make_mesh(MeshConfig())
    check_traceable([Part("parameters", 1 << 57, "model.ffn_dim")], mesh)
    message = "the compiler supports at most 1.0 EiB. Lower model.ffn_dim"
    with pytest.raises(ValueError, match=message):
        check_traceable([Part("parameters", (1 << 57) + 1, "model.ffn_dim")], mesh)


def test_prefetched_batches_must_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda: 1 << 20)
    check_ahead("loader.prefetch=4", 4, 1 << 18)
    with pytest.raises(
        ValueError, match="loader.prefetch=5: 5 prefetched batches take 1.2 MiB, but"
    ):
        check_ahead("loader.prefetch=5", 5, 1 << 18)
