"""Find the data files in folders written by a library: saved Hugging Face datasets and MDS.

Such a folder lists its data files in a JSON file. Other files in it, such as the caches of
`datasets`, do not belong to the data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bert_jax.json_files import expecting_fields, parse_json
from bert_jax.storage.locations import seekable_file
from bert_jax.storage.urls import Location

_SAVED, _SAVED_INFO, _SAVED_SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_INDEX = "index.json"
# The beginning of an index file. A JSON Lines file with the same name begins differently.
_INDEX_START = re.compile(rb'\s*\{\s*"(shards|version)"\s*:')
_START_BYTES = 64

Paths = list[tuple[Location, str]]


def data_files(directory: Location, paths: Iterable[tuple[Location, str]]) -> Paths:
    """Return the files without those that a library wrote next to its data files.

    In each folder that a library wrote, only the data files that the folder lists are kept.

    Args:
      directory: the directory that contains all files.
      paths: the location and the name of each file.

    Raises:
      ValueError: such a folder is damaged, or is a DatasetDict with multiple splits.
    """
    left = {os.path.relpath(name, str(directory)): (at, name) for at, name in paths}
    for description in sorted(left, key=lambda path: (path.count("/"), path)):
        if description not in left:
            # This file was already dropped with the other files of an enclosing folder.
            continue
        folder, _, name = description.rpartition("/")
        if name == _SAVED_SPLITS:
            if _lists_one_split(left[description][0]):
                del left[description]
            continue
        listed = _listed(left, folder, name)
        if listed is None:
            continue
        inside = f"{folder}/" if folder else ""
        wanted = {inside + file for file in listed}
        if missing := sorted(wanted - left.keys()):
            raise ValueError(
                f"{left[description][1]}: {len(missing)} of the {len(wanted)} files that it lists "
                f"are missing, such as {missing[0]}. Copy or write the data again."
            )
        left = {
            path: file
            for path, file in left.items()
            if path in wanted or not path.startswith(inside)
        }
    return list(left.values())


def _listed(left: Mapping[str, tuple[Location, str]], folder: str, name: str) -> list[str] | None:
    """Return the data files listed in a description, or None if it is another kind of file."""
    inside = f"{folder}/" if folder else ""
    at, shown = left[inside + name]
    if name == _SAVED and inside + _SAVED_INFO in left:
        state = _content(at)
        if state is None or "_data_files" not in state:
            return None
        if state.get("_indices_data_files"):
            raise ValueError(
                f"{shown}: this dataset was saved with separate indices by an old version of "
                "datasets. Load it and save it again with a current version."
            )
        with expecting_fields(Path(shown)):
            return [str(file["filename"]) for file in state["_data_files"]]
    if name == _INDEX:
        with seekable_file(at) as file:
            if not _INDEX_START.match(file.read(_START_BYTES)):
                return None
        index = _content(at)
        if index is None or not isinstance(index.get("shards"), list):
            return None
        with expecting_fields(Path(shown)):
            forms = sorted({str(shard.get("format")) for shard in index["shards"]})
            files = [_shard_file(shard, left, inside) for shard in index["shards"]]
        if forms != ["mds"]:
            raise ValueError(
                f"{shown}: lists shards with the formats {', '.join(forms)}; expected only mds. To "
                "read JSON Lines, specify the files themselves."
            )
        return files
    return None


def _shard_file(shard: Mapping[str, Any], left: Mapping[str, object], inside: str) -> str:
    """Return the name of a shard's file: the uncompressed one, if there is one."""
    names = [form["basename"] for key in ("raw_data", "zip_data") if (form := shard.get(key))]
    return str(next((name for name in names if inside + name in left), names[-1]))


def _lists_one_split(location: Location) -> bool:
    """Return whether a file describes a DatasetDict; raise ValueError if it has multiple splits."""
    content = _content(location)
    splits = content.get("splits") if content else None
    if not isinstance(splits, list):
        return False
    if len(splits) > 1:
        folder = str(location).rpartition("/")[0]
        raise ValueError(
            f"{folder}: this is a DatasetDict with the splits {', '.join(map(str, splits))}. "
            f"Specify the split to read, such as {folder}/{splits[0]}."
        )
    return True


def _content(location: Location) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if the file has any other content."""
    try:
        with seekable_file(location) as file:
            content = parse_json(file.read().decode("utf-8"))
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
