"""Write a model and its tokenizer as a directory that `from_pretrained` can load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from bert_jax.interop.huggingface.config import write_config
from bert_jax.interop.huggingface.families import family_of, origins, refusal_of
from bert_jax.interop.huggingface.sentence_transformers import write_sentence_model
from bert_jax.interop.huggingface.weights import SAFETENSORS
from bert_jax.json_files import read_json_object
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.tokenizers.tokenizer import Tokenizer


def save_tokenizer(
    tokenizer: Tokenizer, target: Path, encoder: EncoderConfig, *, inputs: Sequence[str] = ()
) -> None:
    """Write a tokenizer's files for an exported model.

    Args:
      tokenizer: the model's tokenizer.
      target: an existing directory to write to.
      encoder: the encoder that uses the tokenizer.
      inputs: the model inputs that the tokenizer in transformers must return; () leaves them
        unspecified, for models whose inputs have other names.
    """
    tokenizer.save(target, segments=encoder.num_segments > 1)
    file = target / "tokenizer_config.json"
    content = read_json_object(file)
    content["model_max_length"] = encoder.max_positions
    if inputs:
        content["model_input_names"] = list(inputs)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_directory(
    config: ModelConfig,
    parameters: Parameters,
    tokenizer: Tokenizer,
    target: Path,
    dtype: str,
    sentence_embedding: SentenceEmbedding | None = None,
) -> None:
    """Write config.json, model.safetensors and the tokenizer's files to `target`.

    Args:
      config: the model's config.
      parameters: the model's parameters. Each is removed from the dict when it is converted, so
        that it is never in memory twice.
      tokenizer: the model's tokenizer.
      target: an existing directory to write to.
      dtype: the data type to store parameters in: float32, float16 or bfloat16.
      sentence_embedding: the settings to write for sentence-transformers, if any.

    Raises:
      ValueError: Hugging Face's library has no class for the model, or a parameter is too large for
        `dtype`.
    """
    refusal = refusal_of(config)
    if refusal is not None:
        raise ValueError(f"{refusal}. The formats onnx and stablehlo support every model")
    stored = write_config(config, tokenizer) | {"dtype": dtype}
    content = json.dumps(stored, indent=2) + "\n"
    blocks: dict[str, dict[int, NDArray[np.floating]]] = {}
    for name, origin in origins(config).items():
        values = np.asarray(parameters.pop(name))
        hf_name = origin.name
        if config.head == "encoder":
            hf_name = hf_name.removeprefix(family_of(config.encoder).prefix)
        values = np.ascontiguousarray(values.T if origin.transposed else values)
        blocks.setdefault(hf_name, {})[origin.block[0]] = _rounded(values, dtype, name)
        del values
    tensors = {}
    for hf_name in list(blocks):
        parts = blocks.pop(hf_name)
        ordered = [parts[index] for index in sorted(parts)]
        tensors[hf_name] = ordered[0] if len(ordered) == 1 else np.concatenate(ordered)
    assert not parameters, f"not exported: {sorted(parameters)}"
    for unused, used in family_of(config.encoder).unused_in(config.encoder).items():
        # transformers warns about tensors that its class expects but the file lacks.
        if used in tensors:
            tensors[unused] = tensors[used].copy()
    save_file(tensors, target / SAFETENSORS, metadata={"format": "pt"})
    # The tokenizer must return segment ids only if the model has more than one segment. BERT's
    # tokenizer returns them by default, but ALBERT's does so only if configured to. If the model
    # has no segments, Hugging Face's class does not accept segment ids. If the model has one
    # segment, its embedding table has no row for segment 1, which tokenizers assign to the second
    # text.
    segments = ["token_type_ids"] if config.encoder.num_segments > 1 else []
    save_tokenizer(
        tokenizer, target, config.encoder, inputs=["input_ids", *segments, "attention_mask"]
    )
    (target / "config.json").write_text(content, encoding="utf-8")
    if sentence_embedding is not None:
        write_sentence_model(sentence_embedding, config.encoder.hidden_dim, target)
    # safetensors creates files that only their owner can read.
    shutil.copymode(target / "config.json", target / SAFETENSORS)


def _rounded(values: NDArray[np.float32], dtype: str, name: str) -> NDArray[np.floating]:
    """Round values to `dtype`, and raise ValueError if one of them would become infinite."""
    with np.errstate(over="ignore"):
        rounded = values.astype(jnp.dtype(dtype), copy=False)
    if np.isfinite(values).all() and not np.isfinite(rounded).all():
        raise ValueError(
            f"--dtype {dtype}: {name} contains a value of {float(np.abs(values).max()):,.0f}, but "
            f"the largest {dtype} number is {float(jnp.finfo(rounded.dtype).max):,.0f}. Use "
            "--dtype float32"
        )
    return rounded
