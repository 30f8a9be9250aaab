"""Reading a run's work directory: its config, its tokenizer and its newest parameters."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import jax

from bert_jax.cli.config import RESOLVED_NAME
from bert_jax.cli.conversion import to_dataclass
from bert_jax.cli.run_config import PretrainConfig
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.models.heads import PretrainingModel
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.checkpoint import load_parameters
from bert_jax.training.sharding import MeshConfig, make_mesh, parameter_shardings

CHECKPOINTS_NAME = "checkpoints"
TOKENIZER_NAME = "tokenizer"


@dataclass(frozen=True)
class TrainedModel:
    """A pretrained model on this process's first device, ready to be called."""

    config: PretrainConfig
    tokenizer: Tokenizer
    model: PretrainingModel


def load_trained(work_dir: str) -> TrainedModel:
    """Loads what `bert-jax pretrain` left in `work_dir`.

    Raises:
      ValueError: it is no work directory, or holds no finished checkpoint.
    """
    directory = Path(work_dir)
    resolved = directory / RESOLVED_NAME
    if not resolved.is_file():
        raise ValueError(
            f"{work_dir}: no {RESOLVED_NAME} in it; expected the work_dir of a `bert-jax pretrain`"
        )
    config = to_dataclass(PretrainConfig, json.loads(resolved.read_text(encoding="utf-8")))
    # The backend that trained it need not be here: any attention gives the same.
    compute = dataclasses.replace(config.compute, attention="auto")
    compute = compute.resolve(jax.default_backend(), config.model)
    task = Pretraining(config.model, compute, next_sentence=config.next_sentence)
    definition = task.definition
    mesh = make_mesh(MeshConfig(), jax.local_devices()[:1])
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    params = load_parameters(directory / CHECKPOINTS_NAME, definition, shardings)
    tokenizer = Tokenizer.load(directory / TOKENIZER_NAME)
    return TrainedModel(config, tokenizer, definition.module(params))
