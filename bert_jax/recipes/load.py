"""Load a pretraining or fine-tuning config from a recipe, a file or a ConfigDict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, overload

from ml_collections import ConfigDict

from bert_jax.conversion import config_keys, to_dataclass
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.registry import task_sections
from bert_jax.local_paths import check_local
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.recipes.files import KINDS, Kind, find_config, read_config_file
from bert_jax.recipes.keys import apply_values, apply_words, leave_out_sections, with_all_keys
from bert_jax.runs.views import local_run
from bert_jax.validation import check_choice

CONFIGS: Mapping[Kind, type] = {"pretrain": PretrainConfig, "finetune": FinetuneConfig}

Source: TypeAlias = "str | os.PathLike[str] | ConfigDict | Mapping[str, Any]"
Overrides: TypeAlias = Mapping[str, object] | Sequence[str]
T = TypeVar("T")

# Keys that only pretraining configs have.
_PRETRAINING_KEYS = ("phases", "masking")
_OTHER = {"pretrain": "finetune", "finetune": "pretrain"}


def _kinds_by_key() -> dict[str, Kind]:
    pretraining: dict[str, Kind] = dict.fromkeys(_PRETRAINING_KEYS, "pretrain")
    return pretraining | dict.fromkeys(task_sections(), "finetune")


@overload
def load_config(
    source: Source, overrides: Overrides = (), *, kind: Literal["pretrain"]
) -> PretrainConfig: ...
@overload
def load_config(
    source: Source, overrides: Overrides = (), *, kind: Literal["finetune"]
) -> FinetuneConfig: ...
@overload
def load_config(source: Source, overrides: Overrides = (), *, kind: None = None) -> Any: ...
def load_config(source: Source, overrides: Overrides = (), *, kind: Kind | None = None) -> Any:
    """Load the config of a pretraining or fine-tuning run.

    Args:
      source: the name of a recipe, with or without its kind ("pretrain/tiny" or "tiny"); the path
        to a Python file with a function `get_config()` that returns a ConfigDict; or a ConfigDict.
        "NAME:TEXT" calls `get_config("TEXT")`. Omitted keys take their default values.
      overrides: a list of command-line overrides, such as "optimizer.peak_learning_rate=1e-4", or a
        dict from dotted keys to values, such as {"optimizer.peak_learning_rate": 1e-4}. The values
        in a dict may be sections; their keys replace the keys of the source. The value None removes
        a section.
      kind: the expected kind of config. If None, it is inferred from the keys, and the static type
        of the result is Any.

    Returns:
      A PretrainConfig or a FinetuneConfig.

    Raises:
      ValueError: there is no such recipe or file, a key is unknown (the message suggests close
        matches) or set twice, or a value has the wrong type or is rejected by the config.
    """
    check_choice("kind", kind, (None, *KINDS))
    content, name = _read(source, kind)
    cls = CONFIGS[kind or _kind_of(content, overrides, name)]
    return fill_config(cls, content, overrides, name)


def sets_key(source: Source, key: str) -> bool:
    """Return whether a pretraining config sets a top-level key, rather than leaving its default.

    Raises:
      ValueError: there is no such recipe or file.
    """
    return key in _read(source, "pretrain")[0]


@dataclass(frozen=True)
class RunStart:
    """Where a pretraining run starts; see `PretrainConfig`.

    Attributes:
      work_dir: the run's work directory.
      decay_from: the step of another run's checkpoint to start from; 0 for none.
    """

    work_dir: str
    decay_from: int

    @property
    def directory(self) -> Path:
        """The run's work directory on this machine."""
        return local_run(self.work_dir)


def run_start(source: Source, overrides: Sequence[str]) -> RunStart:
    """Return where a pretraining run starts, without checking other keys of its config.

    Args:
      source: see `load_config`.
      overrides: arguments such as "--config.seed=1".

    Raises:
      ValueError: there is no such recipe or file, or a key is missing or has the wrong type.
    """
    content, _ = _read(source, "pretrain")
    tree = with_all_keys(PretrainConfig, content)
    keys = config_keys(RunStart)
    prefixes = tuple(f"--config.{key}=" for key in keys)
    words = [word for word in overrides if word.startswith(prefixes)]
    values = apply_words(tree, words, PretrainConfig)
    return to_dataclass(RunStart, {key: values[key] for key in keys})


def fill_config(cls: type[T], content: ConfigDict, overrides: Overrides, name: str) -> T:
    """Build the dataclass `cls` from the contents of a config file and overrides.

    Args:
      cls: the frozen dataclass to build.
      content: the contents of the file. Omitted keys take the default values of `cls`.
      overrides: see `load_config`.
      name: the name of the file, for error messages.

    Raises:
      ValueError: see `load_config`.
    """
    _check_kind(cls, content, name)
    tree = with_all_keys(cls, content)
    if isinstance(overrides, str):
        raise ValueError(f"overrides={overrides!r}: expected a mapping or a list of strings")
    if isinstance(overrides, Mapping):
        return to_dataclass(cls, apply_values(tree, overrides, cls))
    words = leave_out_sections(tree, overrides, cls)
    return to_dataclass(cls, apply_words(tree, words, cls).to_dict())


def _read(source: Source, kind: Kind | None) -> tuple[ConfigDict, str]:
    """Return the contents of a config and its name for error messages."""
    if not isinstance(source, str | os.PathLike | ConfigDict | Mapping):
        raise ValueError(
            f"source={source!r}: expected the name of a recipe, the path to a Python file or a "
            "ConfigDict."
        )
    if not isinstance(source, str | os.PathLike):
        return ConfigDict(source), "the config"
    path = os.fspath(source)
    check_local(path, "--config")
    name, *argument = path.split(":", 1)
    return read_config_file(find_config(name, kind), *argument), name


def _kind_of(content: ConfigDict, overrides: Overrides, name: str) -> Kind:
    """Infer the kind of a config from its keys."""
    keys = {*content, *(str(key).removeprefix("--config.").split(".")[0] for key in overrides)}
    kinds = {kind for key, kind in _kinds_by_key().items() if key in keys}
    if not kinds:
        raise ValueError(
            f"{name}: not a pretraining or fine-tuning config. Add `phases` or one of "
            f"{', '.join(task_sections())}"
        )
    return "pretrain" if "pretrain" in kinds else "finetune"


def _check_kind(cls: type, content: ConfigDict, name: str) -> None:
    """Reject a config of the wrong kind."""
    keys = config_keys(cls)
    for key, kind in _kinds_by_key().items():
        if key in content and key not in keys:
            raise ValueError(
                f"{name}: this is a config for `bert-jax {kind}`, because it has the key {key!r}. "
                f"Use a config such as those in configs/{_OTHER[kind]}"
            )
