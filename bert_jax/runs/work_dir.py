"""Read and write a work directory: the model's description, tokenizer and checkpoints.

The description includes how the run used its model, which predictors follow by default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.files import write_file
from bert_jax.json_files import check_kinds, expecting_fields, read_json_object
from bert_jax.local_paths import local_path, make_directory
from bert_jax.models.config import ComputeConfig, DTypeName, EncoderConfig
from bert_jax.models.model import Model, ModelConfig, define_model, part_of
from bert_jax.models.parameters import Parameters
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_files import newest_step, steps_in
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.training.sharding import MeshConfig, make_mesh, parameter_shardings


@dataclass(frozen=True)
class SpanDefaults:
    """How passages were cut and answers bounded, in tokens (Devlin et al. 2019, section 4.2).

    doc_stride: from the beginning of a window to that of the next one. max_query_length: of a
      question, whose end is left out. max_answer_length: of an answer.
    """

    doc_stride: int
    max_query_length: int
    max_answer_length: int


@dataclass(frozen=True)
class InferenceDefaults:
    """What the parameters of a fine-tuned model do not say.

    max_length: tokens of a sequence at most, special ones included.
    spans: of the head "span" alone.
    negative: of a model with one score, the probability of its one label: what it is called when
      that label does not hold; "" of the others.
    pairs: whether its texts were pairs; None where nobody said.
    document_context: whether sentences were tagged with those of the document around them.
    """

    max_length: int
    spans: SpanDefaults | None = None
    negative: str = ""
    pairs: bool | None = None
    document_context: bool = False


# Of Devlin et al.'s release, for models that come from elsewhere.
RELEASED_SPAN_DEFAULTS = InferenceDefaults(
    384, SpanDefaults(doc_stride=128, max_query_length=64, max_answer_length=30)
)


CHECKPOINTS_NAME = "checkpoints"
TOKENIZER_NAME = "tokenizer"
MODEL_NAME = "model.json"
PAIRS = "sentence_pairs"  # in the origin of a pretrained model: what its pairs were


@dataclass(frozen=True)
class Comparison:
    """By which held-out metric the checkpoints of a run are compared."""

    metric: str
    lower_is_better: bool = False


@dataclass(frozen=True)
class TrainedModel:
    """A model on this process's first device, ready to be called."""

    config: ModelConfig
    tokenizer: Tokenizer
    model: Model


def write_model(
    config: ModelConfig,
    origin: Mapping[str, str],
    work_dir: Path,
    *,
    tokenizer: Tokenizer,
    best_step: int | None = None,
    compared_by: Comparison | None = None,
    inference_defaults: InferenceDefaults | None = None,
    sentence_embedding: SentenceEmbedding | None = None,
) -> None:
    """Writes `model.json`: what the checkpoints beside it are parameters of.

    origin: where they come from, for people and for model cards. tokenizer: whose ids the model
    reads, saved beside it and told by its fingerprint here. best_step: of the checkpoint that is to
    be used; None for the best by `compared_by` of those that the log beside it tells of and that
    are there, or, without that, for the newest. inference_defaults: None for a model
    that was not fine-tuned by this package. sentence_embedding: the settings of the model's
    sentence embedding; None if it has none.
    """
    content = {
        "model": to_plain(config),
        "origin": dict(origin),
        "tokenizer": tokenizer.fingerprint,
        "best_step": best_step,
        "compared_by": to_plain(compared_by),
        "usage": to_plain(inference_defaults),
        "sentence_embedding": to_plain(sentence_embedding),
    }
    write_file(make_directory(work_dir) / MODEL_NAME, json.dumps(content, indent=2) + "\n")


def read_model(work_dir: Path) -> tuple[ModelConfig, dict[str, str]]:
    """The model and the origin that `write_model` wrote.

    Raises:
      ValueError: there is no such file, or it does not describe a model.
    """
    file, content = work_dir / MODEL_NAME, _content(work_dir)
    return to_dataclass(ModelConfig, content["model"], f"{file}: model"), content["origin"]


def read_tokenizer(work_dir: Path, encoder: EncoderConfig) -> Tokenizer:
    """The tokenizer of the model in `work_dir`, whose encoder this is.

    Raises:
      ValueError: it is missing, damaged, or that of another model: it is not the one `write_model`
        was given, or has more entries than the token table has rows.
    """
    directory = work_dir / TOKENIZER_NAME
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > encoder.vocab_size:
        raise ValueError(
            f"{directory} has {tokenizer.vocab_size:,} entries, the token table of the model in "
            f"{work_dir} {encoder.vocab_size:,} rows: put back the tokenizer it learned with"
        )
    told = _content(work_dir).get("tokenizer", tokenizer.fingerprint)  # not told by early versions
    if told != tokenizer.fingerprint:
        raise ValueError(
            f"{directory} is another tokenizer ({tokenizer.fingerprint[:12]}) than the model in "
            f"{work_dir} learned with ({told[:12]}): its ids would mean other tokens. Put that one "
            "back"
        )
    return tokenizer


def read_inference_defaults(work_dir: Path) -> InferenceDefaults | None:
    """Return the inference defaults that `write_model` wrote; None if there are none.

    Raises:
      ValueError: see `read_model`; also if the defaults are damaged.
    """
    values, place = _content(work_dir).get("usage"), f"{work_dir / MODEL_NAME}: usage"
    return None if values is None else to_dataclass(InferenceDefaults, values, place)


def read_sentence_embedding(work_dir: Path) -> SentenceEmbedding | None:
    """Return the sentence-embedding settings in `model.json`; None if there are none.

    Raises:
      ValueError: see `read_model`; also if the settings are damaged.
    """
    values = _content(work_dir).get("sentence_embedding")
    place = f"{work_dir / MODEL_NAME}: sentence_embedding"
    return None if values is None else to_dataclass(SentenceEmbedding, values, place)


def default_checkpoint_step(work_dir: Path) -> int:
    """The step of the checkpoint to use: the best of a fine-tuning run, else the newest.

    Of a run that has not ended, or was killed, it is the best so far of the whole checkpoints.

    Raises:
      ValueError: it is no work directory, or there is no finished checkpoint.
    """
    best = named_step(work_dir)
    if best is not None:
        return best
    newest = newest_step(work_dir / CHECKPOINTS_NAME)
    by = read_comparison(work_dir)
    best = None if by is None else best_so_far(work_dir, by)
    return agreed(newest if best is None else best)


def read_comparison(work_dir: Path) -> Comparison | None:
    """By what the checkpoints of a fine-tuning run are compared; None for another model.

    Raises:
      ValueError: as `read_model`.
    """
    values = _content(work_dir).get("compared_by")
    place = f"{work_dir / MODEL_NAME}: compared_by"
    return None if values is None else to_dataclass(Comparison, values, place)


def named_step(work_dir: Path) -> int | None:
    """The step of the best checkpoint as a run named it at its end, None before.

    Raises:
      ValueError: it is no work directory.
    """
    best = _content(work_dir).get("best_step")
    return None if best is None else int(best)


def best_so_far(work_dir: Path, by: Comparison) -> int | None:
    """The step of the best checkpoint of those that are there, by what the log tells of them.

    Of equal ones the last, as the run would have it; None if it tells of none.
    """
    log, there = work_dir / LOG_NAME, steps_in(work_dir / CHECKPOINTS_NAME)
    entries = read_metrics(log) if log.is_file() else []
    sign = -1.0 if by.lower_is_better else 1.0
    values = {
        int(entry["step"]): sign * entry[by.metric]
        for entry in entries
        if entry["kind"] == "evaluation"
        and entry["step"] in there
        and entry.get(by.metric) is not None
    }
    return max(values, key=lambda step: (values[step], step), default=None)


def load_model_parameters(
    work_dir: Path, config: ModelConfig, compute: ComputeConfig, step: int | None = None
) -> Parameters:
    """Return the parameters in `work_dir` of a step on this process's first device.

    step: None for `default_checkpoint_step`.

    Raises:
      ValueError: there is no finished checkpoint, or it holds another model.
    """
    definition = define_model(config, compute)
    step = default_checkpoint_step(work_dir) if step is None else step
    mesh = make_mesh(MeshConfig(), jax.local_devices()[:1])
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    return load_parameters(work_dir / CHECKPOINTS_NAME, definition, shardings, step)


def load_for_export(
    work_dir: Path, head: str | None
) -> tuple[ModelConfig, int, dict[str, jax.Array]]:
    """What is to be exported: the model, the step of its checkpoint, its float32 parameters.

    Raises:
      ValueError: it is no work directory, holds no finished checkpoint, or lacks `head`.
    """
    whole, _ = read_model(work_dir)
    config = part_of(whole, head)
    compute = ComputeConfig(dtype="float32", attention="xla")
    # A run may be at work and save another one meanwhile.
    step = default_checkpoint_step(work_dir)
    parameters = load_model_parameters(work_dir, whole, compute, step)
    wanted = define_model(config, compute).shapes
    return config, step, {name: parameters[name] for name in wanted}


def load_trained(work_dir: str, dtype: DTypeName = "auto") -> TrainedModel:
    """Load the model of a work directory: the checkpoint of `default_checkpoint_step`.

    dtype: the dtype to compute in (see `ComputeConfig`), whatever the model was trained in.

    Raises:
      ValueError: it is no work directory, holds no finished checkpoint or another model's
        tokenizer, or no such dtype.
    """
    directory = Path(work_dir)
    config, _ = read_model(directory)
    tokenizer = read_tokenizer(directory, config.encoder)
    compute = ComputeConfig(dtype=dtype).resolve(jax.devices()[0], config.encoder)
    params = load_model_parameters(directory, config, compute)
    return TrainedModel(config, tokenizer, define_model(config, compute).module(params))


def _content(work_dir: Path) -> dict[str, Any]:
    file = local_path(work_dir) / MODEL_NAME
    if not file.is_file():
        raise ValueError(
            f"{work_dir}: no {MODEL_NAME} in it{what_it_is(work_dir)}; expected the work directory "
            "of a `bert-jax pretrain`, `bert-jax finetune` or `bert-jax import` (of a Hugging Face "
            "model)"
        )
    with expecting_fields(file):
        content = read_json_object(file)
        check_kinds(content, tokenizer=str, best_step=int)
        check_kinds(content["origin"], **dict.fromkeys(content["origin"], str))
        return {**content, "model": content["model"], "origin": dict(content["origin"])}


def what_it_is(work_dir: Path) -> str:
    """In brackets, what was taken for a work directory, and what to give in its place."""
    if Path(f"{work_dir}.index").is_file():
        return (
            f" (to import a TensorFlow checkpoint, run `bert-jax import {work_dir} --output DIR`)"
        )
    if not work_dir.exists():
        name = str(work_dir)
        if re.fullmatch(r"[\w-]+/[\w.-]+", name) or re.fullmatch(r"(?i)[\w.-]*bert[\w.-]*", name):
            return (
                " (the directory does not exist; to import a model of that name from the hub, run "
                f"`bert-jax import {name} --output DIR`)"
            )
        return " (there is no such directory)"
    if work_dir.is_file():
        return f" (that is a file{_for_file(work_dir)})"
    if work_dir.parent.name == CHECKPOINTS_NAME:
        run = work_dir.parents[1]
        return (
            f" (it is a checkpoint of {run}: give that, or what `bert-jax extract {run} --step "
            f"{work_dir.name} --output DIR` makes)"
        )
    models = sorted(work_dir.glob(f"runs/*/{MODEL_NAME}"))
    if models and (work_dir / "sweep.json").is_file():
        where = f"a model is in {models[0].parent}"
        where = where if len(models) == 1 else f"{len(models)} models are in {work_dir / 'runs'}"
        return f" (it is that of a sweep; {where})"
    if steps_in(work_dir / CHECKPOINTS_NAME):
        return (
            f" (it has checkpoints, but {MODEL_NAME} was removed: the command that trained them "
            "writes it again)"
        )
    if (work_dir / LOG_NAME).is_file():
        return " (it has a run's log: `bert-jax sweep` keeps no parameters but its best run's)"
    if [*work_dir.glob("*.safetensors"), *work_dir.glob("pytorch_model*.bin")]:
        return f" (`bert-jax import {work_dir} --output DIR` makes one of these Hugging Face files)"
    if [*work_dir.glob("*.ckpt.index")]:
        return (
            f" (to import a TensorFlow checkpoint, run `bert-jax import {work_dir} --output DIR`)"
        )
    return ""


def _for_file(file: Path) -> str:
    """Return advice for a file of a model, beginning with "; "; "" for other files."""
    parent = file.parent
    if (parent / MODEL_NAME).is_file():
        return f"; give its directory, {parent}"
    if file.name == "config.json" or file.suffix in (".safetensors", ".bin"):
        return f"; to import a Hugging Face model, run `bert-jax import {parent} --output DIR`"
    if ".ckpt" in file.name:
        prefix = parent / file.name.partition(".ckpt")[0]
        return (
            f"; to import a TensorFlow checkpoint, run `bert-jax import {prefix}.ckpt --output DIR`"
        )
    return ""
