"""Check arithmetically, before anything is traced, whether a run can fit into device memory.

The figures are lower bounds: a run that exceeds the memory according to them cannot work, and one
that does not may still need more. `bert-jax plan` asks the compiler for the actual need.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from bert_jax.machine_memory import format_bytes, memory_bytes
from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.training.chips import chip
from bert_jax.training.sharding import batch_extent

_FLOAT = _INT = 4  # bytes; parameters, moments and gradients are float32, ids are int32
_MOMENTS = 2  # in Adam and in LAMB
# XLA counts an array's bytes in 63 bits and aborts beyond that; an eighth exceeds any cluster.
MAX_TRACEABLE_BYTES = 1 << 60


@dataclass(frozen=True)
class Part:
    """The bytes that one purpose takes on one device, and the config keys that determine them."""

    name: str
    bytes: int
    keys: str


def state_parts(
    mesh: Mesh, parameters: int, trained: int, *, all_gradients: bool, keys: str
) -> list[Part]:
    """Return the least memory the state needs on one device.

    Args:
      parameters: the number of parameters. trained: the number of trainable parameters.
      all_gradients: whether all gradients exist at the same time, as for clipping by norm.
      keys: the config keys of the model's sizes, for messages.
    """
    shards = mesh.shape["fsdp"] * mesh.shape["tensor"]
    sizes = {"parameters": parameters, "optimizer state": _MOMENTS * trained}
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
    """Return the least memory of one batch on one device: its ids and one layer's activations.

    Args:
      compute: the computation's settings, with "auto" resolved.
      rows: the batch's rows on all devices. rows_at_once: rows that are computed together.
      length: tokens per row. arrays: integers per token of a batch.
      keys: the config keys of the batch's sizes, for messages.
    """
    parts, tensor = batch_extent(mesh), mesh.shape["tensor"]
    itemsize = 2 if compute.dtype == "bfloat16" else 4
    ids = rows * length * arrays * _INT
    tokens = rows_at_once * length
    widest = max(encoder.hidden_dim, encoder.ffn_dim // tensor)
    if compute.attention == "xla":  # stores full rows of scores; cuDNN's kernel does not
        widest = max(widest, encoder.num_heads * length // tensor)
    return Part(name, (ids + tokens * widest * itemsize) // parts, keys)


def check_traceable(parts: list[Part], mesh: Mesh) -> None:
    """Raise ValueError for sizes that overflow the compiler's counters on any hardware."""
    total = mesh.size * sum(part.bytes for part in parts)
    if total > MAX_TRACEABLE_BYTES:
        raise ValueError(
            f"this run needs at least {format_bytes(total)} on all devices ({_listed(parts)} on "
            f"each), but a step can be compiled only up to {format_bytes(MAX_TRACEABLE_BYTES)}. "
            f"Lower {_excess(parts, MAX_TRACEABLE_BYTES // mesh.size).keys}"
        )


def check_fits(parts: list[Part], mesh: Mesh) -> None:
    """Raise ValueError if this process's devices cannot hold the parts, even with nothing else.

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
    has = "this machine has" if device.platform == "cpu" else f"a {device.device_kind} has"
    or_shard = "" if device.platform == "cpu" else ", or shard the state with mesh.fsdp"
    raise ValueError(
        f"this run does not fit in memory: it needs at least {format_bytes(on_one)}{per_device} "
        f"({_listed(parts)}), but {has} {format_bytes(memory)}. "
        f"Lower {_excess(parts, memory // number).keys}{or_shard}"
    )


def check_ahead(key: str, batches: int, batch_bytes: int) -> None:
    """Raise ValueError if the prefetched batches cannot fit into this machine's memory.

    key: the config key and its value, for the message.
    """
    needed, memory = batches * batch_bytes, memory_bytes()
    if needed > memory:
        raise ValueError(
            f"{key}: {batches:,} prefetched batches take {format_bytes(needed)}, but this machine "
            f"has {format_bytes(memory)}. A few batches are enough to keep the device busy"
        )


def _device_memory(device: object) -> int | None:
    stats = getattr(device, "memory_stats", lambda: None)()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    known = chip(str(getattr(device, "device_kind", "")))
    return known.memory_bytes if known else None


def _listed(parts: list[Part]) -> str:
    return ", ".join(f"{part.name} {format_bytes(part.bytes)}" for part in parts)


def _excess(parts: list[Part], memory: int) -> Part:
    """Return the first part that no longer fits."""
    totals = itertools.accumulate(part.bytes for part in parts)
    return next(part for part, total in zip(parts, totals, strict=True) if total > memory)
