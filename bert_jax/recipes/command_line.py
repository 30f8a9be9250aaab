"""Load the config for a command, and apply the options that set its keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_jax.finetuning.config import EvaluationConfig, FinetuneConfig
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.initial_state import model_values
from bert_jax.recipes.load import load_config
from bert_jax.runs.work_dir import MODEL_NAME


def add_override(overrides: Sequence[str], key: str, value: str, option: str) -> list[str]:
    """Return the overrides plus one for the key that a command-line option sets.

    Args:
      overrides: arguments such as "--config.seed=1".
      key: the dotted key.
      value: the value of the key.
      option: the name of the option, for the error message.

    Raises:
      ValueError: the overrides already set the key.
    """
    word = f"--config.{key}"
    for other in overrides:
        if other.partition("=")[0] == word:
            raise ValueError(f"{option}={value} and {other} set the same key. Use only one of them")
    return [*overrides, f"{word}={value}"]


def pretrain_config(config: str, overrides: Sequence[str], init: str | None) -> PretrainConfig:
    """Load the config of a pretraining run.

    Args:
      config: a recipe or a config file.
      overrides: arguments such as "--config.seed=1".
      init: the work directory of a model to initialize from, or None. It sets `init_from` and,
        unless overridden, every `model.*` key that is needed to load the model's parameters.

    Raises:
      ValueError: the overrides also set `init_from`, the model cannot be read, or `load_config`
        fails.
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
      overrides: arguments such as "--config.seed=1".
      init: the work directory of a model to initialize from, or None. It sets `init_from`.
      data: a training file that replaces the one in the config, or None.

    Raises:
      ValueError: the overrides also set `init_from`, or `load_config` fails.
    """
    if init:
        overrides = add_override(overrides, "init_from", init, "--init")
    loaded = load_config(config, overrides, kind="finetune")
    return loaded.with_file(data, "train") if data else loaded


def evaluation_config(
    config: str | None, overrides: Sequence[str], work_dir: str
) -> EvaluationConfig | None:
    """Load a task's config for evaluating the model in a work directory.

    Args:
      config: a recipe or a config file; if None, the result is None, which stands for the config of
        the model's own run.
      overrides: arguments such as "--config.seed=1".
      work_dir: the model's work directory.

    Raises:
      ValueError: there are overrides but no config, they set `init_from` or `work_dir`, or
        `load_config` fails.
    """
    if not config:
        if overrides:
            raise ValueError(
                f"{overrides[0]}: there is no config to override. Add the task's config, for "
                "example --config configs/finetune/table.py"
            )
        return None
    for key in ("init_from", "work_dir"):
        overrides = add_override(overrides, key, work_dir, "WORKDIR")
    return load_config(config, overrides, kind="finetune").evaluation


def _initial_model(config: str, overrides: Sequence[str], init: Path) -> Path:
    """Return the work directory to read the initial model's config from.

    A run that has already started no longer needs the initial model, because its own work directory
    contains the same model config.
    """
    if (init / MODEL_NAME).is_file():
        return init
    work_dir = Path(load_config(config, overrides, kind="pretrain").work_dir)
    return work_dir if (work_dir / MODEL_NAME).is_file() else init
