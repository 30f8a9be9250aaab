"""Find clusters of near-duplicates from documents' signatures, in bounded memory.

Documents whose signatures agree in all rows of a band are candidates. Candidates whose estimated
similarity reaches the threshold are linked. Linked documents form a cluster, and the first document
of each cluster is kept. The result depends only on the documents and their order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_jax.filtering.clusters import Clusters
from bert_jax.filtering.exact_similarity import ShingleFiles
from bert_jax.filtering.minhash import MinHash, Signatures, band_hashes, has_words, similarities
from bert_jax.filtering.scratch import divided

Positions = NDArray[np.int64]
# A function that returns the similarities of pairs of documents, given as (num_pairs, 2).
Similarities = Callable[[Positions], NDArray[np.float64]]

# Each document is compared only with the first documents in its bucket, so a bucket with n
# documents takes time proportional to n.
MAX_COMPARED = 256
_ENTRIES = 1 << 22  # This many documents are sorted at a time, which takes 250 MiB.
_ENTRY = np.dtype([("position", np.int64), ("hash", np.uint64)])
PAIRS = 1 << 14  # This many pairs of signatures are compared at a time, which takes 16 MiB.
_OPEN_FILES = 64
# The exact similarity is not computed if the estimate is below the threshold by this margin, which
# is four times the standard error of the estimate.
_MARGIN = 0.1


class SignatureFiles:
    """The signatures of all documents, in NumPy files with one block of documents each."""

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int]):
        """Create an object that reads these files.

        Args:
          paths: the files, in the order of the documents. Each contains an array of shape
            (num_permutations, num_documents); see `MinHash.sign`.
          sizes: the number of documents in each file.
        """
        self._paths = paths
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._open: OrderedDict[int, Signatures] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def _block(self, number: int) -> Signatures:
        block = self._open.pop(number, None)
        if block is None:
            block = np.load(self._paths[number], mmap_mode="r")
        self._open[number] = block
        if len(self._open) > _OPEN_FILES:
            self._open.popitem(last=False)
        return block

    def read(self, positions: Positions) -> Signatures:
        """Return the signatures of some documents, of shape (num_positions, num_permutations)."""
        blocks = np.searchsorted(self._ends, positions, side="right")
        order = np.argsort(blocks, kind="stable")
        numbers, starts = np.unique(blocks[order], return_index=True)
        parts = []
        for number, chosen in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            block = self._block(number)
            start = self._ends[number] - block.shape[1]
            parts.append(block[:, positions[chosen] - start].T)
        signatures = np.empty((len(positions), parts[0].shape[1]), np.uint16)
        signatures[order] = np.concatenate(parts)
        return signatures

    def band(self, first_row: int, num_rows: int) -> Iterator[tuple[Positions, NDArray[np.uint64]]]:
        """For each block, yield (positions, band hashes) of the texts that contain words."""
        start = 0
        for number in range(len(self._paths)):
            rows = self._block(number)[first_row : first_row + num_rows]
            chosen = np.flatnonzero(has_words(rows))
            yield chosen + start, band_hashes(rows[:, chosen])
            start += rows.shape[1]


def find_near_duplicates(
    signatures: SignatureFiles,
    settings: MinHash,
    clusters: Clusters,
    progress: Callable[[], None] | None = None,
    shingles: ShingleFiles | None = None,
) -> None:
    """Join the clusters of documents that are near-duplicates.

    Args:
      signatures: the signatures of the documents.
      settings: the threshold, permutations and bands.
      clusters: the clusters to update.
      progress: called after each band.
      shingles: the shingles of the documents, used to compare the exact similarity of each
        candidate with the threshold; None to compare the estimated similarity instead.
    """
    for band in range(settings.bands):
        for pairs in candidates(
            signatures, band * settings.rows, settings.rows, clusters.directory
        ):
            _join_similar(signatures, pairs, settings.threshold, clusters, shingles)
        if progress is not None:
            progress()


def candidates(
    signatures: SignatureFiles, first_row: int, num_rows: int, scratch: Path
) -> Iterator[Positions]:
    """Yield arrays of pairs of documents that agree in a band, of shape (num_pairs, 2).

    Args:
      signatures: the signatures of the documents.
      first_row: the first row of the band.
      num_rows: the number of rows of the band.
      scratch: a directory for temporary files, with 16 bytes per document.

    Raises:
      NotWritten: a temporary file cannot be written.
    """
    for entries in _parts_of_band(signatures, first_row, num_rows, scratch):
        # Equal hashes stay in the order of the documents.
        order = np.argsort(entries["hash"], kind="stable")
        positions, hashes = entries["position"][order], entries["hash"][order]
        is_first = np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]
        starts = np.maximum.accumulate(np.where(is_first, np.arange(len(hashes)), 0))
        later = np.flatnonzero(~is_first)
        for rank in range(MAX_COMPARED):
            later = later[later - starts[later] > rank]
            if not len(later):
                break
            yield np.stack([positions[starts[later] + rank], positions[later]], axis=1)


def _parts_of_band(
    signatures: SignatureFiles, first_row: int, num_rows: int, scratch: Path
) -> Iterator[NDArray[np.void]]:
    """Yield the entries of all documents in a band, in parts of about `_ENTRIES` documents.

    Each document belongs to the part given by its hash modulo the number of parts.
    """
    num_parts = max(1, -(-len(signatures) // _ENTRIES))

    def chunks() -> Iterator[tuple[NDArray[np.void], Positions]]:
        for positions, hashes in signatures.band(first_row, num_rows):
            entries = np.empty(len(positions), _ENTRY)
            entries["position"], entries["hash"] = positions, hashes
            yield entries, (hashes % np.uint64(num_parts)).astype(np.int64)

    with divided(chunks(), num_parts, scratch) as files:
        for file in files:
            yield np.fromfile(file, _ENTRY)


def _join_similar(
    signatures: SignatureFiles,
    pairs: Positions,
    threshold: float,
    clusters: Clusters,
    shingles: ShingleFiles | None,
) -> None:
    for start in range(0, len(pairs), PAIRS):
        chunk = pairs[start : start + PAIRS]
        chunk = chunk[clusters.firsts(chunk[:, 0]) != clusters.firsts(chunk[:, 1])]
        if not len(chunk):
            continue
        estimated = estimate(signatures, chunk)
        if shingles is None:
            similar = estimated >= threshold
        else:
            chunk = chunk[estimated >= threshold - _MARGIN]
            similar = shingles.similarities(chunk) >= threshold
        for position, other in chunk[similar].tolist():
            clusters.join(position, other)


def estimate(signatures: SignatureFiles, pairs: Positions) -> NDArray[np.float64]:
    """Return the estimated similarities of at most `PAIRS` pairs of documents.

    Args:
      signatures: the signatures of the documents.
      pairs: the positions of the documents, of shape (num_pairs, 2).
    """
    return similarities(signatures.read(pairs[:, 0]), signatures.read(pairs[:, 1]))
