"""Compute exact similarities of candidates for near-duplicates, from files with their shingles."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_jax.filtering.words import Hashes

_OPEN_FILES = 64


def pack_shingles(hashes: Hashes, counts: NDArray[np.intp]) -> Hashes:
    """Return the contents of a file with the shingles (word n-grams) of consecutive documents.

    Args:
      hashes: the hashes of all shingles, one document after another, which may contain repetitions.
      counts: the number of hashes of each document.

    Returns:
      An array that contains, for each document, the position in `sets` at which its set of hashes
      ends, followed by `sets`: the sorted sets of all documents, one after another.
    """
    parts = np.split(hashes, np.cumsum(counts)[:-1]) if len(counts) else []
    sets = [np.unique(part) for part in parts]
    ends = np.cumsum([len(each) for each in sets], dtype=np.uint64)
    return np.concatenate([ends, *sets])


class ShingleFiles:
    """The sets of shingles of all documents, in NumPy files with one block of documents each.

    The files are mapped into memory, so only the sets that are compared are read.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int]):
        """Create an object that reads these files.

        Args:
          paths: the files, in the order of the documents; see `pack_shingles`.
          sizes: the number of documents in each file.
        """
        self._paths, self._sizes = paths, sizes
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._open: OrderedDict[int, Hashes] = OrderedDict()

    def similarities(self, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the Jaccard similarities of pairs of documents, given as (num_pairs, 2)."""
        found = [_jaccard(self._shingles(i), self._shingles(j)) for i, j in pairs.tolist()]
        return np.array(found, np.float64)

    def _shingles(self, position: int) -> Hashes:
        number = int(np.searchsorted(self._ends, position, side="right"))
        block = self._open.pop(number, None)
        if block is None:
            block = np.load(self._paths[number], mmap_mode="r")
        self._open[number] = block
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)
        size = self._sizes[number]
        index = position - (int(self._ends[number]) - size)
        start = int(block[index - 1]) if index else 0
        return block[size + start : size + int(block[index])]


def _jaccard(first: Hashes, second: Hashes) -> float:
    """Return the Jaccard similarity of two sorted sets, or 0 if either is empty."""
    small, large = sorted((first, second), key=len)
    if not len(small):
        return 0.0
    places = np.searchsorted(large, small)
    shared = int(np.sum(large[np.minimum(places, len(large) - 1)] == small))
    return shared / (len(small) + len(large) - shared)
