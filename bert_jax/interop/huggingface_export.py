"""A model of ours as a directory that Hugging Face's `from_pretrained` loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.interop.exported_tokenizer import save_tokenizer
from bert_jax.interop.huggingface_config import write_config
from bert_jax.interop.huggingface_names import family_of, origins, refusal_of
from bert_jax.interop.huggingface_weights import SAFETENSORS
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters


def write_directory(
    config: ModelConfig, parameters: Parameters, tokenizer: Tokenizer, target: Path
) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files into `target`.

    parameters: emptied as they are converted, so that they are never in memory twice.

    Raises:
      ValueError: the model is none that Hugging Face's library can be.
    """
    refusal = refusal_of(config)
    if refusal is not None:
        raise ValueError(f"{refusal}; the formats onnx and stablehlo hold any model")
    places = origins(config)
    content = json.dumps(write_config(config, tokenizer), indent=2) + "\n"
    tensors = {}
    for name, origin in places.items():
        values = np.asarray(parameters.pop(name))
        theirs = origin.name
        if config.head == "encoder":
            theirs = theirs.removeprefix(family_of(config.encoder).prefix)
        tensors[theirs] = np.ascontiguousarray(values.T if origin.transposed else values)
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
    # safetensors lets nobody but the owner read what it wrote.
    shutil.copymode(target / "config.json", target / SAFETENSORS)
