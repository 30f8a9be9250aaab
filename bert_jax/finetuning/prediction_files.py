"""Files of predictions, and the inputs they were made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bert_jax.files import write_file
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import make_directory

INPUTS_NAME = "inputs.json"


def claim_files(directory: Path, names: Sequence[str], source: str) -> None:
    """Note in a directory that files are about to be written for an input.

    Args:
      directory: made if it is missing.
      names: of the files.
      source: of the predictions, as `other_files.source_of` has it.

    Raises:
      ValueError: as `check_files`.
    """
    check_files(directory, names, source)
    made = _inputs(directory) | dict.fromkeys(names, source)
    write_file(make_directory(directory) / INPUTS_NAME, json.dumps(made, indent=2) + "\n")


def check_files(directory: Path, names: Sequence[str], source: str) -> None:
    """Refuse to replace a file of predictions that another input was read for.

    Raises:
      ValueError: one of the files exists, and `INPUTS_NAME` does not say that it was made from
        `source`.
    """
    inputs = _inputs(directory)
    for name in names:
        file = directory / name
        if not file.exists() or inputs.get(name) == source:
            continue
        made = f"has the predictions for {inputs[name]}" if name in inputs else "exists already"
        raise ValueError(
            f"{file}: it {made}, and those for {source} would replace it. Give another "
            "--predictions, or remove the file"
        )


def _inputs(directory: Path) -> dict[str, str]:
    file = directory / INPUTS_NAME
    if not file.is_file():
        return {}
    try:
        return {name: str(source) for name, source in read_json_object(file).items()}
    except ValueError as error:
        raise ValueError(f"{error}. Give another --predictions, or remove the file") from error
