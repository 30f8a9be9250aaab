"""Keep track of clusters of documents in scratch files, which can be larger than memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_jax.files import NotWritten, writing

_PART = 1 << 20  # This many documents are processed at a time.
_CACHE_KIB = 65_536


class Clusters:
    """A partition of documents into clusters, each represented by its first document.

    This is a union-find structure (Tarjan 1975) in a file that is mapped into memory.
    """

    def __init__(self, path: Path, num_documents: int):
        """Make a cluster of each document.

        Args:
          path: the scratch file, which is replaced.
          num_documents: the number of documents.

        Raises:
          NotWritten: the disk is full.
        """
        self._path = path
        with writing(path):
            path.unlink(missing_ok=True)
            # Allocate the space now, because a full disk cannot be reported for a mapped file.
            with open(path, "wb") as file:
                for start in range(0, num_documents, _PART):
                    file.write(np.arange(start, min(num_documents, start + _PART)).tobytes())
        self._parents: NDArray[np.int64] = (
            np.memmap(path, np.int64, "r+") if num_documents else np.zeros(0, np.int64)
        )

    @property
    def directory(self) -> Path:
        """The directory for scratch files."""
        return self._path.parent

    def first(self, position: int) -> int:
        """Return the position of the first document in a document's cluster."""
        parents, root = self._parents, position
        while (parent := int(parents[root])) != root:
            root = parent
        while position != root:
            parent = int(parents[position])
            parents[position] = root
            position = parent
        return root

    def firsts(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the result of `first` for many documents."""
        roots = np.asarray(self._parents[positions])
        while np.any((parents := self._parents[roots]) != roots):
            roots = np.asarray(parents)
        return roots

    def join(self, position: int, other: int) -> None:
        """Join the clusters of two documents."""
        first, second = sorted((self.first(position), self.first(other)))
        self._parents[second] = first

    def removed(self) -> Iterator[tuple[int, int]]:
        """Yield (first document of its cluster, document) for each document that is not the first.

        The pairs are in the order of the documents.
        """
        for start in range(0, len(self._parents), _PART):
            part = self._parents[start : start + _PART]
            later = start + np.flatnonzero(part != np.arange(start, start + len(part)))
            yield from zip(self.firsts(later).tolist(), later.tolist(), strict=True)

    def by_first(self, batch: int) -> Iterator[NDArray[np.int64]]:
        """Yield the pairs of `removed` in arrays of shape (at most `batch`, 2).

        The pairs are sorted by the first document of the cluster, and then by the other document.

        Raises:
          NotWritten: the disk is full.
        """
        path = self._path.with_suffix(".sqlite")
        path.unlink(missing_ok=True)
        database = sqlite3.connect(path, isolation_level=None)
        try:
            for setting in (
                "journal_mode = OFF",
                "synchronous = OFF",
                f"cache_size = -{_CACHE_KIB}",
            ):
                database.execute(f"PRAGMA {setting}")
            database.execute(
                "CREATE TABLE pairs (first INTEGER, position INTEGER, "
                "PRIMARY KEY (first, position)) WITHOUT ROWID"
            )
            database.execute("BEGIN")
            database.executemany("INSERT INTO pairs VALUES (?, ?)", self.removed())
            rows = database.execute("SELECT * FROM pairs ORDER BY first, position")
            while pairs := rows.fetchmany(batch):
                yield np.array(pairs, np.int64)
        except sqlite3.OperationalError as error:
            raise NotWritten(path, str(error)) from error
        finally:
            database.close()
            path.unlink(missing_ok=True)
