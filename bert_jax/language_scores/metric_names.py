"""Define the names under which a run logs its scores on texts and minimal pairs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bert_jax.text.archives import COMPRESSIONS
from bert_jax.text.files import JSON_LINES_SUFFIXES, PARQUET_SUFFIXES, TEXT_SUFFIXES
from bert_jax.training.reports import PAIRS_PREFIX, TEXT_PREFIX

_SUFFIXES = (*TEXT_SUFFIXES, *JSON_LINES_SUFFIXES, *PARQUET_SUFFIXES)


def text_names(paths: Sequence[str], key: str) -> list[str]:
    """Return a name for each text: the name of its file or directory, without suffixes.

    Args:
      paths: the files and directories.
      key: the config key that contains them, for error messages.

    Raises:
      ValueError: a path is empty, or two texts have the same name.
    """
    names: dict[str, str] = {}
    for path in paths:
        file = Path(path)
        if file.suffix.lower() in COMPRESSIONS:
            file = file.with_suffix("")
        if file.suffix.lower() in _SUFFIXES:
            file = file.with_suffix("")
        name = re.sub(r"[^\w.-]+", "_", file.name)
        if not name:
            raise ValueError(f"{key}={path!r}: not the path of a file or directory. Remove it.")
        if name in names:
            raise ValueError(
                f"{key}: {names[name]} and {path} would both be called {name!r} in the log. Rename "
                "one of them."
            )
        names[name] = path
    return list(names)


def text_metric(text: str, score: str) -> str:
    """Return the name of a score on a text, such as "text_novel_mlm_loss"."""
    return f"{TEXT_PREFIX}{text}_{score}"


def text_metrics_of(names: Sequence[str], *, sentences: bool) -> list[str]:
    """Return the names of all scores on texts.

    Args:
      names: the names of the texts.
      sentences: whether pseudo-perplexities are computed too.
    """
    scores = ["mlm_loss", "mlm_accuracy", *(["pseudo_perplexity"] if sentences else [])]
    return [text_metric(name, score) for name in names for score in scores]


def phenomenon_accuracy(phenomenon: str) -> str:
    """Return the name of the accuracy on the minimal pairs of one phenomenon."""
    return f"{PAIRS_PREFIX}{phenomenon}_accuracy"
