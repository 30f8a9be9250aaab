"""Before a run is traced, estimate how much memory it needs, and reject it if it does not fit."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import chip
from bert_jax.analysis.counts import parameter_counts
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.layers import compute_dtype
from bert_jax.models.model import ModelConfig
from bert_jax.processes import format_bytes, memory_bytes
from bert_jax.training.sharding import batch_extent

_FLOAT = _INT = 4  # bytes; parameters, moments and gradients are float32, ids are int32
# XLA stores the size of an array in bytes as a 63-bit number and aborts on overflow. Even an eighth
# of the largest such number is more memory than any cluster has.
MAX_TRACEABLE_BYTES = 1 << 60


@dataclass(frozen=True)
class Part:
    """The memory that one device needs for one purpose.

    Attributes:
      name: the purpose.
      bytes: the size in bytes.
      keys: the config keys that determine the size, with their values, for messages.
    """

    name: str
    bytes: int
    keys: str


def state_parts(
    mesh: Mesh, parameters: int, trained: int, *, moments: int, all_gradients: bool, keys: str
) -> list[Part]:
    """Return the minimum memory that the training state needs on one device.

    Args:
      mesh: the device mesh.
      parameters: the number of parameters.
      trained: the number of trainable parameters.
      moments: the number of values that the optimizer stores per trainable parameter.
      all_gradients: whether all gradients exist at the same time, as they do when clipping by norm.
      keys: the config keys that set the model's size, for messages.
    """
    shards = mesh.shape["fsdp"] * mesh.shape["tensor"]
    sizes = {"parameters": parameters, "optimizer state": moments * trained}
    if all_gradients:
        sizes["gradients"] = trained
    return [Part(name, _FLOAT * size // shards, keys) for name, size in sizes.items()]


def batch_part(
    mesh: Mesh,
    encoder: EncoderConfig,
    compute: ComputeConfig,
    *,
    name: str,
    rows: int,
    rows_at_once: int,
    length: int,
    arrays: int,
    keys: str,
) -> Part:
    """Return the minimum memory that one batch needs on a device: ids and one layer's activations.

    Args:
      mesh: the device mesh.
      encoder: the encoder.
      compute: the compute settings, with every "auto" resolved.
      name: the purpose of the memory, for messages.
      rows: the number of rows in the batch, over all devices.
      rows_at_once: the number of rows that are processed together.
      length: the number of tokens per row.
      arrays: the number of integer arrays in a batch, each with one value per token.
      keys: the config keys that set the batch's size, for messages.
    """
    parts, tensor = batch_extent(mesh), mesh.shape["tensor"]
    itemsize = compute_dtype(compute).itemsize
    ids = rows * length * arrays * _INT
    tokens = rows_at_once * length
    widest = max(encoder.hidden_dim, encoder.ffn_dim // tensor)
    if compute.attention == "xla":  # the fused kernels store no attention scores
        widest = max(widest, encoder.num_heads * length // tensor)
    return Part(name, (ids + tokens * widest * itemsize) // parts, keys)


def check_traceable(parts: list[Part], mesh: Mesh) -> None:
    """Raise ValueError if the sizes would overflow the compiler's counters.

    This does not depend on the hardware.
    """
    total = mesh.size * sum(part.bytes for part in parts)
    if total > MAX_TRACEABLE_BYTES:
        raise ValueError(
            f"this run needs at least {format_bytes(total)} on all devices ({_listed(parts)} on "
            f"each), but the compiler supports at most {format_bytes(MAX_TRACEABLE_BYTES)}. "
            f"Lower {_excess(parts, MAX_TRACEABLE_BYTES // mesh.size).keys}."
        )


def check_fits(parts: list[Part], mesh: Mesh) -> None:
    """Raise ValueError if these parts already exceed the memory of this process's devices.

    CPU devices share the machine's memory. Devices that do not report their memory are not checked.
    """
    on_one = sum(part.bytes for part in parts)
    local = [x for x in mesh.devices.flat if x.process_index == jax.process_index()]
    device, number = local[0], 1
    memory = _device_memory(device)
    if device.platform == "cpu":
        number, memory = len(local), memory_bytes()
    if memory is None or on_one * number <= memory:
        return
    per_device = f" on each of {number} devices" if number > 1 else ""
    has = "this machine has" if device.platform == "cpu" else f"each {device.device_kind} has"
    or_shard = "" if device.platform == "cpu" else ", or shard the state with mesh.fsdp"
    raise ValueError(
        f"this run does not fit in memory: it needs at least {format_bytes(on_one)}{per_device} "
        f"({_listed(parts)}), but {has} {format_bytes(memory)}. "
        f"Lower {_excess(parts, memory // number).keys}{or_shard}."
    )


def check_ahead(key: str, batches: int, batch_bytes: int) -> None:
    """Check that the prefetched batches fit in this machine's memory.

    Args:
      key: the config key and its value, for the message.
      batches: the number of batches.
      batch_bytes: the size of a batch.

    Raises:
      ValueError: the batches do not fit.
    """
    needed, memory = batches * batch_bytes, memory_bytes()
    if needed > memory:
        raise ValueError(
            f"{key}: {batches:,} prefetched batches take {format_bytes(needed)}, but this machine "
            f"has {format_bytes(memory)}. A few batches are enough to keep the device busy."
        )


def _device_memory(device: object) -> int | None:
    stats = getattr(device, "memory_stats", lambda: None)()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    figures = chip(str(getattr(device, "device_kind", "")))
    return figures.memory_bytes if figures else None


def _listed(parts: list[Part]) -> str:
    return ", ".join(f"{part.name} {format_bytes(part.bytes)}" for part in parts)


def _excess(parts: list[Part], memory: int) -> Part:
    """Return the first part that does not fit in memory together with the parts before it."""
    totals = itertools.accumulate(part.bytes for part in parts)
    return next(part for part, total in zip(parts, totals, strict=True) if total > memory)


# The number of integer arrays in a batch: token, segment, position and document ids. A fine-tuning
# batch has a mask instead of position and document ids.
PRETRAINING_ARRAYS, FINETUNING_ARRAYS = 4, 3
# The sizes of BERT-large, keyed by EncoderConfig's field names.
_OF_BERT_LARGE = {
    "hidden_dim": 1024,
    "embedding_dim": 1024,
    "ffn_dim": 4096,
    "num_layers": 24,
    "vocab_size": 30_522,
    "max_positions": 512,
}


def model_size_keys(encoder: EncoderConfig) -> str:
    """Return the config keys that set the size of the embeddings or layers, whichever is larger.

    Keys whose values do not exceed BERT-large's are left out, unless no keys would be left.
    """
    counts = parameter_counts(ModelConfig(encoder, "encoder", pooler=False))
    names = ["hidden_dim", "ffn_dim", "num_layers"]
    if counts.embeddings > counts.layers:
        dim = "hidden_dim" if encoder.embedding_dim is None else "embedding_dim"
        names = ["vocab_size", "max_positions", dim]
    large = [name for name in names if getattr(encoder, name) > _OF_BERT_LARGE[name]]
    return ", ".join(f"model.{name}={getattr(encoder, name)}" for name in large or names)
