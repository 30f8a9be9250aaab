"""Open the model that a fine-tuning run starts from, and identify it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.parameters import Parameters
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    MODEL_NAME,
    chosen_step,
    read_model,
    read_tokenizer,
)
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_files import saved_run, steps_in
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed
from bert_jax.training.sharding import parameter_shardings
from bert_jax.training.step import fingerprint


@dataclass(frozen=True)
class Source:
    """The work directory of `init_from`, or of a run that has begun and whose source is gone.

    step: of the checkpoint to start from, found once: what is at work there may save another one.
    None where no parameters are taken: the run draws its own, or has begun without a source.
    held: copies of them in this process's memory, where there is but one; None to read them.
    """

    directory: Path
    model: ModelConfig
    tokenizer: Tokenizer
    step: int | None
    mesh: Mesh
    held: Mapping[str, np.ndarray] | None = None

    def parameters(self) -> Parameters:
        """Those to start from, float32, laid out on the mesh."""
        assert self.step is not None
        definition = define_model(self.model, ComputeConfig(dtype="float32", attention="xla"))
        shardings = parameter_shardings(definition.shapes, definition.logical_axes, self.mesh)
        if self.held is not None:
            return {name: jax.device_put(x, shardings[name]) for name, x in self.held.items()}
        return load_parameters(self.directory / CHECKPOINTS_NAME, definition, shardings, self.step)

    def hold(self) -> Source:
        """The same whose parameters stay, whatever becomes of the checkpoint."""
        if self.step is None:
            return self
        held = {name: np.array(x) for name, x in self.parameters().items()}
        return replace(self, held=held)

    @cached_property
    def checksum(self) -> str | None:
        """Of the parameters: a model trained again in its place has other ones."""
        return None if self.step is None else fingerprint(self.parameters())


def open_source(config: FinetuneConfig, mesh: Mesh) -> Source:
    """Reads what a run starts from.

    Raises:
      ValueError: `init_from` is no work directory, unless the run has begun and its source was
        deleted; it holds another model's tokenizer, or is `work_dir`.
    """
    directory, work_dir = Path(config.init_from), Path(config.work_dir)
    if work_dir.resolve() == directory.resolve():
        raise ValueError(
            f"work_dir={config.work_dir} is where the model to start from is (init_from); expected "
            "a directory of the run's own"
        )
    gone = not agreed(int(_is_there(directory, parameters=not config.from_scratch)))
    saved = saved_run(work_dir / CHECKPOINTS_NAME)
    if gone and saved is not None and (work_dir / MODEL_NAME).is_file():
        _check_path(directory, work_dir, saved[1].get("init_from"))
        # The sizes and the tokenizer are its source's, the parameters its own.
        model, _ = read_model(work_dir)
        return Source(work_dir, model, read_tokenizer(work_dir, model.encoder), None, mesh)
    model, _ = read_model(directory)
    tokenizer = read_tokenizer(directory, model.encoder)
    step = None if config.from_scratch else chosen_step(directory)
    return Source(directory, model, tokenizer, step, mesh)


def _check_path(directory: Path, work_dir: Path, stored: Any) -> None:
    """Refuse a directory without a model if the run in `work_dir` started from another one."""
    if stored is None:
        return
    began = stored["path"] if isinstance(stored, dict) else stored
    if str(directory.resolve()) != began:
        raise ValueError(
            f"init_from={directory}: there is no model, and the run in {work_dir} started from "
            f"{began}. Set init_from={began}, even if that directory was deleted."
        )


def source_identity(config: FinetuneConfig, source: Source) -> Any:
    """What a checkpoint of the run in `work_dir` is to say of its source.

    A run that has begun has its source's parameters in it, so it goes on as it told before where
    `init_from` is the same path, whatever checkpoint came to be there since, where it holds the
    same parameters, or where it is gone. Else this one is told, and the checkpoint's differs.
    """
    path, work_dir = str(Path(config.init_from).resolve()), Path(config.work_dir)
    saved = saved_run(work_dir / CHECKPOINTS_NAME)
    stored = None if saved is None else saved[1].get("init_from")
    if stored is not None:
        known = isinstance(stored, dict)  # early versions told the path alone
        if source.directory == work_dir or path == (stored["path"] if known else stored):
            return stored
        if known and stored["parameters"] == source.checksum:
            return stored
    return {"path": path, "parameters": source.checksum}


def _is_there(directory: Path, *, parameters: bool) -> bool:
    """Whether there is a model to start from, with a whole checkpoint if its `parameters` are."""
    if not (directory / MODEL_NAME).is_file():
        return False
    checkpoints = directory / CHECKPOINTS_NAME
    return not parameters or (checkpoints.is_dir() and bool(steps_in(checkpoints)))


def encoder_of(config: FinetuneConfig, source: Source) -> EncoderConfig:
    """The encoder as the run trains it.

    Raises:
      ValueError: the run wants longer sequences than it has positions for.
    """
    encoder = source.model.encoder
    if config.max_length > encoder.max_positions:
        raise ValueError(
            f"max_length={config.max_length}, but the model of {config.init_from} has "
            f"{encoder.max_positions} positions: set max_length to that at most"
        )
    if config.dropout != -1.0:
        encoder = dataclasses.replace(
            encoder, hidden_dropout=config.dropout, attention_dropout=config.dropout
        )
    return encoder
