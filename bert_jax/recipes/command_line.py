"""Load the config for a command, and apply the options that set its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_jax.finetuning.config import EvaluationConfig, FinetuneConfig
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.continued import (
    check_positions,
    complete_model_values,
    configured_model_values,
    corpus_values,
    has_begun,
    model_values,
    sentence_pairs_of,
)
from bert_jax.recipes.load import load_config, run_start, sets_key
from bert_jax.runs.model_location import local_model
from bert_jax.runs.work_dir import MODEL_NAME

# The default recipe for continuing the pretraining of a model.
CONTINUED = "domain"


def add_override(overrides: Sequence[str], key: str, value: str, option: str) -> list[str]:
    """Return the overrides, and an additional one for the key that a command-line option sets.

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


def pretrain_config(
    config: str | None, overrides: Sequence[str], init: str | None, corpus: str | None = None
) -> PretrainConfig:
    """Load the config of a pretraining run.

    Args:
      config: a recipe or a config file; if None, the recipe for continued pretraining, which needs
        `init`.
      overrides: arguments such as "--config.seed=1".
      init: the work directory of a model to initialize from, or None. It sets `init_from` and,
        unless overridden, every `model.*` key that is needed to load the model's parameters. It
        also sets `sentence_pairs`, unless that key is overridden or set in the config.
      corpus: the corpus of the only phase, or None. It also sets the phase's sequence length,
        unless overridden.

    Raises:
      ValueError: there is neither a config nor a model, the overrides also set `init_from` or the
        corpus, the model or the corpus cannot be read, `corpus` is set but the config has several
        phases, the corpus's sequences are too long for the model, or `load_config` fails.
    """
    if not config and not init:
        raise ValueError(
            "--config is missing. Specify a recipe, or use --init to continue the pretraining of a "
            f"model with the recipe {CONTINUED}."
        )
    config = config or CONTINUED
    if init:
        overrides = add_override(overrides, "init_from", init, "--init")
        overrides = _with_values_of_model(config, overrides, local_model(init, "--init"))
    if not corpus:
        return load_config(config, overrides, kind="pretrain")
    phases = load_config(config, overrides, kind="pretrain").ordered_phases()
    values = corpus_values([name for name, *_ in phases], corpus)
    (key, _), *rest = values.items()
    overrides = add_override(overrides, key, corpus, "--corpus")
    loaded = load_config(config, _with_defaults(overrides, dict(rest)), kind="pretrain")
    check_positions(loaded.longest_sequence, loaded.model.max_positions, corpus)
    return loaded


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
      config: a recipe or a config file. If None, the result is None, and the config of the run that
        trained the model is used.
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


def _with_values_of_model(config: str, overrides: Sequence[str], init: Path) -> list[str]:
    """Return the overrides, plus the initial model's values for the keys that they do not set.

    A run that has already started no longer needs the initial model, because its own work directory
    contains the same model config. The value of `sentence_pairs` cannot change once a run has
    started, so it also comes from that work directory. A run that only decays the learning rate
    continues another run from a checkpoint, so its model config must be exactly the same, including
    the dropout rates.
    """
    # Other keys may be invalid without the initial model's values. For example, rotary angles are
    # valid only if the positions are rotary.
    start = run_start(config, overrides)
    work_dir = start.directory
    own = (work_dir / MODEL_NAME).is_file()
    source = work_dir if own and not (init / MODEL_NAME).is_file() else init
    if start.decay_from > 0:
        model = complete_model_values(source)
    elif source is work_dir:
        model = configured_model_values(source)
    else:
        model = model_values(source)
    values = {f"model.{key}": value for key, value in sorted(model.items())}
    if not sets_key(config, "sentence_pairs"):
        pairs_source = work_dir if own and has_begun(work_dir) else source
        values["sentence_pairs"] = sentence_pairs_of(pairs_source)
    return _with_defaults(overrides, values)


def _with_defaults(overrides: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Return the overrides, and additional ones for the values whose keys are not set yet."""
    overridden = {word.partition("=")[0].removeprefix("--config.") for word in overrides}
    missing = {key: value for key, value in values.items() if key not in overridden}
    return [*overrides, *(f"--config.{key}={value}" for key, value in missing.items())]
