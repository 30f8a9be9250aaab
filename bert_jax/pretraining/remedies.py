"""Propose changes to a config that may make a run fit in device memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from bert_jax.models.options import Remat
from bert_jax.pretraining.phase_plan import PhasePlan
from bert_jax.training.sharding import MeshConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")
Changes = Mapping[str, Any]


def remedies(
    worst: PhasePlan,
    num_devices: int,
    limit: int,
    *,
    mesh: MeshConfig,
    remat: Remat,
    accumulation_steps: int,
    batch_sizes: Collection[int],
) -> Iterator[Changes]:
    """Yield changes to a config that may make `worst` fit, cheapest first.

    Gradient accumulation comes first (the same work in smaller matrix multiplications), then
    rematerialization (some work is done twice), then both. If the state fills more than half of a
    device's memory, it is sharded over all devices before any of these changes. Accumulation over k
    parts is skipped if the state plus 1/k of the step's other memory does not fit.

    Args:
      worst: the phase that needs the most memory.
      num_devices: the number of devices.
      limit: the memory of each device in bytes.
      mesh: the number of devices on each mesh axis in the config.
      remat: the rematerialization setting in the config.
      accumulation_steps: the number of accumulation steps in the config.
      batch_sizes: the batch sizes of all phases.
    """
    split = _split_state(mesh, num_devices)
    bases: list[Changes] = [split]
    if split and worst.state_bytes <= limit / 2:
        bases = [{}, split]
    parts = _parts(batch_sizes, num_devices // max(mesh.tensor, 1) * accumulation_steps)
    for base in bases:
        if base:
            yield base
        state = 0 if base else worst.state_bytes
        rest = worst.memory - worst.state_bytes
        enough = [factor for factor in parts if state + rest / factor <= limit]
        accumulated = [{"accumulation_steps": accumulation_steps * factor} for factor in enough]
        if remat == "layer":
            yield from ({**base, **change} for change in accumulated)
            continue
        if accumulated:
            yield {**base, **accumulated[0]}
        if remat == "none":
            yield {**base, "compute.remat": "dots"}
        layer = {**base, "compute.remat": "layer"}
        yield layer
        for factor in parts:
            yield {**layer, "accumulation_steps": accumulation_steps * factor}


def _split_state(mesh: MeshConfig, num_devices: int) -> Changes:
    """Return changes that make the FSDP axis as large as the tensor axis allows.

    The result is {} if the axis is already that large.
    """
    tensor = mesh.tensor
    fsdp = num_devices // tensor if tensor > 0 else 1
    if mesh.fsdp in (fsdp, -1):
        return {}
    changes: dict[str, Any] = {"mesh.fsdp": fsdp}
    if mesh.data not in (1, -1):
        changes["mesh.data"] = 1
    return changes


def _parts(batch_sizes: Collection[int], extent: int) -> list[int]:
    """Return the powers of two by which accumulation_steps can be multiplied.

    Args:
      batch_sizes: the batch sizes of all phases.
      extent: the number of parts that each batch is already split into, across devices and
        accumulation steps.
    """
    return [
        factor
        for factor in (2**n for n in range(1, 16))
        if all(size % (extent * factor) == 0 for size in batch_sizes)
    ]


def with_changes(settings: Settings, changes: Changes) -> Settings:
    """Return settings with changes applied; names have at most one dot, as in `mesh.fsdp`."""
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        if section:
            inner = dataclasses.replace(getattr(settings, section), **{key: value})
            settings = dataclasses.replace(settings, **{section: inner})
        else:
            settings = dataclasses.replace(settings, **{key: value})
    return settings


def flags(changes: Mapping[str, Any]) -> str:
    """Format changes to a config as command-line options."""
    return " ".join(f"--config.{name}={value}" for name, value in changes.items())
