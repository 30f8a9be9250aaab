"""Open the model that a fine-tuning run starts from, and identify it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.local_paths import is_url, shown
from bert_jax.models.classifiers import FROM_MASKED_LM
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.parameters import Parameters
from bert_jax.models.sentence_embedding import SETTINGS_DROPPED
from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.runs.model_location import local_model
from bert_jax.runs.named_checkpoint import absolute_name
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    MODEL_NAME,
    read_model,
    read_sentence_embedding,
    read_tokenizer,
)
from bert_jax.storage.locations import absolute, is_directory
from bert_jax.storage.urls import parse_location
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_files import saved_run, steps_in
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed
from bert_jax.training.sharding import parameter_shardings
from bert_jax.training.state import TrainState, fingerprint


@dataclass(frozen=True)
class Source:
    """The model a run starts from: `init_from`, or the run's own model if `init_from` was deleted.

    Attributes:
      init_from: the directory as written in the config.
      from_scratch: whether to take only the sizes and the tokenizer, not the parameters.
      directory: the directory that contains the model.
      model: the encoder and its head.
      tokenizer: the model's tokenizer.
      step: the step of the checkpoint to start from; None if no parameters are needed. It is chosen
        only once, since another process may be saving checkpoints in the same directory.
      mesh: the device mesh.
      held: a copy of the parameters in memory, which requires a single process; if None, they are
        read from the checkpoint.
    """

    init_from: str
    from_scratch: bool
    directory: Path
    model: ModelConfig
    tokenizer: Tokenizer
    step: int | None
    mesh: Mesh
    held: Mapping[str, np.ndarray] | None = None

    def parameters(self) -> Parameters:
        """Return the parameters to start from, in float32 and sharded over the mesh."""
        assert self.step is not None
        definition = define_model(self.model, ComputeConfig(dtype="float32", attention="xla"))
        shardings = parameter_shardings(definition.shapes, definition.logical_axes, self.mesh)
        if self.held is not None:
            return {name: jax.device_put(x, shardings[name]) for name, x in self.held.items()}
        return load_parameters(self.directory / CHECKPOINTS_NAME, definition, shardings, self.step)

    def hold(self) -> Source:
        """Return the source with its parameters in memory; it no longer needs the checkpoint."""
        if self.step is None or self.held is not None:
            return self
        held = {name: np.array(x) for name, x in self.parameters().items()}
        return replace(self, held=held)

    @cached_property
    def checksum(self) -> str | None:
        """A checksum of the parameters, which distinguishes a retrained model from the original."""
        return None if self.step is None else fingerprint(self.parameters())


def open_source(init_from: str, work_dir: Path, mesh: Mesh, *, from_scratch: bool) -> Source:
    """Open the model in `init_from` that the run in `work_dir` starts from.

    Raises:
      ValueError: `init_from` is `work_dir`, contains another model's tokenizer, or is not a work
        directory. A deleted directory is accepted if the run in `work_dir` started from it.
    """
    directory = _local(init_from)
    if work_dir.resolve() == directory.resolve():
        raise ValueError(
            f"work_dir={work_dir}: this is also init_from, the directory that the run starts from. "
            "Give the run its own directory."
        )
    gone = not agreed(int(_is_there(directory, parameters=not from_scratch)))
    saved = saved_run(work_dir / CHECKPOINTS_NAME)
    if gone and saved is not None and (work_dir / MODEL_NAME).is_file():
        _check_path(directory, work_dir, saved[1].get("init_from"))
        # The sizes and the tokenizer in the run's directory are the source's, but the parameters
        # are the run's own.
        model, _ = read_model(work_dir)
        tokenizer = read_tokenizer(work_dir, model.encoder)
        return Source(init_from, from_scratch, work_dir, model, tokenizer, None, mesh)
    step = None if from_scratch else default_checkpoint_step(directory)
    model, _ = read_model(directory, step)
    tokenizer = read_tokenizer(directory, model.encoder)
    return Source(init_from, from_scratch, directory, model, tokenizer, step, mesh)


def _local(init_from: str) -> Path:
    """Return the model's path on a local disk.

    If the model was deleted, the path does not exist.
    """
    try:
        return local_model(init_from, "init_from")
    except ValueError:
        if not is_url(init_from) or is_directory(parse_location(init_from)):
            raise
        return Path(init_from)


def _check_path(directory: Path, work_dir: Path, stored: Any) -> None:
    """Raise ValueError for a directory without a model, unless the run started from it."""
    if stored is None:
        return
    began = stored["path"] if isinstance(stored, dict) else stored
    if absolute_name(directory) != began:
        raise ValueError(
            f"init_from={shown(directory)}: contains no model, but the run in {work_dir} started "
            f"from {began}. Set init_from={began}, even if that directory has been deleted."
        )


def source_identity(source: Source, work_dir: Path) -> Any:
    """Return the description of the source to store in the run's checkpoints.

    A resumed run no longer needs its source. It keeps the stored description if `init_from` is the
    same path, contains the same parameters, or was deleted. Otherwise the new description differs
    from the stored one, and the run cannot be resumed.
    """
    path = absolute(parse_location(source.init_from))
    saved = saved_run(work_dir / CHECKPOINTS_NAME)
    stored = None if saved is None else saved[1].get("init_from")
    if stored is not None:
        # Early versions stored only the path, without a checksum.
        has_checksum = isinstance(stored, dict)
        if source.directory == work_dir or path == (stored["path"] if has_checksum else stored):
            return stored
        if has_checksum and stored["parameters"] == source.checksum:
            return stored
    return {"path": path, "parameters": source.checksum}


def _is_there(directory: Path, *, parameters: bool) -> bool:
    """Return whether a directory has a model and, if `parameters` is set, a complete checkpoint."""
    if not (directory / MODEL_NAME).is_file():
        return False
    checkpoints = directory / CHECKPOINTS_NAME
    return not parameters or (checkpoints.is_dir() and bool(steps_in(checkpoints)))


def encoder_of(source: Source, max_length: int, dropout: float) -> EncoderConfig:
    """Return the source's encoder with the run's dropout; -1 keeps the source's rates.

    Raises:
      ValueError: the encoder has fewer positions than `max_length`.
    """
    encoder = source.model.encoder
    if max_length > encoder.max_positions:
        raise ValueError(
            f"max_length={max_length}: the model in {source.init_from} has {encoder.max_positions} "
            f"positions. Set max_length to at most {encoder.max_positions}."
        )
    if dropout != -1.0:
        encoder = replace(
            encoder,
            hidden_dropout=dropout,
            attention_dropout=dropout,
            attention_output_dropout=None,
        )
    return encoder


def state_from_source(
    source: Source, state: TrainState, model: ModelConfig
) -> tuple[TrainState, str]:
    """Return `state` with the source's parameters, and a description of their origin.

    The source's classifier is kept only if `model` has the same task and labels. A prediction head
    (see `EncoderConfig.classifier_transform`) starts with the parameters of the masked-LM head.
    """
    params = source.parameters()
    heads = [(each.head, each.labels, each.problem) for each in (model, source.model)]
    if heads[0] != heads[1]:
        params = {name: x for name, x in params.items() if not name.startswith("classifier.")}
    for ours, other in FROM_MASKED_LM.items():
        params |= {
            ours + name.removeprefix(other): x
            for name, x in params.items()
            if name.startswith(other) and ours + name.removeprefix(other) not in params
        }
    kept = {name: params[name] for name in state.params if name in params}
    fresh = sorted(state.params.keys() - kept.keys())
    origin = f"the parameters of {source.init_from}"
    if any(name.startswith("classifier.") for name in kept):
        origin += ", including the classifier, which has the same labels"
    if fresh:
        origin += f"; randomly initialized: {', '.join(fresh)}"
    if read_sentence_embedding(source.directory) is not None:
        origin += f"; {SETTINGS_DROPPED}"
    return TrainState(state.step, state.params | kept, state.opt_state), origin
