"""Write the files that describe which documents a corpus leaves out."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from bert_jax.corpus.screened_blocks import ScreenedBlock, read_block
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
_OPEN_BLOCKS = 32
_SHOWN_MEMBERS = 3  # removed documents shown per cluster


class ClusterWriter:
    """A writer of clusters of near-duplicates, which also counts them and collects examples.

    Attributes:
      num_clusters: the number of clusters.
      num_removed: the number of removed documents.
      examples: the first clusters.
      files: the files that were written.
    """

    def __init__(self, directory: Path, sizes: Sequence[int], output: Path):
        """Describe the blocks of documents.

        Args:
          directory: the directory that contains the screened blocks.
          sizes: the number of documents in each block.
          output: the directory to write to.
        """
        self._directory, self._output = directory, output
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._open: OrderedDict[int, ScreenedBlock] = OrderedDict()
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
                for first, members in clusters.by_first():
                    self._write_cluster(file, first, members, similarities)
            os.replace(temporary, path)
        self.files = (path,)

    def _write_cluster(
        self, file: IO[str], first: int, members: Iterator[int], similarities: Similarities
    ) -> None:
        """Write a line piece by piece, since a cluster may have millions of documents."""
        kept, beginning = self._document(first)
        file.write(f'{{"kept": {_json(kept)}, "removed": [')
        shown: list[FilterExample] = []
        count = 0
        while chunk := list(islice(members, PAIRS)):
            pairs = np.array([(first, member) for member in chunk], np.int64)
            for member, similarity in zip(chunk, similarities(pairs).tolist(), strict=True):
                source, text = self._document(member)
                removed = {"source": source, "similarity": round(similarity, 3)}
                file.write(", " * bool(count) + _json(removed))
                if count < _SHOWN_MEMBERS:
                    detail = f"removed, similarity {round(similarity, 3):.2f}"
                    shown.append(FilterExample(source, detail, text))
                count += 1
        file.write("]}\n")
        self.num_clusters += 1
        self.num_removed += count
        if len(self.examples) < NUM_EXAMPLES:
            example = FilterExample(kept, "kept", beginning)
            self.examples.append(ClusterExample(example, tuple(shown), count))

    def _document(self, position: int) -> tuple[str, str]:
        """Return a document's (source, beginning)."""
        number = int(np.searchsorted(self._ends, position, side="right"))
        block = self._open.pop(number, None) or read_block(self._directory, number)
        assert block is not None, f"block {number} is not finished"
        self._open[number] = block
        if len(self._open) > _OPEN_BLOCKS:
            self._open.popitem(last=False)
        offset = position - int(self._ends[number]) + len(block.sources)
        return block.sources[offset], block.beginnings[offset]


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
