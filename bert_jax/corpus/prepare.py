"""Prepare a corpus directory from raw text, using multiple processes; see `prepare`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.corpus import Split as SplitName
from bert_jax.corpus.inputs import (
    InputPaths,
    PrepareInputs,
    PrepareOptions,
    input_names,
    resolve_inputs,
)
from bert_jax.corpus.manifest import TOKENIZER, Manifest
from bert_jax.corpus.preparation import Preparation, ProgressCallback, ProgressMeter
from bert_jax.corpus.records import bytes_of_id
from bert_jax.corpus.workspace import WORK, Workspace, check_outside_corpora, finished_corpus
from bert_jax.local_paths import check_local
from bert_jax.processes import available_cores, check_workers
from bert_jax.text.documents import SourceOptions
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


@dataclass(frozen=True)
class PreparedCorpus:
    """A finished corpus directory, which can be passed wherever a path is accepted.

    Attributes:
      path: the directory.
      manifest: the corpus's manifest, which lists its sizes, sources and checksums.
    """

    path: Path
    manifest: Manifest = field(repr=False)

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def open(self, split: SplitName) -> Corpus:
        """Open a split, "train" or "heldout"."""
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
      tokenizer: a tokenizer, the path of its file or directory, or a work directory that contains
        one.
      output: a new directory, or one with a preparation to resume. A finished corpus is not
        changed.
      lowercase: whether the vocabulary is uncased, if `tokenizer` is a path. Defaults to the
        setting in its files or, for a vocab.txt without settings, to a guess based on its tokens.
      max_length: the length of a training sequence, including special tokens.
      max_documents_per_record: the maximum number of documents packed into one sequence. Defaults
        to max_length / 32.
      held_out: the fraction of documents held out for evaluation, selected by hash. Defaults to
        0.01, or to 0 if `held_out_inputs` are given.
      held_out_inputs: inputs that are held out completely.
      language: the ISO 639-1 code of the language whose sentence rules are used.
      unit_bytes: the amount of text in one shard.
      sources: the options for reading the inputs; None for the defaults.
      workers: the number of worker processes. Defaults to one per core. Workers import the main
        script, so its call to `prepare` must be guarded by `if __name__ == "__main__":` (not needed
        in a notebook).
      allow_unknown: whether more than a fifth of the tokens may be unknown to the tokenizer.
      on_progress: called after every shard.

    Raises:
      ValueError: an option, an input, the tokenizer or the output is unusable, or too many tokens
        are unknown.
      OSError: a file cannot be read or written, or a worker died. Finished shards are kept.
    """
    if held_out is None:
        held_out = 0.0 if held_out_inputs else PrepareOptions.heldout_fraction
    if isinstance(tokenizer, Tokenizer) and lowercase is not None:
        raise ValueError(
            f"lowercase={lowercase}: the tokenizer is already loaded. Omit lowercase, or pass the "
            "tokenizer's path."
        )
    with renamed_in_errors(_PARAMETERS):
        options = PrepareOptions(
            max_length=max_length,
            max_documents_per_record=max_documents_per_record,
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


# Maps names used by options, the manifest and `make_corpus` to the names used by `prepare`.
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
    """Prepare the corpus directory `output` from raw text.

    This process reads documents, removes exact duplicates, assigns documents to splits, and groups
    them into units. Workers find sentences, tokenize them, pack the tokens, and write one shard per
    unit. The bytes written do not depend on the number of workers or on interruptions, and memory
    usage does not depend on the size of the corpus. After an interruption, the same call keeps the
    finished shards. For a finished corpus, it does nothing.

    Args:
      inputs: files, directories, patterns and TFDS datasets, as in `expand_inputs`.
      tokenizer: the tokenizer.
      output: a new directory, or one with a preparation to resume.
      options: the options.
      num_workers: the number of worker processes.
      progress: called after every shard.
      heldout_inputs: inputs that are held out completely, in which case `options.heldout_fraction`
        must be 0. Documents in `inputs` that have the same text as a held-out document, ignoring
        case and white space, are removed. Only whole documents are compared.
      allow_unknown: whether more than a fifth of the tokens may be unknown to the tokenizer.
        Unknown tokens are counted unit by unit, so a wrong vocabulary is rejected early.

    Raises:
      ValueError: the inputs, the options or the contents of `output` are unusable, or too many
        tokens are unknown.
      OSError: a file cannot be read or written, or a worker died. Finished shards are kept.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers={num_workers}: expected at least 1.")
    check_workers("num_workers", num_workers)
    check_local(output, "output")
    check_outside_corpora(Path(output), "output")
    resolved = resolve_inputs(list(inputs), list(heldout_inputs), output, options)
    plan = _plan(resolved, tokenizer, options)
    finished = finished_corpus(output, plan)
    if finished is not None:
        return finished
    try:
        unknown = UnknownCounts(allowed=allow_unknown)
        return _prepare(resolved, plan, tokenizer, output, options, num_workers, progress, unknown)
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
    unknown: UnknownCounts,
) -> Manifest:
    with Workspace(output, plan) as workspace:
        tokenizer.save(workspace.work / TOKENIZER)
        preparation = Preparation(
            inputs, options, workspace.work, bytes_of_id(tokenizer.vocab_size), unknown
        )
        meter = ProgressMeter(sum(source["num_bytes"] for source in plan["sources"]))
        if tokenizer.strips_accents and (
            warning := marks_warning(tokenizer.kind, preparation.texts())
        ):
            logger.warning("%s", warning)
        try:
            preparation.make_shards(tokenizer.unk_id, num_workers, meter, progress)
            unknown.check()
        except TooManyUnknownError as error:
            if error.first:
                workspace.discard()
            raise ValueError(
                describe_unknown(tokenizer, error.unknown, error.tokens, preparation.texts())
                + " To prepare the corpus anyway, add --allow-unknown."
            ) from error
        try:
            preparation.check_splits()
        except ValueError:
            workspace.discard()  # it could not be resumed with other options
            raise
        if unknown.share > WARNED_SHARE:
            logger.warning(
                "%s",
                describe_unknown(tokenizer, unknown.unknown, unknown.tokens, preparation.texts()),
            )
        manifest = preparation.manifest(plan, tokenizer)
        workspace.publish(manifest)
    return manifest


def _plan(inputs: PrepareInputs, tokenizer: Tokenizer, options: PrepareOptions) -> dict[str, Any]:
    """Return everything that determines the corpus, in the manifest's format."""
    return {
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "options": options.as_json(),
        "sources": inputs.describe(options.sources),
    }
