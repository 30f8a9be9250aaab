"""Write the files that describe which documents a corpus leaves out.

Time and scratch space are proportional to the number of removed documents. Memory use is bounded
even for hundreds of millions of removed documents, and even if they are all in one cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.screened_blocks import finished_block, read_beginnings
from bert_jax.files import temporary_beside, write_file, writing
from bert_jax.filtering.clusters import Clusters
from bert_jax.filtering.near_duplicates import PAIRS, Similarities
from bert_jax.filtering.page import (
    NUM_EXAMPLES,
    ClusterExample,
    FilterExample,
    FilterSummary,
    filter_page,
)

NEAR_DUPLICATES, PAGE = "near_duplicates.jsonl", "filters.html"
_SHOWN_MEMBERS = 3  # For each cluster, this many removed documents are shown.
# This many removed documents are looked up at a time, which takes about 100 MB. They are looked up
# in the order of their blocks, so each block is read only once.
_BATCH = 1 << 18


class ClusterWriter:
    """A writer of clusters of near-duplicates, which also counts them and collects examples.

    Attributes:
      num_clusters: the number of clusters.
      num_removed: the number of removed documents.
      examples: the first clusters.
      files: the files that were written.
    """

    def __init__(self, directory: Path, sizes: Sequence[int], output: Path):
        """Create a writer for the documents in screened blocks.

        Args:
          directory: the directory that contains the screened blocks.
          sizes: the number of documents in each block.
          output: the directory to write to.
        """
        self._directory, self._output = directory, output
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self.num_clusters = self.num_removed = 0
        self.examples: list[ClusterExample] = []
        self.files: tuple[Path, ...] = ()

    def write(self, clusters: Clusters, similarities: Similarities) -> None:
        """Write one JSON object per cluster, in the order of the kept documents.

        The object has the keys "kept", the source of the kept document, and "removed", a list of
        objects with the "source" of a removed document and its "similarity" to the kept document.
        The similarity may be below the threshold if a chain of similar documents connects the two.

        Args:
          clusters: the clusters.
          similarities: returns the similarities of pairs of documents.

        Raises:
          NotWritten: a file cannot be written.
        """
        path = self._output / NEAR_DUPLICATES
        with writing(path), temporary_beside(path) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                cluster = None
                for pairs in clusters.by_first(_BATCH):
                    cluster = self._write_pairs(file, cluster, pairs, similarities)
                self._finish(file, cluster)
            os.replace(temporary, path)
        self.files = (path,)

    def _write_pairs(
        self,
        file: IO[str],
        cluster: _OpenCluster | None,
        pairs: NDArray[np.int64],
        similarities: Similarities,
    ) -> _OpenCluster | None:
        """Write pairs of (kept, removed) documents piece by piece, since there may be millions.

        Args:
          file: the file.
          cluster: the cluster that was written last; the first pairs may belong to it.
          pairs: the positions of the documents, in the order of the clusters.
          similarities: returns the similarities of pairs of documents.

        Returns:
          The cluster that was written last.
        """
        values = np.empty(len(pairs))
        order = np.argsort(pairs[:, 1], kind="stable")
        for start in range(0, len(pairs), PAIRS):
            chosen = order[start : start + PAIRS]
            values[chosen] = similarities(pairs[chosen])
        positions, places = np.unique(pairs, return_inverse=True)
        sources = self._sources(positions)
        rows = zip(pairs.tolist(), places.reshape(-1, 2).tolist(), values.tolist(), strict=True)
        for (first, position), (first_place, place), similarity in rows:
            if cluster is None or cluster.first != first:
                self._finish(file, cluster)
                cluster = _OpenCluster(first, sources[first_place])
                file.write(f'{{"kept": {_json(cluster.kept)}, "removed": [')
            removed = {"source": sources[place], "similarity": round(similarity, 3)}
            file.write(", " * bool(cluster.num_removed) + _json(removed))
            if len(self.examples) < NUM_EXAMPLES and cluster.num_removed < _SHOWN_MEMBERS:
                detail = f"removed, similarity {round(similarity, 3):.2f}"
                cluster.shown.append(self._example(position, sources[place], detail))
            cluster.num_removed += 1
        return cluster

    def _finish(self, file: IO[str], cluster: _OpenCluster | None) -> None:
        if cluster is None:
            return
        file.write("]}\n")
        self.num_clusters += 1
        self.num_removed += cluster.num_removed
        if len(self.examples) < NUM_EXAMPLES:
            kept = self._example(cluster.first, cluster.kept, "kept")
            example = ClusterExample(kept, tuple(cluster.shown), cluster.num_removed)
            self.examples.append(example)

    def _sources(self, positions: NDArray[np.int64]) -> list[str]:
        """Return the sources of documents, given their sorted positions."""
        numbers = np.searchsorted(self._ends, positions, side="right")
        sources: list[str] = []
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for number, part in zip(numbers[starts], np.split(positions, starts[1:]), strict=True):
            block = finished_block(self._directory, int(number))
            offset = len(block.sources) - int(self._ends[number])
            sources += [block.sources[position] for position in (part + offset).tolist()]
        return sources

    def _example(self, position: int, source: str, detail: str) -> FilterExample:
        number = int(np.searchsorted(self._ends, position, side="right"))
        beginnings = read_beginnings(self._directory, number)
        offset = len(beginnings) - int(self._ends[number])
        return FilterExample(source, detail, beginnings[position + offset])


@dataclass
class _OpenCluster:
    """A cluster whose line is being written."""

    first: int
    kept: str
    num_removed: int = 0
    shown: list[FilterExample] = field(default_factory=list)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def write_page(
    directory: Path,
    summary: FilterSummary,
    examples: Mapping[str, Sequence[FilterExample]],
    clusters: Sequence[ClusterExample],
) -> Path:
    """Write the page that shows documents that were left out, and return its path."""
    path = directory / PAGE
    write_file(path, filter_page(summary, examples, clusters))
    return path
