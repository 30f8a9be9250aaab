"""Convert a Hugging Face model to PyTorch's .bin format and Google's TensorFlow format."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np

# Patterns for Hugging Face's tensor names, each with the corresponding name in Google's 2018
# release. Tensors named "kernel" are transposed.
_NAMES = (
    (r"\.layer\.(\d+)\.", r"/layer_\1/"),
    (r"_embeddings\.weight$", "_embeddings"),
    (r"LayerNorm\.weight$", "LayerNorm/gamma"),
    (r"LayerNorm\.bias$", "LayerNorm/beta"),
    (r"seq_relationship\.(weight|bias)$", lambda m: f"seq_relationship/output_{m[1]}"),
    (r"seq_relationship/output_weight$", "seq_relationship/output_weights"),
    (r"predictions\.bias$", "predictions/output_bias"),
    (r"\.weight$", "/kernel"),
)


def tensors_of(directory: Path) -> dict[str, np.ndarray]:
    """Return the tensors in a directory's model.safetensors."""
    from safetensors.numpy import load_file

    return load_file(directory / "model.safetensors")


def copy_but(source: Path, target: Path, *without: str) -> None:
    """Copy a directory, leaving out some of its files."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*without), dirs_exist_ok=True)


def write_bin(source: Path, target: Path) -> None:
    """Write a copy of the directory with a pytorch_model.bin instead of safetensors files."""
    import torch

    copy_but(source, target, "*.safetensors", "SHA256SUMS")
    tensors = {name: torch.from_numpy(x.copy()) for name, x in tensors_of(source).items()}
    torch.save(tensors, target / "pytorch_model.bin")


def write_tensorflow(source: Path, target: Path) -> None:
    """Write the directory's model in the format of Google's BERT release."""
    import tensorflow

    target.mkdir(parents=True, exist_ok=True)
    variables = {}
    for name, values in tensors_of(source).items():
        if name == "cls.predictions.decoder.weight" or name.endswith("decoder.bias"):
            continue  # Skip the second copy of the token table and of the bias.
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        name = name.replace(".", "/")
        variables[name] = values.T if name.endswith("/kernel") else values
    tensorflow.raw_ops.SaveV2(
        prefix=str(target / "bert_model.ckpt"),
        tensor_names=list(variables),
        shape_and_slices=[""] * len(variables),
        tensors=[tensorflow.constant(value) for value in variables.values()],
    )
    config = json.loads((source / "config.json").read_text())
    (target / "bert_config.json").write_text(json.dumps(config))
    shutil.copy(source / "vocab.txt", target / "vocab.txt")
