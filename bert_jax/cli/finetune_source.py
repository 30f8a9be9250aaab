"""The model that a fine-tuning run starts from, and how the run knows it again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.inference.work_dir import (
    CHECKPOINTS_NAME,
    MODEL_NAME,
    chosen_step,
    read_model,
    read_tokenizer,
)
from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.parameters import Parameters
from bert_jax.training.checkpoint import load_parameters, saved_run
from bert_jax.training.distributed import agreed
from bert_jax.training.fingerprint import fingerprint
from bert_jax.training.sharding import parameter_shardings


@dataclass(frozen=True)
class Source:
    """The work directory of `init_from`, or of a run that has begun and whose source is gone.

    step: of the checkpoint to start from, found once: what is at work there may save another one.
    None where no parameters are taken: the run draws its own, or has begun without a source.
    """

    directory: Path
    model: ModelConfig
    tokenizer: Tokenizer
    step: int | None
    mesh: Mesh

    def parameters(self) -> Parameters:
        """Those to start from, float32, laid out on the mesh."""
        assert self.step is not None
        definition = define_model(self.model, ComputeConfig(dtype="float32", attention="xla"))
        shardings = parameter_shardings(definition.shapes, definition.logical_axes, self.mesh)
        return load_parameters(self.directory / CHECKPOINTS_NAME, definition, shardings, self.step)

    @cached_property
    def checksum(self) -> str | None:
        """Of the parameters: a model trained again in its place has other ones."""
        return None if self.step is None else fingerprint(self.parameters())


def open_source(config: FinetuneConfig, mesh: Mesh) -> Source:
    """Reads what a run starts from.

    Raises:
      ValueError: `init_from` is no work directory, unless the run has begun; it holds another
        model's tokenizer, or is `work_dir`.
    """
    directory, work_dir = Path(config.init_from), Path(config.work_dir)
    if work_dir.resolve() == directory.resolve():
        raise ValueError(
            f"work_dir={config.work_dir} is where the model to start from is (init_from); expected "
            "a directory of the run's own"
        )
    gone = agreed(int(not (directory / MODEL_NAME).is_file()))
    if gone and saved_run(work_dir / CHECKPOINTS_NAME) and (work_dir / MODEL_NAME).is_file():
        directory = work_dir  # the sizes and the tokenizer are its source's
    model, _ = read_model(directory)
    tokenizer = read_tokenizer(directory, model.encoder)
    step = None if gone or config.from_scratch else chosen_step(directory)
    return Source(directory, model, tokenizer, step, mesh)


def source_identity(config: FinetuneConfig, source: Source) -> Any:
    """What a checkpoint of the run in `work_dir` is to say of its source.

    A run that has begun has its source's parameters in it, so it goes on as it told before where
    `init_from` is the same path, whatever came to be there since, where it is the same parameters
    elsewhere, or where it is gone. Else this one is told, which the checkpoint then differs from.
    """
    here = {"path": str(Path(config.init_from).resolve()), "parameters": source.checksum}
    saved = saved_run(Path(config.work_dir) / CHECKPOINTS_NAME)
    if saved is None or "init_from" not in saved[1]:
        return here
    stored = saved[1]["init_from"]
    if isinstance(stored, str):  # early versions told the path alone
        known = stored == here["path"]
    else:
        known = stored["path"] == here["path"] or stored["parameters"] == here["parameters"]
    return stored if known or source.directory == Path(config.work_dir) else here
