"""Refuse output directories that already hold something else: a corpus, a model, a sweep."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from bert_jax.data.tokenizer_files import holds_tokenizer
from bert_jax.data.workspace import check_outside_corpora, holds_corpus

# Copied from `inference.work_dir` and `sweep_directory`, which import JAX.
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
    return "tokenizer" if holds_tokenizer(directory) else None


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


def check_work_dir_kind(path: Path, *, may_be: Collection[Kind] = ()) -> None:
    """Check a run's work directory with `check_output`, unless a run has started in it.

    Raises:
      ValueError: see `check_output`.
    """
    if not (path / MODEL_NAME).is_file():
        check_output(path, "work_dir", may_be=may_be)
