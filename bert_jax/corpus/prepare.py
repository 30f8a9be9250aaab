"""Prepare a corpus directory from raw text, using multiple processes; see `prepare`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bert_jax.corpus.bucket_workspace import BucketWorkspace
from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.corpus import Split as SplitName
from bert_jax.corpus.engine import Engine
from bert_jax.corpus.inputs import InputPaths, PrepareOptions, input_names
from bert_jax.corpus.manifest import TOKENIZER, Manifest
from bert_jax.corpus.parts import Part, PreparedPart, make_part, merge_parts
from bert_jax.corpus.progress import ProgressCallback, ProgressMeter
from bert_jax.corpus.requests import (
    CorpusRequest,
    advising_to_resume,
    check_request,
    explaining_unknown,
    publish,
    warn_about_marks,
)
from bert_jax.corpus.screened_files import removing_if_changed
from bert_jax.corpus.workspace import finished_corpus
from bert_jax.filtering.options import FilterOptions
from bert_jax.processes import available_cores
from bert_jax.storage.urls import Location
from bert_jax.text.documents import SourceOptions
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import renamed_in_errors


@dataclass(frozen=True)
class PreparedCorpus:
    """A finished corpus directory, which can be passed wherever a path is accepted.

    Attributes:
      path: the directory.
      manifest: the corpus's manifest, which lists its sizes, sources and checksums.
    """

    path: Location
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
    filters: FilterOptions | None = None,
    workers: int | None = None,
    allow_unknown: bool = False,
    on_progress: ProgressCallback | None = None,
    merge: bool = False,
    runner: str | None = None,
    runner_args: str = "",
) -> PreparedCorpus:
    """Prepare a corpus directory from raw text; see `make_corpus`.

    Args:
      inputs: files, directories, patterns, "tfds:NAME/CONFIG:SPLIT" or "hf:OWNER/NAME:SPLIT".
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
      filters: which documents to leave out, in addition to exact duplicates; None to leave out only
        those.
      workers: the number of worker processes. Defaults to one per core. Workers import the main
        script, so its call to `prepare` must be guarded by `if __name__ == "__main__":` (not needed
        in a notebook).
      allow_unknown: whether more than a fifth of the tokens may be unknown to the tokenizer.
      on_progress: called after every shard.
      merge: whether to turn parts that `prepare_part` made into a corpus.
      runner: an Apache Beam runner that does the work, such as "DirectRunner"; None to use
        processes on this machine.
      runner_args: options for the runner, separated by spaces as in a shell.

    Raises:
      ValueError: an option, an input, the tokenizer or the output is unusable, or too many tokens
        are unknown.
      OSError: a file cannot be read or written, or a worker died. Finished shards are kept.
    """
    engine = Engine(merge=merge, runner=runner, runner_args=runner_args)
    with renamed_in_errors(_PARAMETERS):
        request = _request(
            inputs,
            tokenizer,
            output,
            lowercase=lowercase,
            max_length=max_length,
            max_documents_per_record=max_documents_per_record,
            held_out=held_out,
            held_out_inputs=held_out_inputs,
            language=language,
            unit_bytes=unit_bytes,
            sources=sources,
            filters=filters,
            workers=workers,
            allow_unknown=allow_unknown,
            on_progress=on_progress,
        )
        manifest = _run_engine(request, engine)
    return PreparedCorpus(request.output, manifest)


def _run_engine(request: CorpusRequest, engine: Engine) -> Manifest:
    if engine.merge:
        return merge_parts(request)
    if engine.runner is None:
        return _prepare(request)
    try:
        from bert_jax.corpus.beam_pipeline import make_with_beam
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "apache_beam":
            raise
        raise ValueError(
            f"runner={engine.runner}: needs Apache Beam, which is not installed. Install it "
            "with `pip install 'bert_jax[beam]'`."
        ) from error
    return make_with_beam(request, engine.runner, engine.runner_args)


def prepare_part(
    part: str,
    inputs: InputPaths,
    tokenizer: Tokenizer | str | os.PathLike[str],
    output: str | os.PathLike[str],
    **settings: Any,
) -> PreparedPart:
    """Prepare one part of a corpus; see `make_part`.

    All parts must have the same arguments, apart from `part`, `workers` and `on_progress`. When all
    parts are finished, `prepare` with `merge=True` turns them into a corpus.

    Args:
      part: the part, as "INDEX/COUNT" with an index from 0.
      inputs: the inputs of the whole corpus, as in `prepare`.
      tokenizer: the tokenizer, as in `prepare`.
      output: the output directory, which must be the same directory for all parts.
      settings: other arguments of `prepare`, except for `merge`.

    Raises:
      ValueError: an argument is unusable, or this part is already running.
      OSError: a file cannot be read or written, or a worker died. Finished work is kept.
    """
    with renamed_in_errors(_PARAMETERS):
        chosen = Part.parse(part)
        return make_part(_request(inputs, tokenizer, output, **settings), chosen)


def prepare_as(
    engine: Engine,
    inputs: InputPaths,
    tokenizer: Tokenizer | str | os.PathLike[str],
    output: str | os.PathLike[str],
    **settings: Any,
) -> PreparedCorpus | PreparedPart:
    """Call `prepare` or `prepare_part`, depending on how the preparation is distributed."""
    if engine.part is not None:
        return prepare_part(engine.part, inputs, tokenizer, output, **settings)
    return prepare(
        inputs,
        tokenizer,
        output,
        merge=engine.merge,
        runner=engine.runner,
        runner_args=engine.runner_args,
        **settings,
    )


def _request(
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
    filters: FilterOptions | None = None,
    workers: int | None = None,
    allow_unknown: bool = False,
    on_progress: ProgressCallback | None = None,
) -> CorpusRequest:
    """Check the arguments of `prepare`."""
    if held_out is None:
        held_out = 0.0 if held_out_inputs else PrepareOptions.heldout_fraction
    if isinstance(tokenizer, Tokenizer) and lowercase is not None:
        raise ValueError(
            f"lowercase={lowercase}: the tokenizer is already loaded. Omit lowercase, or pass the "
            "tokenizer's path."
        )
    return check_request(
        input_names(inputs),
        tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer, lowercase),
        output,
        PrepareOptions(
            max_length=max_length,
            max_documents_per_record=max_documents_per_record,
            heldout_fraction=held_out,
            language=language,
            unit_bytes=unit_bytes,
            sources=sources or SourceOptions(),
            filters=filters or FilterOptions(),
        ),
        available_cores() if workers is None else workers,
        on_progress,
        input_names(held_out_inputs),
        allow_unknown=allow_unknown,
    )


# A dict from names in options, the manifest and `make_corpus` to the names in `prepare`.
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
    return _prepare(
        check_request(
            inputs,
            tokenizer,
            output,
            options,
            num_workers,
            progress,
            heldout_inputs,
            allow_unknown=allow_unknown,
        )
    )


def _prepare(request: CorpusRequest) -> Manifest:
    manifest = finished_corpus(request.output, request.plan)
    if manifest is not None:
        return manifest
    with advising_to_resume(request.output), request.workspace() as workspace:
        request.tokenizer.save(workspace.work / TOKENIZER)
        preparation = request.preparation(workspace.work)
        if isinstance(workspace, BucketWorkspace):
            preparation.keeper = workspace.keeper
        warn_about_marks(request, preparation)
        if request.screener is not None:
            preparation.screen(
                request.screener,
                workspace.files,
                request.plan,
                request.num_workers,
                ProgressMeter(),
                request.progress,
            )
        changed = removing_if_changed(workspace.files)
        with explaining_unknown(request, preparation, workspace), changed:
            preparation.make_shards(request.num_workers, ProgressMeter(), request.progress)
        return publish(request, preparation, workspace)
