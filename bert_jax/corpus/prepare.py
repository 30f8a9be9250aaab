"""Prepare a corpus directory from raw text with several processes. See `prepare`."""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.corpus import Split as SplitName
from bert_jax.corpus.inputs import (
    InputPaths,
    PrepareInputs,
    PrepareOptions,
    input_names,
    settle_inputs,
)
from bert_jax.corpus.manifest import TOKENIZER, Manifest
from bert_jax.corpus.progress import Progress, ProgressMeter
from bert_jax.corpus.records import bytes_of_id
from bert_jax.corpus.shards import (
    Done,
    ShardSettings,
    UnitResult,
    WorkerPool,
    available_cores,
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
from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import (
    WARNED_SHARE,
    TooManyUnknownError,
    UnknownCounts,
    describe_unknown,
    marks_warning,
)
from bert_jax.validation import renamed_in_errors

logger = logging.getLogger(__name__)

ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True)
class PreparedCorpus:
    """A finished corpus directory: its path and its manifest; accepted wherever a path is."""

    path: Path
    manifest: Manifest

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def open(self, split: SplitName) -> Corpus:
        """Return the records of the split "train" or "heldout"."""
        return Corpus(self.path, split)


def prepare(
    inputs: InputPaths,
    tokenizer: Tokenizer | str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    lowercase: bool | None = None,
    max_length: int = PrepareOptions.max_length,
    max_documents_per_record: int | None = None,
    held_out: float | None = None,
    held_out_inputs: InputPaths = (),
    language: str = PrepareOptions.language,
    unit_bytes: int = PrepareOptions.unit_bytes,
    sources: SourceOptions | None = None,
    workers: int | None = None,
    allow_unknown: bool = False,
    on_progress: ProgressCallback | None = None,
) -> PreparedCorpus:
    """Prepare a corpus directory from raw text; see `make_corpus`.

    Args:
        inputs: files, directories, patterns or "tfds:NAME/CONFIG:SPLIT".
        tokenizer: a tokenizer, its file or directory, or a work directory that has one.
        output: a new directory, or one to continue; a finished corpus is left as it is.
        lowercase: whether the vocabulary is uncased, if `tokenizer` is a path; None for what its
            files say, or of a bare vocab.txt for what it looks like.
        max_length: positions of a training sequence, special tokens included.
        max_documents_per_record: the most documents packed into one sequence; None for
            max_length / 32.
        held_out: share of the documents held out for evaluation, chosen by hash; None for 0.01, or
            0 with `held_out_inputs`.
        held_out_inputs: inputs that are held out as a whole.
        language: ISO 639-1 code of the language, whose rules find the sentences.
        unit_bytes: amount of text in one shard.
        sources: how the inputs are read; None for the defaults.
        workers: number of processes; None for one per core.
        allow_unknown: whether to accept a corpus with more than a fifth of unknown tokens.
        on_progress: called after every shard.

    Raises:
        ValueError: an option, an input, the tokenizer or the output is unusable, or too many
            tokens are unknown.
        OSError: a file cannot be read or written, or a worker died; finished shards are kept.
    """
    if held_out is None:
        held_out = 0.0 if held_out_inputs else PrepareOptions.heldout_fraction
    if isinstance(tokenizer, Tokenizer) and lowercase is not None:
        raise ValueError(
            f"lowercase={lowercase}: the tokenizer is loaded already. Leave lowercase out, or give "
            "the tokenizer's path"
        )
    with renamed_in_errors(_PARAMETERS):
        options = PrepareOptions(
            max_length=max_length,
            max_pieces=max_documents_per_record,
            heldout_fraction=held_out,
            language=language,
            unit_bytes=unit_bytes,
            sources=sources or SourceOptions(),
        )
        manifest = make_corpus(
            input_names(inputs),
            tokenizer
            if isinstance(tokenizer, Tokenizer)
            else Tokenizer.load(Path(tokenizer), lowercase),
            output,
            options,
            available_cores() if workers is None else workers,
            on_progress,
            input_names(held_out_inputs),
            allow_unknown=allow_unknown,
        )
    return PreparedCorpus(Path(output), manifest)


# Parameters of `prepare` by the names that the functions below it use.
_PARAMETERS = {
    "max_pieces": "max_documents_per_record",
    "heldout_fraction": "held_out",
    "num_workers": "workers",
}


def make_corpus(
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
                describe_unknown(tokenizer, error.unknown, error.tokens, run.texts())
                + " To prepare the corpus anyway, add --allow-unknown."
            ) from error
        try:
            run.check_splits()
        except ValueError:
            workspace.discard()  # no preparation with usable options could continue this one
            raise
        if known.share > WARNED_SHARE:
            logger.warning(
                "%s", describe_unknown(tokenizer, known.unknown, known.tokens, run.texts())
            )
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
    """One call of `make_corpus`: what it reads, and the results of its units by split and index."""

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
