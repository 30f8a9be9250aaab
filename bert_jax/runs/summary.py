"""Describe the model in a work directory as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.runs.work_dir import read_inference_defaults, read_model, read_sentence_embedding


def model_table(work_dir: Path) -> list[str]:
    """Return a table of a model's step, head, sizes and inference settings.

    Raises:
      ValueError: the directory contains no model or no checkpoint.
    """
    step = default_checkpoint_step(work_dir)
    model, _ = read_model(work_dir, step)
    defaults = read_inference_defaults(work_dir)
    rows = {"step": f"{step:,}", "head": model.head}
    rows |= {"labels": ", ".join(model.labels)} if model.labels else {}
    rows |= model.encoder.identity | (vars(defaults) if defaults is not None else {})
    lines = _table("model", rows)
    settings = read_sentence_embedding(work_dir)
    if settings is not None:
        lines += ["", *_table("sentence embedding", settings.described())]
    return lines


def _table(title: str, rows: Mapping[str, object]) -> list[str]:
    return [f"{title:38s}", *(f"  {name:36s}{value}" for name, value in rows.items())]
