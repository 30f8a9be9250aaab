"""Write a model as a directory that `from_pretrained` loads, with its tokenizer."""

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
    """Writes them. inputs: what the model takes of a tokenizer of transformers; () where no such
    tokenizer feeds it."""
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
    """Writes config.json, model.safetensors and the tokenizer's files into `target`.

    parameters: emptied as they are converted, so that they are never in memory twice.
    dtype: of the parameters in the file: float32, or float16 or bfloat16, to the nearest.
    sentence_embedding: if given, also written as the files of sentence-transformers.

    Raises:
      ValueError: the model is none that Hugging Face's library can be, or has a parameter too
        large for `dtype`.
    """
    refusal = refusal_of(config)
    if refusal is not None:
        raise ValueError(f"{refusal}; the formats onnx and stablehlo hold any model")
    places = origins(config)
    stored = write_config(config, tokenizer) | {"dtype": dtype}
    content = json.dumps(stored, indent=2) + "\n"
    tensors = {}
    for name, origin in places.items():
        values = np.asarray(parameters.pop(name))
        theirs = origin.name
        if config.head == "encoder":
            theirs = theirs.removeprefix(family_of(config.encoder).prefix)
        values = np.ascontiguousarray(values.T if origin.transposed else values)
        tensors[theirs] = _rounded(values, dtype, name)
        del values
    assert not parameters, f"exported no {sorted(parameters)}"
    save_file(tensors, target / SAFETENSORS, metadata={"format": "pt"})
    # A BERT's tokenizer gives segment 1 to what comes second, ALBERT's none unless told. Without
    # segments their class takes no such argument, with one it has no row for it, and with two a
    # pair read as one text would be scored otherwise than here.
    segments = ["token_type_ids"] if config.encoder.num_segments > 1 else []
    save_tokenizer(
        tokenizer, target, config.encoder, inputs=["input_ids", *segments, "attention_mask"]
    )
    (target / "config.json").write_text(content, encoding="utf-8")
    if sentence_embedding is not None:
        write_sentence_model(sentence_embedding, config.encoder.hidden_dim, target)
    # safetensors lets nobody but the owner read what it wrote.
    shutil.copymode(target / "config.json", target / SAFETENSORS)


def _rounded(values: NDArray[np.float32], dtype: str, name: str) -> NDArray[np.floating]:
    """The values in `dtype`; one that would become infinite is refused."""
    with np.errstate(over="ignore"):
        found = values.astype(jnp.dtype(dtype), copy=False)
    if np.isfinite(values).all() and not np.isfinite(found).all():
        raise ValueError(
            f"--dtype {dtype}: {name} has a parameter of {float(np.abs(values).max()):,.0f}, and "
            f"{dtype}'s maximum is {float(jnp.finfo(found.dtype).max):,.0f}. Use --dtype float32"
        )
    return found
