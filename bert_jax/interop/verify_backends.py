"""Open the models that `verify` can run, given their paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.conversion import to_plain
from bert_jax.files import check_checksums
from bert_jax.interop.comparison import ComparableModel, Outputs, ProbeInput, Sizes
from bert_jax.interop.huggingface.config import read_encoder
from bert_jax.interop.huggingface.import_config import ImportOptions
from bert_jax.interop.huggingface.sentence_transformers import read_sentence_model, within
from bert_jax.interop.huggingface.verify_backend import HuggingFaceModel
from bert_jax.interop.stablehlo import PROGRAM, SIGNATURE, StableHLOModel
from bert_jax.interop.tensorflow_import import checkpoint_prefix, open_checkpoint
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import check_local, shown
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, define_model, infer, scores_choices
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.runs.checkpoints import load_for_export
from bert_jax.runs.work_dir import MODEL_NAME, TOKENIZER_NAME, read_sentence_embedding
from bert_jax.tokenizers.files import has_tokenizer
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import differences

ONNX_NAME = "model.onnx"


@lru_cache(maxsize=8)  # models with the same config share a compiled program
def _program(config: ModelConfig) -> Callable[..., dict[str, jax.Array]]:
    """Return a compiled function that computes all outputs from parameters and inputs."""
    definition = define_model(config, ComputeConfig(dtype="float32", attention="xla"))

    def run(parameters: Any, *inputs: jax.Array) -> dict[str, jax.Array]:
        # Multiply matrices in full float32, even if the accelerator rounds operands by default.
        with jax.default_matmul_precision("highest"):
            return infer(definition.module(parameters), *inputs, hidden_states=True)

    return jax.jit(run)


class NativeModel:
    """A model that this package runs itself, in float32."""

    title: str
    sizes: Sizes | None
    labels: tuple[str, ...]

    def __init__(self, title: str, config: ModelConfig, parameters: Mapping[str, Any]):
        self.title, self._parameters = title, parameters
        self._choices = scores_choices(config.head)
        self.labels = config.labels
        encoder = config.encoder
        self.sizes = Sizes(encoder.vocab_size, encoder.num_segments, encoder.max_positions)
        self._run = _program(config)

    def outputs(self, probe: ProbeInput) -> Outputs:
        """See `ComparableModel.outputs`."""
        inputs = (probe.token_ids, probe.segment_ids, probe.attention_mask)
        if self._choices:
            inputs = tuple(ids[:, None] for ids in inputs)  # type: ignore[assignment]
        outputs = jax.device_get(self._run(self._parameters, *inputs))
        return {name: np.asarray(values, np.float32) for name, values in outputs.items()}


def _work_dir_model(work_dir: Path) -> ComparableModel:
    """Load the model in a work directory from its default checkpoint."""
    config, step, parameters = load_for_export(work_dir, None)
    title = f"{shown(work_dir)} (work directory, {config.head}, step {step:,})"
    return NativeModel(title, config, parameters)


def _tensorflow_model(path: Path, prefix: Path) -> ComparableModel:
    """Load a model from a TensorFlow checkpoint in the same way as `import` does."""
    try:
        model = open_checkpoint(prefix, ImportOptions())
        parameters = model.parameters(seed=0)
    except ValueError as error:
        raise ValueError(
            f"{error}. If an option of `bert-jax import` fixes this, import the checkpoint with "
            "that option, and compare the resulting work directory instead."
        ) from error
    title = f"{shown(path)} (TensorFlow checkpoint, {model.config.head})"
    return NativeModel(title, model.config, parameters)


def open_model(path: Path) -> ComparableModel:
    """Return the model at `path`.

    Raises:
      ValueError: there is no model of a supported kind at the path, or the model cannot be loaded.
    """
    check_local(path)
    check_checksums(path if path.is_dir() else path.parent)
    if (path / MODEL_NAME).is_file():
        return _work_dir_model(path)
    if (path / SIGNATURE).is_file():
        return StableHLOModel(path)
    if path.name == PROGRAM and (path.parent / SIGNATURE).is_file():
        return StableHLOModel(path.parent)
    if (path / "saved_model.pb").is_file():
        raise ValueError(
            f"{path}: verify cannot run a SavedModel. Export the same model with --format onnx or "
            "stablehlo and compare that export."
        )
    for file in (path, path / ONNX_NAME):
        if file.suffix == ".onnx" and file.is_file():
            return _onnx_model(file)
    if (path / "config.json").is_file():
        return HuggingFaceModel(path)
    if (prefix := checkpoint_prefix(path)) is not None:
        return _tensorflow_model(path, prefix)
    raise ValueError(
        f"{path}: not a supported model. Expected a work directory ({MODEL_NAME}), a Hugging Face "
        "directory (config.json), a TensorFlow checkpoint of BERT (*.index), an ONNX file "
        f"(*.onnx) or a StableHLO artifact ({SIGNATURE}). To compare a model from the hub, import "
        "it and specify its work directory."
    )


def _onnx_model(file: Path) -> ComparableModel:
    try:
        from bert_jax.interop.onnx import OnnxModel
    except ImportError as error:
        raise ValueError(f"{file}: {error}. Run `pip install -e '.[onnx]'`") from error
    return OnnxModel(file)


def open_tokenizer(path: Path) -> Tokenizer | None:
    """Load the tokenizer of the model at `path`, or return None if it has none."""
    for directory in (path / TOKENIZER_NAME, path if path.is_dir() else path.parent):
        if has_tokenizer(directory):
            return Tokenizer.load(directory)
    return None


def sentence_embedding_differences(first: Path, second: Path) -> list[str]:
    """Return one line for each difference between two models' sentence-embedding settings.

    The list is empty if one of the models has no such settings, as is the case for most models.

    Raises:
      ValueError: a file that contains the settings is damaged.
    """
    settings = [_sentence_embedding(path) for path in (first, second)]
    return [] if None in settings else differences(*map(to_plain, settings))


def _sentence_embedding(path: Path) -> SentenceEmbedding | None:
    if (path / MODEL_NAME).is_file():
        return read_sentence_embedding(path)
    if not (path / "config.json").is_file():
        return None
    # Given a head, `read_sentence_model` drops unsupported modules instead of raising an error.
    settings = read_sentence_model(path, ImportOptions(head="encoder")).settings
    encoder = read_encoder(read_json_object(path / "config.json"), str(path / "config.json"))
    return None if settings is None else within(settings, encoder.max_positions, shortest=1)
