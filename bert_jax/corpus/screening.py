"""From the results for blocks of documents, decide which documents a corpus leaves out.

Near-duplicates are found among all documents that pass the filters.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.screened_blocks import (
    BlockScreener,
    finished_block,
    read_beginnings,
    shingles_path,
    signatures_path,
)
from bert_jax.corpus.screening_report import ClusterWriter, write_page
from bert_jax.files import file_sha256, writing
from bert_jax.filtering.clusters import Clusters
from bert_jax.filtering.contamination import CONTAMINATED, EvaluationNgrams, read_evaluation_ngrams
from bert_jax.filtering.exact_similarity import ShingleFiles
from bert_jax.filtering.language import check_language_library
from bert_jax.filtering.minhash import MinHash
from bert_jax.filtering.near_duplicates import (
    SignatureFiles,
    Similarities,
    estimate,
    find_near_duplicates,
)
from bert_jax.filtering.options import FilterOptions
from bert_jax.filtering.page import NUM_EXAMPLES, FilterExample, FilterSummary

_KEPT, _FILTERED, _NEAR_DUPLICATE = range(3)
VERDICTS, _PARENTS = "verdicts.bin", "parents.bin"


@dataclass(frozen=True)
class Screening:
    """The result of screening all documents.

    Attributes:
      summary: the number of documents that were left out, by reason.
      files: the files that describe the result, which belong in the corpus directory.
      verdicts_path: the file with the verdicts.
    """

    summary: FilterSummary
    files: tuple[Path, ...]
    verdicts_path: Path

    @cached_property
    def verdicts(self) -> NDArray[np.uint8]:
        """A boolean array, mapped into memory, that is true for kept documents."""
        return _map(self.verdicts_path, self.summary.num_documents, "r")

    def as_json(self) -> dict[str, Any]:
        """Return the counts and the files' checksums for the manifest."""
        files = {path.name: file_sha256(path) for path in self.files}
        return {**dataclasses.asdict(self.summary), "files": files}

    def removes(self, position: int) -> bool:
        """Return whether the document at a position is left out.

        Args:
          position: the document's position among all documents except exact duplicates.

        Raises:
          ChangedInputsError: there was no such document in the first pass.
        """
        if position >= len(self.verdicts):
            raise ChangedInputsError
        return bool(self.verdicts[position] != _KEPT)


class ChangedInputsError(ValueError):
    """An error for inputs that have changed since their documents were screened."""

    def __init__(self) -> None:
        super().__init__(
            "inputs: a file has changed since its documents were screened. Run the same command "
            "again."
        )


def _map(path: Path, num_documents: int, mode: Literal["r", "r+"]) -> NDArray[np.uint8]:
    """Map the verdicts in a file into memory."""
    return np.memmap(path, np.uint8, mode) if num_documents else np.zeros(0, np.uint8)


@dataclass(frozen=True)
class Screener:
    """Validated settings for screening documents.

    Attributes:
      options: the options.
      evaluation: the n-grams of the evaluation data, if there is any.
    """

    options: FilterOptions
    evaluation: EvaluationNgrams | None

    @classmethod
    def load(cls, options: FilterOptions) -> Screener | None:
        """Check the options and read the evaluation data; return None if there are no filters.

        Raises:
          ValueError: a library is missing, or evaluation data cannot be used.
        """
        if not options.active:
            return None
        if options.keep_languages:
            check_language_library()
        evaluation = None
        if options.decontaminate:
            evaluation = read_evaluation_ngrams(options.decontaminate)
        return cls(options, evaluation)

    def for_blocks(self, directory: Path) -> BlockScreener:
        """Create a directory, and return a `BlockScreener` that writes to it."""
        with writing(directory):
            directory.mkdir(exist_ok=True)
        hashes = None if self.evaluation is None else self.evaluation.hashes
        return BlockScreener(self.options, hashes, directory)

    def combine(
        self,
        directory: Path,
        sizes: Sequence[int],
        output: Path,
        progress: Callable[[], None] | None = None,
    ) -> Screening:
        """Combine the results of all blocks, and find near-duplicates.

        Args:
          directory: the directory with the blocks' results, all of which must be finished.
          sizes: the number of documents in each block.
          output: the directory to write to, which is created.
          progress: called after every band of signatures.

        Raises:
          NotWritten: a file cannot be written.
        """
        with writing(output):
            output.mkdir(exist_ok=True)
        return _Combination(self, directory, sizes, output, progress).result()


class _Combination:
    """Combines the results of all blocks."""

    def __init__(
        self,
        screener: Screener,
        directory: Path,
        sizes: Sequence[int],
        output: Path,
        progress: Callable[[], None] | None,
    ):
        self._options, self._evaluation = screener.options, screener.evaluation
        self._directory, self._sizes, self._output = directory, sizes, output
        self._progress = progress
        self._filtered: Counter[str] = Counter()
        self._contaminated = 0
        self._examples: dict[str, list[FilterExample]] = {}

    def result(self) -> Screening:
        path = self._output / VERDICTS
        with writing(path), open(path, "wb") as file:
            for number in range(len(self._sizes)):
                file.write(self._verdicts(number).tobytes())
        num_documents = sum(self._sizes)
        writer = ClusterWriter(self._directory, self._sizes, self._output)
        if self._options.near_duplicates is not None:
            verdicts = _map(path, num_documents, "r+")
            self._find_clusters(writer, verdicts, MinHash(self._options.near_duplicates))
            if isinstance(verdicts, np.memmap):
                verdicts.flush()
        evaluation = self._evaluation
        summary = FilterSummary(
            num_documents=num_documents,
            filtered=dict(sorted(self._filtered.items())),
            contaminated_kept=self._contaminated,
            near_duplicates=writer.num_removed,
            clusters=writer.num_clusters,
            evaluation_texts=evaluation.texts if evaluation else 0,
            short_evaluation_texts=evaluation.short_texts if evaluation else 0,
        )
        page = write_page(self._output, summary, self._examples, writer.examples)
        return Screening(summary, (*writer.files, page), path)

    def _verdicts(self, number: int) -> NDArray[np.uint8]:
        block = finished_block(self._directory, number)
        verdicts = np.full(len(block.sources), _KEPT, np.uint8)
        beginnings: list[str] = []
        for place, rule, detail in block.findings:
            examples = self._examples.setdefault(rule, [])
            if len(examples) < NUM_EXAMPLES:
                beginnings = beginnings or read_beginnings(self._directory, number)
                examples.append(FilterExample(block.sources[place], detail, beginnings[place]))
            if self._options.removes(rule):
                verdicts[place] = _FILTERED
                self._filtered[rule] += 1
            else:
                assert rule == CONTAMINATED, f"{rule} does not remove documents"
                self._contaminated += 1
        return verdicts

    def _find_clusters(
        self, writer: ClusterWriter, verdicts: NDArray[np.uint8], settings: MinHash
    ) -> None:
        paths = [signatures_path(self._directory, number) for number in range(len(self._sizes))]
        signatures = SignatureFiles(paths, self._sizes)
        clusters = Clusters(self._output / _PARENTS, len(verdicts))
        similarities: Similarities = partial(estimate, signatures)
        shingles = None
        if self._options.verify_near_duplicates:
            paths = [shingles_path(self._directory, number) for number in range(len(self._sizes))]
            shingles = ShingleFiles(paths, self._sizes)
            similarities = shingles.similarities
        find_near_duplicates(signatures, settings, clusters, self._progress, shingles)
        for pairs in clusters.removed():
            verdicts[pairs[:, 1]] = _NEAR_DUPLICATE
        writer.write(clusters, similarities)
