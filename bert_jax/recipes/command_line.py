"""Load the config of a command with the values of its options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.initial_state import model_values
from bert_jax.recipes.load import load_config
from bert_jax.runs.work_dir import MODEL_NAME


def add_override(overrides: Sequence[str], key: str, value: str, option: str) -> list[str]:
    """Return the overrides with one more, which was given as a command-line option.

    Raises:
      ValueError: the overrides already contain the key.
    """
    word = f"--config.{key}"
    for other in overrides:
        if other.partition("=")[0] == word:
            raise ValueError(f"{option}={value} and {other} set the same key. Give one of them.")
    return [*overrides, f"{word}={value}"]


def pretrain_config(config: str, overrides: Sequence[str], init: str | None) -> PretrainConfig:
    """Load the config of a pretraining run.

    Args:
      config: a recipe or a config file.
      overrides: words such as "--config.seed=1".
      init: the work directory of a model to start from. It sets `init_from`, and every `model.*`
        key that the model's parameters require and that is not overridden.

    Raises:
      ValueError: the overrides set `init_from` too, the model cannot be read, or see `load_config`.
    """
    if init:
        overrides = add_override(overrides, "init_from", init, "--init")
        source = _initial_model(config, overrides, Path(init))
        overridden = {word.partition("=")[0] for word in overrides}
        required = {f"--config.model.{key}": value for key, value in model_values(source).items()}
        missing = sorted(required.keys() - overridden)
        overrides = [*overrides, *(f"{key}={required[key]}" for key in missing)]
    return load_config(config, overrides, kind="pretrain")


def finetune_config(
    config: str, overrides: Sequence[str], init: str | None, data: str | None
) -> FinetuneConfig:
    """Load the config of a fine-tuning run.

    Args:
      config: a recipe or a config file.
      overrides: words such as "--config.seed=1".
      init: the work directory of a model to start from, which sets `init_from`.
      data: a training file that replaces the config's.

    Raises:
      ValueError: the overrides set `init_from` too, or see `load_config`.
    """
    if init:
        overrides = add_override(overrides, "init_from", init, "--init")
    loaded = load_config(config, overrides, kind="finetune")
    return loaded.with_file(data, "train") if data else loaded


def evaluation_config(config: str, overrides: Sequence[str], work_dir: Path) -> FinetuneConfig:
    """Load the config of a task on which the model of a work directory is evaluated.

    Raises:
      ValueError: the overrides set `init_from` or `work_dir`, or see `load_config`.
    """
    for key in ("init_from", "work_dir"):
        overrides = add_override(overrides, key, str(work_dir), "WORKDIR")
    return load_config(config, overrides, kind="finetune")


def _initial_model(config: str, overrides: Sequence[str], init: Path) -> Path:
    """Return the work directory to read the model from.

    After a run has started, the model it started from may be deleted. The run has the same one.
    """
    if (init / MODEL_NAME).is_file():
        return init
    work_dir = Path(load_config(config, overrides, kind="pretrain").work_dir)
    return work_dir if (work_dir / MODEL_NAME).is_file() else init
