"""Read and write `model.json`, which describes the model in a work directory.

The file also contains the settings that predictors use by default.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.files import write_file
from bert_jax.json_files import check_kinds, expecting_fields, read_json_object
from bert_jax.local_paths import SMALL_MODELS, local_path, make_directory
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.runs.rotary_changes import RotaryChange, encoder_at
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_files import steps_in
from bert_jax.training.metrics_log import LOG_NAME

T = TypeVar("T")

CHECKPOINTS_NAME = "checkpoints"
TOKENIZER_NAME = "tokenizer"
MODEL_NAME = "model.json"
GENERATOR_KEY = "generator"  # The encoder of a run's generator has this key.
ROTARY_CHANGES_KEY = "rotary_changes"  # Changes of the encoder during a run have this key.
PAIRS = "sentence_pairs"  # The kind of pairs in a pretrained model's origin has this key.


@dataclass(frozen=True)
class SpanDefaults:
    """Settings for extractive question answering (Devlin et al. 2019, section 4.2).

    Attributes:
      doc_stride: the number of tokens between the starts of consecutive windows of a passage.
      max_query_length: the maximum number of tokens in a question; longer ones are truncated.
      max_answer_length: the maximum number of tokens in an answer.
    """

    doc_stride: int
    max_query_length: int
    max_answer_length: int


@dataclass(frozen=True)
class InferenceDefaults:
    """Settings of a fine-tuning run that predictors use by default.

    Attributes:
      max_length: the maximum number of tokens in a sequence, including special tokens.
      spans: the settings for question answering; None unless the head is "span".
      negative: the label to predict if a model has only one label and that label does not apply;
        "" for other models.
      pairs: whether the inputs were text pairs; None if unknown.
      document_context: whether sentences were tagged together with the other sentences in their
        document.
    """

    max_length: int
    spans: SpanDefaults | None = None
    negative: str = ""
    pairs: bool | None = None
    document_context: bool = False


# The values from Devlin et al.'s release, which are used for imported models.
RELEASED_SPAN_DEFAULTS = InferenceDefaults(
    384, SpanDefaults(doc_stride=128, max_query_length=64, max_answer_length=30)
)


@dataclass(frozen=True)
class Comparison:
    """The held-out metric by which a run's checkpoints are compared."""

    metric: str
    lower_is_better: bool = False


def write_model(
    config: ModelConfig,
    origin: Mapping[str, str],
    work_dir: Path,
    *,
    tokenizer: Tokenizer,
    generator: EncoderConfig | None = None,
    rotary_changes: Sequence[RotaryChange] = (),
    best_step: int | None = None,
    compared_by: Comparison | None = None,
    inference_defaults: InferenceDefaults | None = None,
    sentence_embedding: SentenceEmbedding | None = None,
) -> None:
    """Write `model.json`, which describes the model in the checkpoints next to it.

    Args:
      config: the encoder and its head.
      origin: where the parameters come from, as information for users and model cards.
      work_dir: the work directory.
      tokenizer: the model's tokenizer. The file records only its fingerprint; the caller saves the
        tokenizer itself next to the file.
      generator: the encoder of the generator whose parameters are also in the checkpoints; None if
        there is none.
      rotary_changes: the changes that the run makes to the rotary angles of `config` and
        `generator`, in order.
      best_step: the step of the checkpoint to use. If None, the best existing checkpoint according
        to the log and `compared_by` is used, or the newest one if `compared_by` is None too.
      compared_by: the metric by which checkpoints are compared.
      inference_defaults: the settings that predictors use by default; None for a model that was
        not fine-tuned by this package.
      sentence_embedding: the model's sentence-embedding settings; None if it has none.
    """
    content = {
        "model": to_plain(config),
        "origin": dict(origin),
        "tokenizer": tokenizer.fingerprint,
        "best_step": best_step,
        "compared_by": to_plain(compared_by),
        "usage": to_plain(inference_defaults),
        "sentence_embedding": to_plain(sentence_embedding),
        **({} if generator is None else {GENERATOR_KEY: to_plain(generator)}),
        **({ROTARY_CHANGES_KEY: to_plain(tuple(rotary_changes))} if rotary_changes else {}),
    }
    write_file(make_directory(work_dir) / MODEL_NAME, json.dumps(content, indent=2) + "\n")


def read_model(work_dir: Path, step: int | None = None) -> tuple[ModelConfig, dict[str, str]]:
    """Return the model and its origin from `model.json`.

    Args:
      work_dir: the work directory.
      step: the step of a checkpoint; None for the newest one. The models of two checkpoints differ
        if the run changed the rotary angles of its encoder between them.

    Raises:
      ValueError: there is no `model.json`, or it does not describe a model.
    """
    content = _content(work_dir)
    model = _configured_model(work_dir, content)
    encoder = _encoder_at(model.encoder, work_dir, content, step)
    return dataclasses.replace(model, encoder=encoder), content["origin"]


def read_configured_model(work_dir: Path) -> ModelConfig:
    """Return the model in a run's config, ignoring the rotary angles of individual phases.

    Raises:
      ValueError: there is no `model.json`, or it does not describe a model.
    """
    return _configured_model(work_dir, _content(work_dir))


def _configured_model(work_dir: Path, content: Mapping[str, Any]) -> ModelConfig:
    return to_dataclass(ModelConfig, content["model"], f"{work_dir / MODEL_NAME}: model")


def _encoder_at(
    encoder: EncoderConfig, work_dir: Path, content: Mapping[str, Any], step: int | None
) -> EncoderConfig:
    """Return the encoder of the checkpoint at `step`, or of the newest one if `step` is None."""
    file = f"{work_dir / MODEL_NAME}: {ROTARY_CHANGES_KEY}"
    stored = content.get(ROTARY_CHANGES_KEY, [])
    changes = [to_dataclass(RotaryChange, change, file) for change in stored]
    if step is None:
        step = max(steps_in(work_dir / CHECKPOINTS_NAME), default=0) if changes else 0
    return encoder_at(encoder, changes, step)


def read_tokenizer(work_dir: Path, encoder: EncoderConfig) -> Tokenizer:
    """Load the tokenizer of the model in `work_dir`.

    Args:
      work_dir: the work directory.
      encoder: the model's encoder.

    Raises:
      ValueError: the tokenizer is missing or damaged, or it belongs to another model: it is not the
        one that was passed to `write_model`, or it has more tokens than the token table has rows.
    """
    directory = work_dir / TOKENIZER_NAME
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > encoder.vocab_size:
        raise ValueError(
            f"{directory} has {tokenizer.vocab_size:,} tokens, but the token table of the model "
            f"in {work_dir} has {encoder.vocab_size:,} rows. Restore the tokenizer that the model "
            "was trained with."
        )
    # Early versions did not record the fingerprint.
    fingerprint = _content(work_dir).get("tokenizer", tokenizer.fingerprint)
    if fingerprint != tokenizer.fingerprint:
        raise ValueError(
            f"{directory} is not the tokenizer that the model in {work_dir} was trained with: its "
            f"fingerprint is {tokenizer.fingerprint[:12]}, expected {fingerprint[:12]}. Restore "
            "the model's tokenizer."
        )
    return tokenizer


def read_generator(work_dir: Path, step: int | None = None) -> EncoderConfig | None:
    """Return the encoder of the generator in a run's checkpoints, or None if there is none.

    Args:
      work_dir: the work directory.
      step: see `read_model`.

    Raises:
      ValueError: there is no `model.json`, or it is damaged.
    """
    generator = _read_section(work_dir, GENERATOR_KEY, EncoderConfig)
    if generator is None:
        return None
    return _encoder_at(generator, work_dir, _content(work_dir), step)


def read_inference_defaults(work_dir: Path) -> InferenceDefaults | None:
    """Return the inference defaults in `model.json`, or None if there are none.

    Raises:
      ValueError: there is no `model.json`, or it is damaged.
    """
    return _read_section(work_dir, "usage", InferenceDefaults)


def read_sentence_embedding(work_dir: Path) -> SentenceEmbedding | None:
    """Return the sentence-embedding settings in `model.json`, or None if there are none.

    Raises:
      ValueError: there is no `model.json`, or it is damaged.
    """
    return _read_section(work_dir, "sentence_embedding", SentenceEmbedding)


def read_comparison(work_dir: Path) -> Comparison | None:
    """Return the metric by which a fine-tuning run compares checkpoints; None for other models.

    Raises:
      ValueError: there is no `model.json`, or it is damaged.
    """
    return _read_section(work_dir, "compared_by", Comparison)


def named_step(work_dir: Path) -> int | None:
    """Return the step that a run recorded at its end as that of its best checkpoint, or None.

    Raises:
      ValueError: there is no `model.json`, or it is damaged.
    """
    best = _content(work_dir).get("best_step")
    return None if best is None else int(best)


def _read_section(work_dir: Path, key: str, cls: type[T]) -> T | None:
    values = _content(work_dir).get(key)
    return None if values is None else to_dataclass(cls, values, f"{work_dir / MODEL_NAME}: {key}")


def _content(work_dir: Path) -> dict[str, Any]:
    file = local_path(work_dir) / MODEL_NAME
    if not file.is_file():
        raise ValueError(
            f"{work_dir}: contains no {MODEL_NAME}{path_advice(work_dir)}. Specify a work "
            "directory written by `bert-jax pretrain`, `bert-jax finetune` or `bert-jax import`."
        )
    with expecting_fields(file):
        content = read_json_object(file)
        check_kinds(content, tokenizer=str, best_step=int)
        check_kinds(content["origin"], **dict.fromkeys(content["origin"], str))
        return {**content, "model": content["model"], "origin": dict(content["origin"])}


def path_advice(work_dir: Path) -> str:
    """Return parenthesized advice on a path that is not a work directory, or "" if there is none.

    The advice is appended to the message that the path contains no `model.json`.
    """
    if Path(f"{work_dir}.index").is_file():
        return (
            f" (to import a TensorFlow checkpoint, run `bert-jax import {work_dir} --output DIR`)"
        )
    if not work_dir.exists():
        name = str(work_dir)
        if name in SMALL_MODELS:
            return f" (in Python, use `bj.small_model({name!r})`)"
        if close := difflib.get_close_matches(name, SMALL_MODELS, n=1, cutoff=0.75):
            return f" (there is no such directory; the nearest small model is {close[0]})"
        if re.fullmatch(r"[\w-]+/[\w.-]+", name) or re.fullmatch(r"(?i)[\w.-]*bert[\w.-]*", name):
            return (
                " (the directory does not exist; to import a model of that name from the hub, run "
                f"`bert-jax import {name} --output DIR`)"
            )
        return " (there is no such directory)"
    if work_dir.is_file():
        return f" (it is a file{_file_advice(work_dir)})"
    if work_dir.parent.name == CHECKPOINTS_NAME:
        run = work_dir.parents[1]
        return (
            f" (it is a checkpoint from {run}: use that directory, or the output of `bert-jax "
            f"extract {run} --step {work_dir.name} --output DIR`)"
        )
    models = sorted(work_dir.glob(f"runs/*/{MODEL_NAME}"))
    if models and (work_dir / "sweep.json").is_file():
        where = f"a model is in {models[0].parent}"
        where = where if len(models) == 1 else f"{len(models)} models are in {work_dir / 'runs'}"
        return f" (it is a sweep directory; {where})"
    if steps_in(work_dir / CHECKPOINTS_NAME):
        return (
            f" (it has checkpoints, but no {MODEL_NAME}: if the file was removed, run the same "
            "command again to restore it; `Trainer.fit` does not write this file, so its "
            "checkpoints cannot be used here)"
        )
    if (work_dir / LOG_NAME).is_file():
        return (
            " (it contains a run's log, but no model: `bert-jax sweep` keeps only its best run's "
            "parameters)"
        )
    if [*work_dir.glob("*.safetensors"), *work_dir.glob("pytorch_model*.bin")]:
        return (
            f" (to import these Hugging Face files, run `bert-jax import {work_dir} --output DIR`)"
        )
    if [*work_dir.glob("*.ckpt.index")]:
        return (
            f" (to import a TensorFlow checkpoint, run `bert-jax import {work_dir} --output DIR`)"
        )
    return ""


def _file_advice(file: Path) -> str:
    """Return advice that begins with "; " for a model file, or "" for any other file."""
    parent = file.parent
    if (parent / MODEL_NAME).is_file():
        return f"; use its directory, {parent}"
    if file.name == "config.json" or file.suffix in (".safetensors", ".bin"):
        return f"; to import a Hugging Face model, run `bert-jax import {parent} --output DIR`"
    if ".ckpt" in file.name:
        prefix = parent / file.name.partition(".ckpt")[0]
        return (
            f"; to import a TensorFlow checkpoint, run `bert-jax import {prefix}.ckpt --output DIR`"
        )
    return ""
