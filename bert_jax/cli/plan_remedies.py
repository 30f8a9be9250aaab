"""Changes of a config that need less memory, the cheapest first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.cli.plan_report import PhasePlan
from bert_jax.cli.run_config import PretrainConfig

Changes = Mapping[str, Any]


def remedies(
    config: PretrainConfig, worst: PhasePlan, num_devices: int, limit: int
) -> Iterator[Changes]:
    """Changes of `config` to compile, so that `worst` may fit `limit` bytes a device.

    Accumulation comes first (the same work in smaller products), then rematerialisation (work
    done twice), then both. State that fills half a device is split over all of them before.
    Accumulation in k parts is left out where even 1/k of what is not state would not fit.
    """
    split = _split_state(config, num_devices)
    bases: list[Changes] = [split]
    if split and worst.state_bytes <= limit / 2:
        bases = [{}, split]
    parts = _parts(config, num_devices)
    for base in bases:
        if base:
            yield base
        state = 0 if base else worst.state_bytes
        rest = worst.memory - worst.state_bytes
        enough = [more for more in parts if state + rest / more <= limit]
        accumulated = [{"accumulation_steps": config.accumulation_steps * more} for more in enough]
        if config.compute.remat == "layer":
            yield from ({**base, **change} for change in accumulated)
            continue
        if accumulated:
            yield {**base, **accumulated[0]}
        if config.compute.remat == "none":
            yield {**base, "compute.remat": "dots"}
        layer = {**base, "compute.remat": "layer"}
        yield layer
        for more in parts:
            yield {**layer, "accumulation_steps": config.accumulation_steps * more}


def _split_state(config: PretrainConfig, num_devices: int) -> Changes:
    """FSDP over every device that the tensor axis leaves; nothing if it is so already."""
    tensor = config.mesh.tensor
    fsdp = num_devices // tensor if tensor > 0 else 1
    if config.mesh.fsdp in (fsdp, -1):
        return {}
    changes: dict[str, Any] = {"mesh.fsdp": fsdp}
    if config.mesh.data not in (1, -1):
        changes["mesh.data"] = 1
    return changes


def _parts(config: PretrainConfig, num_devices: int) -> list[int]:
    """2, 4, 8, ...: into how many more parts the batches of all phases can be processed."""
    extent = num_devices // max(config.mesh.tensor, 1) * config.accumulation_steps
    sizes = [phase.batch_size for phase in config.phases.values()]
    return [
        more
        for more in (2**n for n in range(1, 16))
        if all(size % (extent * more) == 0 for size in sizes)
    ]


def with_changes(config: PretrainConfig, changes: Changes) -> PretrainConfig:
    """The config with `changes` by dotted name, at most one section deep."""
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        if section:
            inner = dataclasses.replace(getattr(config, section), **{key: value})
            config = dataclasses.replace(config, **{section: inner})
        else:
            config = dataclasses.replace(config, **{key: value})
    return config


def flags(changes: Changes) -> str:
    """The words to type."""
    return " ".join(f"--config.{name}={value}" for name, value in changes.items())
