"""Record which input and model each file of predictions was made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bert_jax.files import write_file
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import make_directory

INPUTS_NAME = "inputs.json"


def claim_files(directory: Path, names: Sequence[str], source: str) -> None:
    """Record in a directory that files are about to be written for an input and a model.

    Args:
      directory: the predictions' directory; created if it is missing.
      names: the names of the files.
      source: the source of the predictions: their input and their model.

    Raises:
      ValueError: see `check_files`.
    """
    check_files(directory, names, source)
    made = _inputs(directory) | dict.fromkeys(names, source)
    write_file(make_directory(directory) / INPUTS_NAME, json.dumps(made, indent=2) + "\n")


def check_files(directory: Path, names: Sequence[str], source: str) -> None:
    """Refuse to replace a file of predictions for another input or by another model.

    Raises:
      ValueError: one of the files exists, and according to `INPUTS_NAME` it was not made from
        `source`.
    """
    inputs = _inputs(directory)
    for name in names:
        file = directory / name
        if not file.exists() or inputs.get(name) == source:
            continue
        problem = f"holds predictions for {inputs[name]}" if name in inputs else "already exists"
        raise ValueError(
            f"{file}: the file {problem}, and predictions for {source} would replace it. Give "
            "another --predictions, or remove the file"
        )


def _inputs(directory: Path) -> dict[str, str]:
    file = directory / INPUTS_NAME
    if not file.is_file():
        return {}
    try:
        return {name: str(source) for name, source in read_json_object(file).items()}
    except ValueError as error:
        raise ValueError(f"{error}. Give another --predictions, or remove the file") from error
