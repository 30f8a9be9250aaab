"""Recognize the kind of a directory by its files, and refuse it as an output.

Imports no JAX.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from bert_jax.corpus.workspace import check_outside_corpora, holds_corpus
from bert_jax.tokenizers.files import has_tokenizer

# Copied from `runs.work_dir` and `finetuning.sweep_directory`, which import JAX.
MODEL_NAME, SWEEP_NAME = "model.json", "sweep.json"

Kind = Literal["corpus", "sweep", "work directory", "Hugging Face directory", "tokenizer"]


def kind_of(directory: Path) -> Kind | None:
    """Return the kind of a directory according to its files; None if unknown or missing."""
    if holds_corpus(directory):
        return "corpus"
    if (directory / SWEEP_NAME).is_file():
        return "sweep"
    if (directory / MODEL_NAME).is_file():
        return "work directory"
    weights = [*directory.glob("*.safetensors"), *directory.glob("pytorch_model*.bin")]
    if weights and (directory / "config.json").is_file():
        return "Hugging Face directory"
    return "tokenizer" if has_tokenizer(directory) else None


def check_output(path: Path, name: str, *, may_be: Collection[Kind] = ()) -> None:
    """Refuse an output directory that already holds something else or is inside a corpus.

    Args:
      path: the directory, which need not exist.
      name: the option or config key that specifies it.
      may_be: the accepted kinds, which the command continues or adds to.

    Raises:
      ValueError: the directory is of another kind or is inside a corpus.
    """
    kind = kind_of(path)
    if kind is not None and kind not in may_be:
        raise ValueError(f"{name}={path}: this is a {kind}. Give another directory.")
    check_outside_corpora(path, name)
