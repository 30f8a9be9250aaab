"""Combine checkpoints that each process of a run has saved to a disk of its own.

Every part of a checkpoint, such as the parameters, is a key-value store (TensorStore's OCDBT). Its
keys identify chunks of arrays. The values are in one directory per process, `ocdbt.process_N`. An
index next to these directories gives the file and the offset of each value. On a shared disk, Orbax
creates this index when all processes have saved. On separate disks, each process creates an index
of its own values. The indexes are small, and one process can combine them without reading the
values.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorstore as ts

from bert_jax.files import write_file
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import make_directory
from bert_jax.training.checkpoint_checksums import CHECKSUMS_NAME, checksums_of

_MANIFEST, _NODES = "manifest.ocdbt", "d"
# The keys of an array's description and of its chunks (Zarr, version 3).
_ARRAY, _CHUNK = "/zarr.json", re.compile(r"(.*)/c(?:/\d+)*", re.DOTALL)
_OF_PROCESS = re.compile(r"[^/]+/(?:ocdbt\.|array_metadatas/)process_(\d+)(?:/|$)")
_CACHE_BYTES = 100 << 20


class IncompleteCheckpoint(OSError):
    """The processes' parts of a checkpoint do not contain all chunks of an array."""


def values_of(checkpoint: Path, process: int) -> list[str]:
    """Return the sorted relative names of the files that only this process has."""
    patterns = (f"*/ocdbt.process_{process}/**/*", f"*/array_metadatas/process_{process}")
    files = (path for pattern in patterns for path in checkpoint.glob(pattern) if path.is_file())
    return sorted(path.relative_to(checkpoint).as_posix() for path in files)


def index_of(checkpoint: Path) -> list[str]:
    """Return the relative names of the files that differ between processes and are combined."""
    indexes = (path for part in _parts(checkpoint) for path in _files_of_index(part))
    return [*(path.relative_to(checkpoint).as_posix() for path in indexes), CHECKSUMS_NAME]


def combine(checkpoints: Sequence[Path], output: Path) -> list[str]:
    """Write the files that turn the parts of several processes into one checkpoint.

    Args:
      checkpoints: for each process, a directory with the files that `index_of` returns. The first
        of these directories has all files that the first process saved.
      output: the directory to write to, which must not exist.

    Returns:
      The relative names of the files in `output`.

    Raises:
      IncompleteCheckpoint: an array has too few chunks.
    """
    first = checkpoints[0]
    output.mkdir()
    for part in _parts(first):
        _combine_indexes([each / part.name for each in checkpoints], output / part.name)
    records = [read_json_object(each / CHECKSUMS_NAME) for each in checkpoints]
    files: dict[str, Any] = {}
    for process, record in enumerate(records):
        own = {name: x for name, x in record["files"].items() if _process_of(name) == process}
        files |= own
    replaced = set(index_of(first))
    common = {name: x for name, x in records[0]["files"].items() if _process_of(name) is None}
    files |= {name: x for name, x in common.items() if name not in replaced}
    files |= checksums_of(output, [path for path in output.rglob("*") if path.is_file()])
    content = {**records[0], "files": dict(sorted(files.items()))}
    write_file(output / CHECKSUMS_NAME, json.dumps(content, indent=1) + "\n")
    return sorted(
        path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()
    )


def _parts(checkpoint: Path) -> list[Path]:
    return sorted(path.parent for path in checkpoint.glob(f"*/{_MANIFEST}"))


def _files_of_index(part: Path) -> list[Path]:
    return [part / _MANIFEST, *sorted((part / _NODES).iterdir())]


def _process_of(name: str) -> int | None:
    """Return the process that a file belongs to, or None if it belongs to none."""
    match = _OF_PROCESS.match(name)
    return int(match[1]) if match else None


def _combine_indexes(parts: Sequence[Path], output: Path) -> None:
    """Combine the indexes of several processes into one index of all values."""
    with tempfile.TemporaryDirectory(dir=output.parent) as directory:
        # An index refers to values relative to its own directory, so all indexes must appear to be
        # in the same directory.
        base = Path(directory) / "base"
        make_directory(base / _NODES)
        context = ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
        sources = []
        for number, part in enumerate(parts):
            manifest, *nodes = _files_of_index(part)
            for node in nodes:
                shutil.copyfile(node, base / _NODES / node.name)
            own = Path(directory) / str(number)
            own.mkdir()
            shutil.copyfile(manifest, own / _MANIFEST)
            sources.append(_open(base, context, manifest=own))
        copied = {node.name for node in (base / _NODES).iterdir()}
        sources[0].read("").result()  # reads the manifest, which contains the configuration
        config = sources[0].spec().to_json()["config"]
        target = _open(base, context, config={k: x for k, x in config.items() if k != "uuid"})
        transaction = ts.Transaction(atomic=True)
        for source in sources:
            source.experimental_copy_range_to(target.with_transaction(transaction)).result()
        transaction.commit_async().result()
        make_directory(output / _NODES)
        for node in (base / _NODES).iterdir():
            if node.name not in copied:
                node.rename(output / _NODES / node.name)
        (base / _MANIFEST).rename(output / _MANIFEST)
    _check_chunks(parts[0], output)


def _check_chunks(first: Path, combined: Path) -> None:
    """Check that an index has all chunks of all arrays.

    Args:
      first: the first process's part, which has the description of every array.
      combined: the directory of the index.
    """
    context = ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
    described, index = _open(first, context), _open(combined, context)
    keys = [key.decode() for key in index.list().result()]
    chunks = Counter(match[1] for match in map(_CHUNK.fullmatch, keys) if match)
    for key in keys:
        if not key.endswith(_ARRAY):
            continue
        name = key.removesuffix(_ARRAY)
        description = described.read(key).result().value
        array = json.loads(description)
        sizes = array["chunk_grid"]["configuration"]["chunk_shape"]
        pairs = zip(array["shape"], sizes, strict=True)
        expected = math.prod(-(-size // chunk) for size, chunk in pairs)
        if chunks[name] != expected:
            raise IncompleteCheckpoint(
                f"{combined.name}: the processes have saved {chunks[name]} of {expected} chunks of "
                f"{name}"
            )


def _open(
    directory: Path, context: ts.Context, *, manifest: Path | None = None, **options: Any
) -> ts.KvStore:
    spec: dict[str, Any] = {"driver": "ocdbt", "base": _files(directory), **options}
    if manifest is not None:
        spec["manifest"] = _files(manifest)
    return ts.KvStore.open(spec, context=context).result()


def _files(directory: Path) -> dict[str, str]:
    return {"driver": "file", "path": f"{directory.absolute()}/"}
