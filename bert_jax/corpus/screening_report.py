"""Write the files that describe which documents a corpus leaves out."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_jax.corpus.screened_blocks import ScreenedBlock, read_block
from bert_jax.files import temporary_beside, write_file, writing
from bert_jax.filtering.clusters import Clusters
from bert_jax.filtering.near_duplicates import SignatureFiles, estimate
from bert_jax.filtering.page import (
    NUM_EXAMPLES,
    ClusterExample,
    FilterExample,
    FilterSummary,
    filter_page,
)

NEAR_DUPLICATES, PAGE = "near_duplicates.jsonl", "filters.html"
_OPEN_BLOCKS = 32
_SHOWN_MEMBERS = 3  # removed documents that are shown of a cluster


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

    def write(self, clusters: Clusters, signatures: SignatureFiles) -> None:
        """Write one JSON object per cluster, in the order of the kept documents.

        The object has the keys "kept", the source of the kept document, and "removed", a list of
        objects with the "source" of a removed document and its estimated "similarity" to the kept
        document. That may be below the threshold if a chain of similar documents connects the two.

        Raises:
          NotWritten: a file cannot be written.
        """
        path = self._output / NEAR_DUPLICATES
        with writing(path), temporary_beside(path) as temporary:
            with open(temporary, "w", encoding="utf-8") as file:
                for first, members in clusters.by_first():
                    pairs = np.array([(first, member) for member in members], np.int64)
                    similarity = [round(value, 3) for value in estimate(signatures, pairs).tolist()]
                    removed = [
                        {"source": self._document(member)[0], "similarity": value}
                        for member, value in zip(members, similarity, strict=True)
                    ]
                    content = {"kept": self._document(first)[0], "removed": removed}
                    file.write(json.dumps(content, ensure_ascii=False) + "\n")
                    self._count(first, members, similarity)
            os.replace(temporary, path)
        self.files = (path,)

    def _count(self, first: int, members: Sequence[int], similarity: Sequence[float]) -> None:
        self.num_clusters += 1
        self.num_removed += len(members)
        if len(self.examples) < NUM_EXAMPLES:
            shown = list(zip(members, similarity, strict=True))[:_SHOWN_MEMBERS]
            self.examples.append(
                ClusterExample(
                    FilterExample(self._document(first)[0], "kept", self._document(first)[1]),
                    tuple(
                        FilterExample(source, f"removed, similarity {value:.2f}", beginning)
                        for member, value in shown
                        for source, beginning in [self._document(member)]
                    ),
                    len(members),
                )
            )

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
