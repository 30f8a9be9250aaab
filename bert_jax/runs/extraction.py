"""Extract one checkpoint of a run, or an average of its parameters, into a new work directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from bert_jax.local_paths import naming_urls
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters
from bert_jax.runs.checkpoints import (
    Step,
    load_generator_parameters,
    load_model_parameters,
    step_number,
)
from bert_jax.runs.model_location import local_model
from bert_jax.runs.outputs import new_directory
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    TOKENIZER_NAME,
    read_generator,
    read_inference_defaults,
    read_model,
    read_sentence_embedding,
    read_tokenizer,
    write_model,
)
from bert_jax.storage.urls import Location, parse_location
from bert_jax.training.checkpoint_checksums import AVERAGE, PARAMETERS
from bert_jax.training.checkpoint_files import identity_of, require_step, steps_in
from bert_jax.training.checkpoint_parameters import save_parameters
from bert_jax.training.metrics_log import LOG_NAME, copy_metrics

_COMPUTE = ComputeConfig(dtype="float32", attention="xla")


@dataclass(frozen=True)
class ExtractResult:
    """An extracted checkpoint.

    Attributes:
      work_dir: the new work directory.
      step: the checkpoint's step.
      averaged: the steps of all checkpoints in the average, in ascending order; only `step` unless
        `extract` was called with `average`.
    """

    work_dir: Location
    step: int
    averaged: tuple[int, ...]

    def description(self, source: str | os.PathLike[str], *, ema: bool) -> str:
        """Return a phrase that describes which parameters of the run `source` were extracted."""
        steps = ", ".join(f"{step:,}" for step in self.averaged)
        many = len(self.averaged) > 1
        mean = "moving average of the " if ema else "mean of the " if many else ""
        return f"the {mean}parameters of {os.fspath(source)} at step{'s' if many else ''} {steps}"


@naming_urls()
def extract(
    work_dir: str | os.PathLike[str],
    output: str | os.PathLike[str],
    step: Step,
    *,
    average: int = 1,
    ema: bool = False,
    generator: bool = False,
) -> ExtractResult:
    """Extract one of a run's checkpoints into a new work directory.

    The new directory has the parameters, the tokenizer and the run's config, log and manifests, but
    no optimizer state. A new run can start from the directory, but no run can be resumed in it.

    Args:
      work_dir: the work directory of a pretraining or fine-tuning run, which may be in progress.
      output: the work directory to create.
      step: the checkpoint's step, "newest", or "best", which is determined by the held-out metric
        in the run's config.
      average: the number of checkpoints to average: the one at `step` and the checkpoints saved
        before it (Izmailov et al. 2018, "Averaging weights leads to wider optima").
      ema: whether to extract the moving average of the parameters, which a run keeps if
        `averaging.ema_decay` is not 0, instead of the parameters.
      generator: whether to extract the generator, which has a masked-LM head, instead of the
        discriminator. Only runs that detect replaced tokens have a generator.

    Raises:
      ValueError: there is no such checkpoint or no best one, there are fewer than `average`
        checkpoints or no moving average, the rotary angles changed between the checkpoints to
        average, the run has no generator, or `output` already exists.
      OSError: a file cannot be read or written.
    """
    work_dir = local_model(work_dir)
    output = parse_location(output, "--output")
    read_model(work_dir)  # `read_model` raises an error unless `work_dir` is a work directory.
    number = step_number(work_dir, step)
    config, origin = read_model(work_dir, number)
    tokenizer = read_tokenizer(work_dir, config.encoder)
    if generator:
        config = _generator(work_dir, number)
    identity = identity_of(work_dir / CHECKPOINTS_NAME, number)
    steps = _averaged_steps(work_dir, number, average, ema=ema)
    _check_same_angles(work_dir, steps)
    with new_directory(output) as target:
        load = load_generator_parameters if generator else load_model_parameters
        part = AVERAGE if ema else PARAMETERS
        parameters = _mean(lambda step: load(work_dir, config, _COMPUTE, step, part), steps)
        # Change the identity, so that the run cannot resume in the new directory without its
        # optimizer state.
        marked = {**identity, "parameters alone": f"from step {', '.join(map(str, steps))}"}
        save_parameters(target / CHECKPOINTS_NAME, parameters, marked, number)
        _copy_records(work_dir, target, number)
        tokenizer.save(target / TOKENIZER_NAME)
        write_model(
            config,
            origin,
            target,
            tokenizer=tokenizer,
            inference_defaults=read_inference_defaults(work_dir),
            sentence_embedding=read_sentence_embedding(work_dir),
        )
    return ExtractResult(output, number, steps)


def _averaged_steps(work_dir: Path, number: int, average: int, *, ema: bool) -> tuple[int, ...]:
    """Return the steps of the last `average` checkpoints up to `number`.

    Raises:
      ValueError: there are too few checkpoints, or `average` does not fit the other settings.
    """
    if average < 1:
        raise ValueError(f"average={average}: expected at least 1 checkpoint.")
    if ema and average > 1:
        raise ValueError(
            f"average={average} with ema=True: the moving average already covers many steps. Use "
            "only one of them."
        )
    require_step(work_dir / CHECKPOINTS_NAME, number)
    steps = [step for step in steps_in(work_dir / CHECKPOINTS_NAME) if step <= number]
    if len(steps) < average:
        raise ValueError(
            f"average={average}: {work_dir} has only {len(steps)} checkpoints up to step {number} "
            f"({', '.join(map(str, steps))}). To make a run keep more, set checkpoint.keep_last "
            "or keep_every."
        )
    return tuple(steps[-average:])


def _check_same_angles(work_dir: Path, steps: Sequence[int]) -> None:
    """Reject an average over checkpoints that were trained with different rotary angles."""
    last = read_model(work_dir, steps[-1])[0].encoder
    alike = [step for step in steps if read_model(work_dir, step)[0].encoder == last]
    if len(alike) < len(steps):
        raise ValueError(
            f"average={len(steps)}: the run changed rotary_theta before step {alike[0]}, and "
            "parameters for different angles cannot be averaged. Use at most "
            f"{len(alike)}."
        )


def _mean(load: Callable[[int], Parameters], steps: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the mean of the parameters at several steps, computed in float64."""
    if len(steps) == 1:
        return dict(jax.device_get(load(steps[0])))
    total: dict[str, np.ndarray] = {}
    for step in steps:
        for name, value in jax.device_get(load(step)).items():
            total[name] = total.get(name, 0) + value.astype(np.float64)
    return {name: (value / len(steps)).astype(np.float32) for name, value in total.items()}


def _generator(work_dir: Path, step: int) -> ModelConfig:
    encoder = read_generator(work_dir, step)
    if encoder is None:
        raise ValueError(
            f"{work_dir}: has no generator. Only runs with a replaced_token section have one, and "
            "an extracted checkpoint has either the discriminator or the generator."
        )
    return ModelConfig(encoder, "masked_lm")


def _copy_records(work_dir: Path, target: Path, step: int) -> None:
    """Copy a run's config and manifests, and its log up to `step`."""
    for file in (work_dir / RESOLVED_NAME, *work_dir.glob("manifest-*.json")):
        if file.is_file():
            shutil.copyfile(file, target / file.name)
    if (log := work_dir / LOG_NAME).is_file():
        copy_metrics(log, target / LOG_NAME, up_to=step)
