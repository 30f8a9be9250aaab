"""Read an input once, and record the digest and size of each of its documents.

Preparation on multiple machines begins with these scans. They are small, so every machine can
decide from the scans of all inputs which documents the corpus keeps and which unit each document
belongs to, without reading the text that other machines have scanned.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.document_stream import document_digest, folded_digest
from bert_jax.corpus.inputs import PrepareInputs, PrepareOptions
from bert_jax.files import temporary_beside, write_file, writing
from bert_jax.json_files import read_json_object
from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.text.sources import read_documents

SCANS = "scans"  # This subdirectory of the directory for unfinished work contains the scans.
_ROW = [("high", "<u8"), ("low", "<u8"), ("position", "<u4"), ("size", "<u8")]
_FOLDED = [("folded_high", "<u8"), ("folded_low", "<u8")]
_ROWS_PER_CHUNK = 1 << 16


@dataclass(frozen=True)
class ScanTask:
    """An input to scan.

    Attributes:
      number: the input's number in reading order, from 0.
      path: the file or TFDS dataset.
      description: the input's entry in the plan. A scan made from a different entry is not used.
      sources: the options for reading the input.
      folded: whether to record digests that ignore case and white space, which are needed if
        there are held-out inputs.
    """

    number: int
    path: str
    description: Mapping[str, Any]
    sources: SourceOptions
    folded: bool


@dataclass(frozen=True)
class Scan:
    """The documents of one input.

    Attributes:
      rows: a structured array [num_documents], sorted by digest and then by position. "high" and
        "low" are the halves of the document's digest, "position" is the document's number in the
        input, and "size" is its size in UTF-8 bytes. "folded_high" and "folded_low" are the halves
        of the digest that ignores case and white space, if it was recorded.
      counts: the counts that the reader updated.
      checksum: the SHA-256 of the input in hex, or None for a TFDS dataset.
    """

    rows: NDArray[np.void]
    counts: SourceCounts
    checksum: str | None

    def by_position(self, name: str) -> NDArray[np.uint64]:
        """Return a column of `rows` in reading order, as an array [num_documents]."""
        column = np.empty(len(self.rows), np.uint64)
        column[self.rows["position"]] = self.rows[name]
        return column


def scan_tasks(
    inputs: PrepareInputs, plan: Mapping[str, Any], options: PrepareOptions
) -> list[ScanTask]:
    """Return one task per input, in reading order."""
    return [
        ScanTask(number, path, description, options.sources, bool(inputs.heldout))
        for number, (path, description) in enumerate(
            zip(inputs.paths, plan["sources"], strict=True)
        )
    ]


def scan_input(task: ScanTask, work: Path) -> None:
    """Read an input, and write its scan atomically.

    Every scan of the same input writes the same bytes, so two machines may scan an input at once.

    Raises:
      ValueError: the input cannot be used.
      OSError: the input cannot be read, or the scan cannot be written.
    """
    counts = SourceCounts(checksums={})
    chunks: list[NDArray[np.void]] = []
    pending: list[tuple[int, ...]] = []
    dtype = np.dtype(_ROW + (_FOLDED if task.folded else []))
    for position, document in enumerate(read_documents([task.path], task.sources, counts)):
        text = document.text.encode("utf-8")
        row: tuple[int, ...] = (*halves(document_digest(text)), position, len(text))
        if task.folded:
            row += halves(folded_digest(document.text)[-16:])
        pending.append(row)
        if len(pending) == _ROWS_PER_CHUNK:
            chunks.append(np.array(pending, dtype))
            pending = []
    chunks.append(np.array(pending, dtype))
    rows = np.concatenate(chunks)
    rows = rows[np.lexsort((rows["low"], rows["high"]))]  # a stable sort
    path = _path(work, task.number)
    path.parent.mkdir(exist_ok=True)
    with writing(path), temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            np.save(file, rows)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    assert counts.checksums is not None, "checksums were requested"
    summary = {
        **_made_from(task),
        "num_documents": len(rows),
        "counts": {name: getattr(counts, name) for name in _COUNTED},
        "checksum": counts.checksums.get(task.path),
    }
    write_file(path.with_suffix(".json"), json.dumps(summary))


def halves(digest: bytes) -> tuple[int, int]:
    """Return the first and the second half of a 16-byte digest as integers."""
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")


def read_scan(task: ScanTask, work: Path) -> Scan | None:
    """Return the scan of an input, or None if there is none or the input has changed since."""
    path = _path(work, task.number)
    try:
        summary = read_json_object(path.with_suffix(".json"))
        made_from = {name: summary[name] for name in _made_from(task)}
        rows = np.load(path, mmap_mode="r")
        counts = SourceCounts(**summary["counts"])
        usable = made_from == _made_from(task) and len(rows) == summary["num_documents"]
        checksum = summary["checksum"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Scan(rows, counts, checksum) if usable else None


_COUNTED = (
    "documents",
    "text_bytes",
    "bytes_read",
    "files",
    "bad_lines",
    "empty_documents",
    "empty_files",
    "split_documents",
)


def total_counts(scans: list[Scan], paths: list[str]) -> SourceCounts:
    """Add up the counts of all inputs, and collect their checksums."""
    total = SourceCounts(checksums={})
    assert total.checksums is not None
    for path, scan in zip(paths, scans, strict=True):
        for name in _COUNTED:
            setattr(total, name, getattr(total, name) + getattr(scan.counts, name))
        if scan.checksum is not None:
            total.checksums[path] = scan.checksum
    return total


def _made_from(task: ScanTask) -> dict[str, Any]:
    return {
        "source": dict(task.description),
        "sources": dataclasses.asdict(task.sources),
        "folded": task.folded,
    }


def scan_files(number: int) -> tuple[str, str]:
    """Return the paths of a scan's files, relative to the directory for unfinished work.

    The first file marks the scan as finished.
    """
    return f"{SCANS}/{number:06d}.json", f"{SCANS}/{number:06d}.npy"


def _path(work: Path, number: int) -> Path:
    return work / SCANS / f"{number:06d}.npy"
