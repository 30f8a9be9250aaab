"""Select and load the checkpoints in a work directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax

from bert_jax.conversion import to_dataclass
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.local_paths import naming_urls
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import Model, ModelConfig, define_model, part_of
from bert_jax.models.options import DTypeName
from bert_jax.models.parameters import Parameters, define
from bert_jax.models.replaced_token import ReplacedTokenPair, pair_names
from bert_jax.runs.default_checkpoint import best_so_far, default_checkpoint_step
from bert_jax.runs.model_location import local_model
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.views import local_run
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    Comparison,
    named_step,
    read_comparison,
    read_model,
    read_tokenizer,
)
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_checksums import PARAMETERS
from bert_jax.training.checkpoint_files import newest_step, require_step, steps_in
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.sharding import MeshConfig, make_mesh, parameter_shardings

BEST: Literal["best"] = "best"
NEWEST: Literal["newest"] = "newest"
Step = int | Literal["best", "newest"]


def parse_step(text: str) -> Step:
    """Parse the value of the `--step` option.

    Raises:
      ValueError: the value is neither a number nor "best" or "newest".
    """
    if text == BEST:
        return BEST
    if text == NEWEST:
        return NEWEST
    if not text.isdecimal():
        raise ValueError(f"--step={text}: expected a step number, '{BEST}' or '{NEWEST}'")
    return int(text)


def load_model_parameters(
    work_dir: Path,
    config: ModelConfig,
    compute: ComputeConfig,
    step: int | None = None,
    part: str = PARAMETERS,
) -> Parameters:
    """Load a checkpoint's parameters onto this process's first device.

    Args:
      work_dir: the work directory.
      config: the checkpoint's model.
      compute: the compute settings.
      step: the checkpoint's step; if None, `default_checkpoint_step`.
      part: see `load_parameters`.

    Raises:
      ValueError: there is no complete checkpoint, or it contains another model.
    """
    definition = define_model(config, compute)
    step = default_checkpoint_step(work_dir) if step is None else step
    mesh = make_mesh(MeshConfig(), jax.local_devices()[:1])
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    return load_parameters(work_dir / CHECKPOINTS_NAME, definition, shardings, step, part)


def load_generator_parameters(
    work_dir: Path, config: ModelConfig, compute: ComputeConfig, step: int, part: str = PARAMETERS
) -> Parameters:
    """Load the parameters of a run's generator onto this process's first device.

    Args:
      work_dir: the work directory.
      config: the generator.
      compute: the compute settings.
      step: the checkpoint's step.
      part: see `load_parameters`.

    Raises:
      ValueError: there is no such checkpoint, or it contains another model.
    """
    discriminator = read_model(work_dir)[0].encoder
    pair = define(lambda rngs: ReplacedTokenPair(discriminator, config.encoder, compute, rngs))
    mesh = make_mesh(MeshConfig(), jax.local_devices()[:1])
    shardings = parameter_shardings(pair.shapes, pair.logical_axes, mesh)
    both = load_parameters(work_dir / CHECKPOINTS_NAME, pair, shardings, step, part)
    names = pair_names(define_model(config, compute).shapes)
    return {name: both[stored] for name, stored in names.items()}


def load_for_export(
    work_dir: Path, head: str | None
) -> tuple[ModelConfig, int, dict[str, jax.Array]]:
    """Return the model to export, the step of its checkpoint, and its float32 parameters.

    Args:
      work_dir: the work directory.
      head: the head to export; None for the model's own head.

    Raises:
      ValueError: the directory is not a work directory, has no complete checkpoint, or its model
        lacks `head`.
    """
    # A run in progress may save another checkpoint in the meantime.
    step = default_checkpoint_step(work_dir)
    whole, _ = read_model(work_dir, step)
    config = part_of(whole, head)
    compute = ComputeConfig(dtype="float32", attention="xla")
    parameters = load_model_parameters(work_dir, whole, compute, step)
    exported = define_model(config, compute).shapes
    return config, step, {name: parameters[name] for name in exported}


@dataclass(frozen=True)
class TrainedModel:
    """A model on this process's first device, ready to be called.

    Attributes:
      config: the encoder and the head.
      tokenizer: the model's tokenizer.
      model: the Flax NNX module; `model.encoder` is its `Encoder`.
    """

    config: ModelConfig
    tokenizer: Tokenizer
    model: Model


@naming_urls()
def load_model(
    work_dir: str | os.PathLike[str], dtype: DTypeName = "auto", step: int | None = None
) -> TrainedModel:
    """Load the model in a work directory as a Flax module.

    By default, the best checkpoint of a fine-tuning run is loaded, or the newest checkpoint of any
    other run.

    Args:
      work_dir: the directory that `bert-jax pretrain`, `finetune` or `import` wrote.
      dtype: the dtype to compute in (see `ComputeConfig`), which may differ from the dtype used for
        training.
      step: the step of the checkpoint; None for the best one of a fine-tuning run, and the newest
        one of any other run.

    Returns:
      The model, its config and its tokenizer.

    Raises:
      ValueError: the directory is not a work directory, has no complete checkpoint, or has another
        model's tokenizer; or the dtype is unknown.
    """
    directory = local_model(work_dir)
    step = default_checkpoint_step(directory) if step is None else step
    config, _ = read_model(directory, step)
    tokenizer = read_tokenizer(directory, config.encoder)
    compute = ComputeConfig(dtype=dtype).resolve(jax.devices()[0], config.encoder)
    params = load_model_parameters(directory, config, compute, step)
    return TrainedModel(config, tokenizer, define_model(config, compute).module(params))


def step_number(work_dir: Path, step: Step) -> int:
    """Return the step number for a step that is specified as a number or by name.

    Raises:
      ValueError: the name is unknown, there is no checkpoint, or the best one is unknown.
    """
    if isinstance(step, int):
        return step
    if step == NEWEST:
        return newest_step(work_dir / CHECKPOINTS_NAME)
    if step == BEST:
        return _best(work_dir)
    raise ValueError(f"step={step!r}: expected a step number, '{BEST}' or '{NEWEST}'.")


def _best(work_dir: Path) -> int:
    recorded = named_step(work_dir)
    if recorded is not None:  # A fine-tuning run records its best step when it ends.
        return recorded
    comparison = read_comparison(work_dir) or pretraining_comparison(work_dir)
    best = best_so_far(work_dir, comparison)
    if best is None:
        raise ValueError(
            f"{work_dir}: no checkpoint was evaluated with {comparison.metric}, so the "
            "best one is unknown (checkpoint.keep_best keeps evaluated checkpoints). Specify a "
            f"step number or '{NEWEST}'."
        )
    return best


def pretraining_comparison(work_dir: Path) -> Comparison:
    """Return the metric that a pretraining run uses to keep its best checkpoints.

    Raises:
      ValueError: the run's config is missing or damaged.
    """
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        raise ValueError(
            f"{work_dir}: contains no {RESOLVED_NAME}, which specifies the metric for '{BEST}'. "
            f"Use --step {NEWEST} or specify a step number."
        )
    with expecting_fields(file):
        section = read_json_object(file)["checkpoint"]
        values = {"metric": section["best_metric"], "lower_is_better": section["lower_is_better"]}
        return to_dataclass(Comparison, values, f"{file}: checkpoint")


def checkpoints_at(path: str | os.PathLike[str], step: int | None = None) -> tuple[Path, list[int]]:
    """Return the checkpoints directory that a path refers to, and the steps of its checkpoints.

    Args:
      path: a work directory, its checkpoints directory, or a single checkpoint in it.
      step: the only step to return; if None, all steps are returned.

    Raises:
      ValueError: there is no checkpoint, or none at this step.
    """
    directory, steps = _find_checkpoints(local_run(path))
    if step is None:
        return directory, steps
    require_step(directory, step)
    return directory, [step]


def _find_checkpoints(path: Path) -> tuple[Path, list[int]]:
    for directory in (path / CHECKPOINTS_NAME, path):
        if steps := steps_in(directory):
            return directory, steps
    if path.name.isdecimal() and int(path.name) in steps_in(path.parent):
        return path.parent, [int(path.name)]
    raise ValueError(
        f"{path}: contains no checkpoint. Specify a work directory written by a run or by "
        f"`import`, or the `{CHECKPOINTS_NAME}` directory in it."
    )
