"""Create the config for each variant of a sweep from the sweep's config."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.finetuning.hyperparameters import MAX_RUNS
from bert_jax.finetuning.variants import Variant
from bert_jax.validation import unknown_key

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config", bound="DataclassInstance")

# Config keys that the sweep itself sets, and the parameters of `sweep` to use instead.
SWEPT = {
    "work_dir": "output",
    "batch_size": "batch_sizes",
    "optimizer.peak_learning_rate": "learning_rates",
    "num_epochs": "num_epochs",
    "seed": "num_seeds",
}


def variants_of(config: Config, vary: Mapping[str, Sequence[object]]) -> dict[Variant, Config]:
    """Return the configs of all variants, one for each combination of the varied keys' values.

    Args:
      config: the sweep's config.
      vary: the values to try, keyed by dotted config key.

    Raises:
      ValueError: a key is unknown, is a section or is set by the sweep itself, its values are empty
        or contain duplicates, the config rejects a value, or there are too many variants.
    """
    for key, values in vary.items():
        if key in SWEPT:
            raise ValueError(f"{key}={values!r}: a sweep sets this key itself. Use {SWEPT[key]}.")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ValueError(f"{key}={values!r}: expected a list of one or more values.")
    if (count := math.prod(map(len, vary.values()))) > MAX_RUNS:
        raise ValueError(
            f"{', '.join(vary)}: {count:,} combinations of values; expected at most {MAX_RUNS:,}. "
            "Use fewer values."
        )
    configs = {}
    for values in itertools.product(*vary.values()):
        varied = _with_values(config, dict(zip(vary, values, strict=True)))
        configs[Variant.of({key: value_at(varied, key) for key in vary})] = varied
    for key, values in vary.items():
        if len({variant.values[key] for variant in configs}) < len(values):
            raise ValueError(f"{key}={list(values)}: contains duplicates. Remove them.")
    return configs


def value_at(config: DataclassInstance, key: str) -> Any:
    """Return the value of a dotted key, with lists instead of tuples.

    Raises:
      ValueError: there is no such key, or it is a section.
    """
    plain = to_plain(config)
    section, name = _place(plain, key)
    return section[name]


def _with_values(config: Config, values: Mapping[str, object]) -> Config:
    plain = to_plain(config)
    for key, value in values.items():
        section, name = _place(plain, key)
        section[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    return to_dataclass(type(config), plain) if values else config


def _place(plain: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the section that contains a dotted key, and the key's name in that section."""
    keys = list(_keys(plain))
    if key not in keys:
        raise ValueError(f"config.{key}{unknown_key(key, keys)}")
    *sections, name = key.split(".")
    for section in sections:
        plain = plain[section]
    return plain, name


def _keys(plain: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name
