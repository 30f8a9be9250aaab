"""Find exact duplicates and repeats of held-out documents, from the scans of all inputs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.scans import Scan

# The number of digests that are sorted at a time. Sorting them takes about 700 MB of memory.
_DIGESTS_PER_PASS = 1 << 24


@dataclass(frozen=True)
class UniqueDocuments:
    """The documents that are neither exact duplicates nor repeats of held-out ones.

    Attributes:
      kept: for each input, a boolean array [num_documents] that is true for unique documents.
      heldout_repeats: the number of repeats of held-out documents.
    """

    kept: list[NDArray[np.bool_]]
    heldout_repeats: int


def find_unique(scans: Sequence[Scan], num_heldout: int) -> UniqueDocuments:
    """Find exact duplicates and repeats of held-out documents in all inputs.

    This takes one byte of memory per document and 16 bytes per held-out document, plus a constant
    amount.
    """
    kept = [np.ones(len(scan.rows), np.bool_) for scan in scans]
    repeats = _drop_repeats(scans, kept, num_heldout)
    _drop_duplicates(scans, kept)
    return UniqueDocuments(kept, repeats)


def _drop_repeats(scans: Sequence[Scan], kept: list[NDArray[np.bool_]], num_heldout: int) -> int:
    """Drop documents that repeat a held-out one, ignoring case and white space."""
    if not num_heldout:
        return 0
    heldout = np.unique(np.concatenate([_folded(scan) for scan in scans[:num_heldout]]))
    repeats = 0
    for scan, mask in zip(scans[num_heldout:], kept[num_heldout:], strict=True):
        repeated = np.isin(_folded(scan), heldout)
        mask[scan.rows["position"][repeated]] = False
        repeats += int(np.count_nonzero(repeated))
    return repeats


def _folded(scan: Scan) -> NDArray[np.bytes_]:
    """Return the 16-byte digests that ignore case and white space, as an array [num_documents]."""
    digests = np.empty((len(scan.rows), 2), np.uint64)
    digests[:, 0], digests[:, 1] = scan.rows["folded_high"], scan.rows["folded_low"]
    return digests.view("S16").ravel()


def _drop_duplicates(scans: Sequence[Scan], kept: list[NDArray[np.bool_]]) -> None:
    """Drop all but the first of the documents with the same digest."""
    passes = 1 + sum(len(scan.rows) for scan in scans) // _DIGESTS_PER_PASS
    edges = [(1 << 64) * number // passes for number in range(passes + 1)]
    for low, high in zip(edges, edges[1:], strict=False):
        slices = [scan.rows[_find(scan, low) : _find(scan, high)] for scan in scans]
        inputs = np.repeat(np.arange(len(scans), dtype=np.uint32), [len(part) for part in slices])
        rows = np.concatenate([part[["high", "low", "position"]] for part in slices])
        # The sort is stable, so the first document stays first.
        order = np.lexsort((rows["low"], rows["high"]))
        rows, inputs = rows[order], inputs[order]
        same = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
        repeated = 1 + np.flatnonzero(same)
        numbers, positions = inputs[repeated], rows["position"][repeated]
        by_input = np.argsort(numbers, kind="stable")
        for number, chosen in groups(numbers[by_input]):
            kept[number][positions[by_input[chosen]]] = False


def _find(scan: Scan, bound: int) -> int:
    return bisect_left(scan.rows, bound, key=lambda row: int(row["high"]))


def groups(values: NDArray[np.integer]) -> list[tuple[int, slice]]:
    """Return (value, slice) for each run of equal values."""
    if not len(values):
        return []
    cuts = [0, *(1 + np.flatnonzero(values[1:] != values[:-1])).tolist(), len(values)]
    return [
        (int(values[begin]), slice(begin, end)) for begin, end in zip(cuts, cuts[1:], strict=False)
    ]
