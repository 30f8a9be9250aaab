"""Run a corpus preparation from inputs to shards."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from bert_jax.corpus.document_stream import (
    DIGEST_BYTES,
    SPLITS,
    SeenDocuments,
    Split,
    StreamCounts,
    kept_documents,
)
from bert_jax.corpus.inputs import PrepareInputs, PrepareOptions
from bert_jax.corpus.manifest import TOKENIZER, Manifest
from bert_jax.corpus.progress import ProgressCallback, ProgressMeter
from bert_jax.corpus.screened_blocks import group_documents
from bert_jax.corpus.screened_files import keep_screening, kept_screening, sharing_blocks
from bert_jax.corpus.screening import ChangedInputsError, Screener, Screening
from bert_jax.corpus.screening_pool import screen_blocks
from bert_jax.corpus.shard_keeper import LocalShards, ShardKeeper
from bert_jax.corpus.shards import (
    FinishedUnit,
    ShardSettings,
    UnitResult,
    WorkerPool,
    split_info,
)
from bert_jax.corpus.shared_files import SharedFiles
from bert_jax.corpus.units import Unit, build_units, shard_name
from bert_jax.corpus.workspace import SCREENED, SCREENING
from bert_jax.files import file_sha256
from bert_jax.text.documents import SourceCounts
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import UnknownCounts


@dataclass
class Preparation:
    """The state of one call to `make_corpus`: its inputs and the results for its shards.

    Attributes:
      inputs: the expanded inputs.
      options: the options.
      work: the directory for unfinished work.
      settings: the settings that determine the bytes of the shards.
      total_bytes: the size of the inputs on disk; 0 if unknown.
      unknown: the running counts of unknown tokens.
      source: the counts that the readers update.
      stream: the counts that `kept_documents` updates.
      screening: the result of screening the documents; None if no documents are filtered out.
      screened_digest: a digest of the screened documents, which must not change afterwards.
      results: a dict from the name of each finished unit's shard to the unit's result.
      keeper: the object that keeps finished shards.
    """

    inputs: PrepareInputs
    options: PrepareOptions
    work: Path
    settings: ShardSettings
    total_bytes: int
    unknown: UnknownCounts
    source: SourceCounts = field(default_factory=lambda: SourceCounts(checksums={}))
    stream: StreamCounts = field(default_factory=StreamCounts)
    screening: Screening | None = None
    screened_digest: bytes = b""
    results: dict[str, UnitResult] = field(default_factory=dict)
    keeper: ShardKeeper = field(default_factory=LocalShards)

    def make_shards(
        self, num_workers: int, meter: ProgressMeter, progress: ProgressCallback | None
    ) -> None:
        """Make the missing shards, and fill `results` with the results of all shards.

        Raises:
          ChangedInputsError: an input has changed since its documents were screened.
          TooManyUnknownError: too many tokens in the units so far are unknown. The order in which
            units are checked does not depend on the number of workers.
        """
        unchecked: deque[str] = deque()

        def report() -> None:
            if progress is not None:
                progress(meter.read(self._fraction(meter.text_bytes)))

        def collect(finished: Iterable[FinishedUnit]) -> None:
            for unit in finished:
                self.keeper.keep(self.work, unit.name)
                self.results[unit.name] = unit.result
                meter.add_new(unit.result, unit.peak_memory)
                report()
                self.check_unknown(unchecked)

        pool = WorkerPool(num_workers, self.work / TOKENIZER, self.settings, self.work)
        with SeenDocuments(self.work / "seen.sqlite") as seen, pool:
            for unit in self._units(seen):
                unchecked.append(unit.name)
                kept = self.keeper.kept(self.work, unit.name)
                if kept is not None and kept.unit_digest == unit.digest:
                    self.unknown.keep_finished_work()
                    self.results[unit.name] = kept
                    meter.add_kept(kept)
                    report()
                    self.check_unknown(unchecked)
                else:
                    collect(pool.submit(unit))
            collect(pool.drain())

    def screen(
        self,
        screener: Screener,
        files: SharedFiles,
        plan: Mapping[str, Any],
        num_workers: int,
        meter: ProgressMeter,
        progress: ProgressCallback | None,
    ) -> None:
        """Decide which documents to leave out, in a pass over all of them.

        If an earlier result was kept, it is used instead.

        Args:
          screener: the settings.
          files: where the results are kept.
          plan: everything that determines the corpus.
          num_workers: the number of worker processes.
          meter: the meter that measures the progress.
          progress: called after every block of documents; None for no calls.

        Raises:
          OSError: a file cannot be read or written, or a worker died.
        """
        if kept := kept_screening(files, plan):
            self.screening, self.screened_digest = kept.screening, bytes.fromhex(kept.documents)
            return
        source, stream = SourceCounts(logged=False), StreamCounts()
        heldout, documents = self.inputs.documents(self.options.sources, source)
        hashing = hashlib.blake2b(digest_size=DIGEST_BYTES)

        def keep_all(position: int, digest: bytes) -> bool:
            hashing.update(digest)
            return False

        def report() -> None:
            if progress is not None:
                fraction = source.bytes_read / self.total_bytes if self.total_bytes else None
                progress(meter.read(fraction, screened_bytes=source.text_bytes))

        files.fetch_all(SCREENING)
        with SeenDocuments(self.work / "seen.sqlite") as seen, sharing_blocks(files) as share:
            fraction = self.options.heldout_fraction
            unique = kept_documents(heldout, documents, fraction, seen, stream, keep_all)
            exempt = ("heldout",) if self.inputs.heldout else ()
            filtered = ((document, document.split not in exempt) for document in unique)
            blocks = screener.for_blocks(self.work / SCREENING)
            sizes = screen_blocks(
                group_documents(filtered, blocks.fingerprint), blocks, num_workers, report, share
            )
        output = self.work / SCREENED
        self.screening = screener.combine(blocks.directory, sizes, output, report)
        self.screened_digest = hashing.digest()
        keep_screening(files, self.screening, plan, self.screened_digest)

    def check_unknown(self, unchecked: deque[str]) -> None:
        """Check the results of units in order, up to the first unit without a result.

        Args:
          unchecked: the names of the remaining units in order. Checked units are removed.

        Raises:
          TooManyUnknownError: too many tokens in the units checked so far are unknown.
        """
        while unchecked and (result := self.results.get(unchecked[0])) is not None:
            unchecked.popleft()
            self.unknown.add(result.num_tokens, result.num_unknown)

    def _fraction(self, finished_bytes: int) -> float | None:
        """Estimate the fraction of the inputs that has been processed from the bytes read."""
        if not self.total_bytes or not self.source.text_bytes:
            return None
        finished = (finished_bytes + self.stream.left_out_bytes) / self.source.text_bytes
        return self.source.bytes_read / self.total_bytes * finished

    def _units(self, seen: SeenDocuments) -> Iterator[Unit]:
        heldout, documents = self.inputs.documents(self.options.sources, self.source)
        screening, hashing = self.screening, hashlib.blake2b(digest_size=DIGEST_BYTES)

        def is_left_out(position: int, digest: bytes) -> bool:
            hashing.update(digest)
            return screening is not None and screening.removes(position)

        kept = kept_documents(
            heldout, documents, self.options.heldout_fraction, seen, self.stream, is_left_out
        )
        yield from build_units(kept, self.options.unit_bytes)
        if screening is not None and hashing.digest() != self.screened_digest:
            raise ChangedInputsError

    def texts(self) -> Iterator[str]:
        """Read the documents again from the beginning, and yield their texts."""
        heldout, documents = self.inputs.documents(self.options.sources, SourceCounts(logged=False))
        return (document.text for document in chain(heldout, documents))

    def check_splits(self) -> None:
        """Raise ValueError if a requested split is empty."""
        num_documents = sum(self.stream.documents.values())
        if not num_documents and self.stream.screened_out:
            raise ValueError(
                f"filters: all {self.stream.screened_out} documents would be left out. Use fewer "
                "filters, or change their limits."
            )
        fraction = self.options.heldout_fraction
        records = {
            split: sum(result.shard.num_records for result in self._of(split)) for split in SPLITS
        }
        if not any(records.values()):
            raise ValueError(
                f"inputs: the corpus would be empty, since the {num_documents} documents in "
                f"{len(self.inputs.paths)} inputs contain no tokens. Use different inputs."
            )
        if self.inputs.heldout:
            self._check_given_splits(records)
            return
        if all(records.values()) or not fraction:
            return
        purpose, advice = "train on", f"less than {self.stream.highest_hash:.3f}"
        if not records["heldout"]:
            sufficient = math.ceil(self.stream.lowest_hash * 1000 + 1) / 1000
            purpose, advice = "evaluate on", f"{sufficient}, or 0 for no evaluation"
        if num_documents == 1:
            advice = "0 for no evaluation"
        raise ValueError(
            f"heldout_fraction={fraction}: leaves none of {num_documents} documents to {purpose}, "
            f"since documents are assigned by hash. Hold out {advice}."
        )

    def _check_given_splits(self, records: Mapping[Split, int]) -> None:
        counts = self.stream
        if not records["heldout"]:
            raise ValueError(
                f"heldout_inputs: nothing to evaluate on, since the {counts.documents['heldout']} "
                f"documents in {len(self.inputs.heldout)} inputs contain no tokens. Use different "
                "inputs."
            )
        if not records["train"]:
            raise ValueError(
                f"inputs: nothing to train on in {len(self.inputs.split)} inputs: "
                f"{counts.heldout_repeats} documents are held out and "
                f"{counts.documents['train']} contain no tokens. Use different inputs."
            )

    def manifest(self, plan: Mapping[str, Any], tokenizer: Tokenizer) -> Manifest:
        """Return the manifest of the finished corpus."""
        num_documents = sum(
            result.num_documents + result.num_empty_documents for result in self.results.values()
        )
        assert num_documents == sum(self.stream.documents.values()), "a document is lost"
        return Manifest(
            max_length=self.options.max_length,
            max_fragments=self.options.max_fragments,
            token_bytes=self.settings.token_bytes,
            vocab_size=tokenizer.vocab_size,
            tokenizer_fingerprint=tokenizer.fingerprint,
            tokenizer_files={
                path.name: file_sha256(path) for path in sorted((self.work / TOKENIZER).iterdir())
            },
            lowercase=tokenizer.lowercase,
            options=plan["options"],
            sources=self.inputs.with_checksums(plan["sources"], self.source),
            duplicates_removed=self.stream.duplicates,
            heldout_repeats=self.stream.heldout_repeats,
            empty_documents=self.source.empty_documents
            + sum(result.num_empty_documents for result in self.results.values()),
            bad_lines_skipped=self.source.bad_lines,
            empty_files_skipped=self.source.empty_files,
            documents_split=self.source.split_documents,
            train=split_info(self._of("train"), self.options.max_length),
            heldout=split_info(self._of("heldout"), self.options.max_length),
            filters=None if self.screening is None else self.screening.as_json(),
        )

    def _of(self, split: Split) -> list[UnitResult]:
        """Return the results for a split, in the order of its units."""
        names = (shard_name(split, index) for index in range(len(self.results)))
        return [self.results[name] for name in names if name in self.results]
