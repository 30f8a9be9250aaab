"""Prepare a corpus directory from raw text with several processes. See `prepare`."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from bert_jax.corpus.inputs import PrepareInputs, PrepareOptions, settle_inputs
from bert_jax.corpus.manifest import TOKENIZER, Manifest
from bert_jax.corpus.records import bytes_of_id
from bert_jax.corpus.shards import (
    Done,
    ShardSettings,
    UnitResult,
    WorkerPool,
    read_result,
    split_info,
)
from bert_jax.corpus.units import (
    SPLITS,
    SeenDocuments,
    Split,
    StreamCounts,
    Unit,
    build_units,
    shard_name,
)
from bert_jax.corpus.workspace import WORK, Workspace, check_outside_corpora, finished_corpus
from bert_jax.files import file_sha256
from bert_jax.local_paths import check_local
from bert_jax.processes import check_workers
from bert_jax.text.documents import SourceCounts
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import (
    WARNED_SHARE,
    TooManyUnknownError,
    UnknownCounts,
    complaint,
    marks_warning,
)


@dataclass(frozen=True)
class Progress:
    """How far a preparation is. "New" is what this call did, not an earlier one it continues.

    Attributes:
        fraction: of the inputs done, estimated from the bytes read on disk; None if unknown.
        peak_worker_memory: bytes, the most any worker has held.
    """

    seconds: float
    fraction: float | None
    shards: int
    new_shards: int
    text_bytes: int
    new_text_bytes: int
    new_tokens: int
    peak_worker_memory: int

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the speed of this call; None while nothing is known."""
        if not self.fraction or not self.new_text_bytes:
            return None
        bytes_left = self.text_bytes * (1 / self.fraction - 1)
        return bytes_left * self.seconds / self.new_text_bytes


class ProgressMeter:
    """Adds up the shards of a preparation, those an earlier call made and new ones."""

    def __init__(self, total_bytes: int):
        """Start the clock. `total_bytes` are those of the inputs on disk, 0 if unknown."""
        self._start = time.perf_counter()
        self._total_bytes = total_bytes
        self._shards = self._new_shards = 0
        self._text_bytes = self._new_text_bytes = self._new_tokens = 0
        self._peak_memory = 0

    def add_kept(self, result: UnitResult) -> None:
        """Count a shard of an earlier call."""
        self._shards += 1
        self._text_bytes += result.num_text_bytes

    def add_new(self, result: UnitResult, peak_memory: int) -> None:
        """Count a shard made now."""
        self.add_kept(result)
        self._new_shards += 1
        self._new_text_bytes += result.num_text_bytes
        self._new_tokens += result.num_tokens
        self._peak_memory = max(self._peak_memory, peak_memory)

    def read(self, source: SourceCounts, stream: StreamCounts) -> Progress:
        """The state now."""
        fraction = None
        if self._total_bytes and source.text_bytes:
            finished = (self._text_bytes + stream.left_out_bytes) / source.text_bytes
            fraction = source.bytes_read / self._total_bytes * finished
        return Progress(
            seconds=time.perf_counter() - self._start,
            fraction=fraction,
            shards=self._shards,
            new_shards=self._new_shards,
            text_bytes=self._text_bytes,
            new_text_bytes=self._new_text_bytes,
            new_tokens=self._new_tokens,
            peak_worker_memory=self._peak_memory,
        )


logger = logging.getLogger(__name__)

ProgressCallback = Callable[[Progress], None]


def prepare(
    inputs: Iterable[str],
    tokenizer: Tokenizer,
    output: str | os.PathLike[str],
    options: PrepareOptions,
    num_workers: int,
    progress: ProgressCallback | None = None,
    heldout_inputs: Iterable[str] = (),
    *,
    allow_unknown: bool = False,
) -> Manifest:
    """Make the corpus directory `output` from raw text.

    This process reads, drops exact duplicates, splits and groups documents into units; workers
    find sentences, tokenise, pack, and write one shard a unit. The bytes written depend neither on
    the number of workers nor on interruptions, and memory not on the size of the corpus. After a
    kill the same call keeps the shards that are finished; on a finished corpus it does nothing.

    Args:
        inputs: as `expand_inputs` takes them.
        progress: called after every shard.
        heldout_inputs: inputs all of which are held out, in place of a share of the others
            (`options.heldout_fraction` is 0 then). Documents of `inputs` that are one of theirs,
            case and white space apart, are left out; parts of documents are not looked for.
        allow_unknown: whether more than a fifth of the tokens may be unknown to the tokenizer.
            Unknown tokens are counted unit by unit, so that a wrong vocabulary is refused early.

    Raises:
        ValueError: the inputs, the options or the contents of `output` are not usable, or too many
            tokens are unknown.
        OSError: a file cannot be read or written, or a worker died; finished shards are kept.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}; expected at least 1")
    check_workers("num_workers", num_workers)
    check_local(output, "output")
    check_outside_corpora(Path(output), "output")
    settled = settle_inputs(list(inputs), list(heldout_inputs), output, options)
    plan = _plan(settled, tokenizer, options)
    finished = finished_corpus(output, plan)
    if finished is not None:
        return finished
    try:
        known = UnknownCounts(allowed=allow_unknown)
        return _prepare(settled, plan, tokenizer, output, options, num_workers, progress, known)
    except OSError as error:
        advice = "Fix the cause, and run the same command again to resume"
        raise OSError(
            f"{error}. The finished shards are kept in {Path(output, WORK)}. {advice}"
        ) from error


def _prepare(
    inputs: PrepareInputs,
    plan: dict[str, Any],
    tokenizer: Tokenizer,
    output: str | os.PathLike[str],
    options: PrepareOptions,
    num_workers: int,
    progress: ProgressCallback | None,
    known: UnknownCounts,
) -> Manifest:
    with Workspace(output, plan) as workspace:
        tokenizer.save(workspace.work / TOKENIZER)
        run = _Run(inputs, options, workspace.work, bytes_of_id(tokenizer.vocab_size), known)
        meter = ProgressMeter(sum(source["num_bytes"] for source in plan["sources"]))
        if tokenizer.strips_accents and (warning := marks_warning(tokenizer.kind, run.texts())):
            logger.warning("%s", warning)
        try:
            run.make_shards(tokenizer.unk_id, num_workers, meter, progress)
            known.check()
        except TooManyUnknownError as error:
            if error.first:
                workspace.discard()
            raise ValueError(
                complaint(tokenizer, error.unknown, error.tokens, run.texts())
                + " To prepare the corpus anyway, add --allow-unknown."
            ) from error
        try:
            run.check_splits()
        except ValueError:
            workspace.discard()  # no preparation with usable options could continue this one
            raise
        if known.share > WARNED_SHARE:
            logger.warning("%s", complaint(tokenizer, known.unknown, known.tokens, run.texts()))
        manifest = run.manifest(plan, tokenizer)
        workspace.publish(manifest)
    return manifest


def _plan(inputs: PrepareInputs, tokenizer: Tokenizer, options: PrepareOptions) -> dict[str, Any]:
    """All that decides the corpus, in the words of the manifest."""
    return {
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "options": options.as_json(),
        "sources": inputs.described(options.sources),
    }


@dataclass
class _Run:
    """One call of `prepare`: what it reads, and the results of its units by split and index."""

    inputs: PrepareInputs
    options: PrepareOptions
    work: Path
    token_bytes: int
    known: UnknownCounts
    source: SourceCounts = field(default_factory=lambda: SourceCounts(checksums={}))
    stream: StreamCounts = field(default_factory=StreamCounts)
    results: dict[str, UnitResult] = field(default_factory=dict)

    def make_shards(
        self,
        unknown_id: int,
        num_workers: int,
        meter: ProgressMeter,
        progress: ProgressCallback | None,
    ) -> None:
        """Fill `results` with existing and new shards.

        Raises:
            TooManyUnknownError: too many tokens of the units so far are unknown. Units are checked
                in a fixed order, whatever the number of workers.
        """
        unchecked: deque[str] = deque()

        def report() -> None:
            if progress is not None:
                progress(meter.read(self.source, self.stream))

        def check() -> None:
            while unchecked and (result := self.results.get(unchecked[0])) is not None:
                unchecked.popleft()
                self.known.add(result.num_tokens, result.num_unknown)

        def collect(done: Iterable[Done]) -> None:
            for each in done:
                self.results[each.name] = each.result
                meter.add_new(each.result, each.peak_memory)
                report()
                check()

        settings = ShardSettings(
            self.options.max_length,
            self.options.piece_limit,
            self.token_bytes,
            self.options.language,
            unknown_id,
        )
        pool = WorkerPool(num_workers, self.work / TOKENIZER, settings, self.work)
        with SeenDocuments(self.work / "seen.sqlite") as seen, pool:
            for unit in self._units(seen):
                unchecked.append(unit.name)
                kept = read_result(self.work, unit.name)
                if kept is not None and kept.unit_digest == unit.digest:
                    self.results[unit.name] = kept
                    meter.add_kept(kept)
                    report()
                    check()
                else:
                    collect(pool.submit(unit))
            collect(pool.drain())

    def _units(self, seen: SeenDocuments) -> Iterator[Unit]:
        heldout, documents = self.inputs.documents(self.options.sources, self.source)
        return build_units(
            documents,
            self.options.unit_bytes,
            self.options.heldout_fraction,
            seen,
            self.stream,
            heldout,
        )

    def texts(self) -> Iterator[str]:
        """Read the documents from the beginning again and yield their texts."""
        heldout, documents = self.inputs.documents(self.options.sources, SourceCounts(logged=False))
        return (document.text for document in chain(heldout, documents))

    def check_splits(self) -> None:
        """Raise ValueError if there is nothing to train on, or nothing to evaluate on as asked."""
        num_documents = sum(self.stream.documents.values())
        fraction = self.options.heldout_fraction
        records = {
            split: sum(result.shard.num_records for result in self._of(split)) for split in SPLITS
        }
        if not any(records.values()):
            raise ValueError(
                f"the corpus is empty: no token in the {num_documents} documents of "
                f"{len(self.inputs.paths)} inputs"
            )
        if self.inputs.heldout:
            self._check_sides(records)
            return
        if all(records.values()) or not fraction:
            return
        side, advice = "train on", f"less than {self.stream.highest_hash:.3f}"
        if not records["heldout"]:
            enough = math.ceil(self.stream.lowest_hash * 1000 + 1) / 1000
            side, advice = "evaluate on", f"{enough}, or 0 to do without evaluation"
        if num_documents == 1:
            advice = "0 to do without evaluation"
        raise ValueError(
            f"holding out {fraction} left none of {num_documents} documents to {side} (each goes "
            f"to one side by its hash). Hold out {advice}"
        )

    def _check_sides(self, records: Mapping[Split, int]) -> None:
        counts = self.stream
        if not records["heldout"]:
            raise ValueError(
                f"there is nothing to hold out in the {len(self.inputs.heldout)} inputs for it: "
                f"{counts.documents['heldout']} documents without a token; name others"
            )
        if not records["train"]:
            raise ValueError(
                f"there is nothing to train on in the {len(self.inputs.split)} inputs: "
                f"{counts.heldout_repeats} documents that are held out, "
                f"{counts.documents['train']} without a token; name others"
            )

    def manifest(self, plan: Mapping[str, Any], tokenizer: Tokenizer) -> Manifest:
        """What was made, as manifest.json says it."""
        made = sum(
            result.num_documents + result.num_empty_documents for result in self.results.values()
        )
        assert made == sum(self.stream.documents.values()), "a document is lost"
        return Manifest(
            max_length=self.options.max_length,
            max_pieces=self.options.piece_limit,
            token_bytes=self.token_bytes,
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
        )

    def _of(self, split: Split) -> list[UnitResult]:
        """The results of a split, in the order of its units."""
        names = (shard_name(split, index) for index in range(len(self.results)))
        return [self.results[name] for name in names if name in self.results]
