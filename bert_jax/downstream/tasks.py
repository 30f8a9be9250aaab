"""Load the configs of the tasks that a run's checkpoints are fine-tuned on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.recipes.command_line import add_override
from bert_jax.recipes.load import load_config
from bert_jax.runs.bucket_layout import DOWNSTREAM_NAME
from bert_jax.storage.urls import Location


def task_names(configs: Sequence[str], key: str) -> list[str]:
    """Return a name for each config: the name of its recipe or file.

    Args:
      configs: the recipes and config files.
      key: the option or config key that contains them, for error messages.

    Raises:
      ValueError: there is no config, or two configs have the same name.
    """
    names: dict[str, str] = {}
    for config in configs:
        path, *argument = config.split(":", 1)
        name = re.sub(r"[^\w.-]+", "_", "-".join([Path(path).stem, *argument])).lstrip(".")
        if not name:
            raise ValueError(f"{key}={config!r}: not a recipe or a config file.")
        if name in names:
            raise ValueError(
                f"{key}: {names[name]} and {config} would both be called {name!r} in the log. "
                "Copy one of the config files under another name."
            )
        names[name] = config
    return list(names)


def load_tasks(
    configs: Sequence[str], overrides: Sequence[str], work_dir: Location, key: str
) -> dict[str, FinetuneConfig]:
    """Load the configs of the tasks, keyed by name.

    Args:
      configs: names of recipes and paths of config files.
      overrides: arguments such as "--config.num_epochs=1", which apply to every config.
      work_dir: the work directory of the pretraining run, or its URL.
      key: see `task_names`.

    Raises:
      ValueError: see `task_names` and `load_config`, or the overrides set a work directory.
    """
    tasks = {}
    for name, config in zip(task_names(configs, key), configs, strict=True):
        words = list(overrides)
        for override, value in (
            ("init_from", work_dir),
            ("work_dir", work_dir / DOWNSTREAM_NAME / name),
        ):
            words = add_override(words, override, str(value), "RUN")
        tasks[name] = load_config(config, words, kind="finetune")
    return tasks
