"""Keep track of clusters of documents in scratch files, which can be larger than memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from bert_jax.files import writing
from bert_jax.filtering.scratch import divided

_PART = 1 << 20  # This many documents are processed at a time.
_MOST_FILES = 64  # Sorting opens at most this many files at each of a few levels.
_PAIR_BYTES = 16


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

    def removed(self) -> Iterator[NDArray[np.int64]]:
        """Yield (first document of the cluster, document) for each document that is not the first.

        The pairs are in the order of the documents, in arrays of shape (num_pairs, 2).
        """
        for start in range(0, len(self._parents), _PART):
            part = self._parents[start : start + _PART]
            later = start + np.flatnonzero(part != np.arange(start, start + len(part)))
            yield np.stack([self.firsts(later), later], axis=1)

    def by_first(self, batch: int) -> Iterator[NDArray[np.int64]]:
        """Yield the pairs of `removed` in arrays of shape (at most `batch`, 2).

        The pairs are sorted by the first document of the cluster, and then by the other document.

        Raises:
          NotWritten: the disk is full.
        """
        total, num_documents = sum(len(pairs) for pairs in self.removed()), len(self._parents)
        for pairs in _sort(self.removed(), total, 0, num_documents, self.directory):
            for start in range(0, len(pairs), batch):
                yield pairs[start : start + batch]


def _sort(
    chunks: Iterator[NDArray[np.int64]], total: int, low: int, high: int, directory: Path
) -> Iterator[NDArray[np.int64]]:
    """Sort pairs by their first document, and yield them in arrays of at most `_PART` pairs.

    If there are more pairs than that, they are divided into files by ranges of first documents, and
    each file is sorted.

    Args:
      chunks: the pairs, in the order of their second documents.
      total: the number of pairs.
      low: the lowest possible first document.
      high: the position just past the highest possible first document.
      directory: a directory for temporary files.
    """
    if total <= _PART:
        pairs = np.concatenate([np.zeros((0, 2), np.int64), *chunks])
        yield pairs[np.argsort(pairs[:, 0], kind="stable")]
    elif high - low == 1:
        yield from chunks  # a single cluster, whose pairs are already sorted
    else:
        num_parts = min(high - low, _MOST_FILES, 2 + 2 * total // _PART)
        width = -(-(high - low) // num_parts)
        keyed = ((pairs, (pairs[:, 0] - low) // width) for pairs in chunks)
        with divided(keyed, num_parts, directory) as files:
            for start, file in zip(range(low, high, width), files, strict=False):
                size = os.fstat(file.fileno()).st_size // _PAIR_BYTES
                yield from _sort(_read(file), size, start, min(high, start + width), directory)


def _read(file: IO[bytes]) -> Iterator[NDArray[np.int64]]:
    while len(pairs := np.fromfile(file, np.int64, 2 * _PART)):
        yield pairs.reshape(-1, 2)
