"""Check the request for a preparation, and publish the corpus when its shards are finished."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.corpus.bucket_workspace import BucketWorkspace, check_outside_bucket_corpora
from bert_jax.corpus.document_stream import SPLITS
from bert_jax.corpus.inputs import PrepareInputs, PrepareOptions, resolve_inputs
from bert_jax.corpus.manifest import Manifest
from bert_jax.corpus.preparation import Preparation
from bert_jax.corpus.progress import ProgressCallback
from bert_jax.corpus.records import bytes_of_id
from bert_jax.corpus.screening import Screener
from bert_jax.corpus.shards import ShardSettings
from bert_jax.corpus.workspace import WORK, Workspace, check_outside_corpora
from bert_jax.processes import check_workers
from bert_jax.storage.errors import naming_store_errors
from bert_jax.storage.lease import LeaseLostError
from bert_jax.storage.objects import find
from bert_jax.storage.urls import Location, ObjectUrl, parse_location
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import (
    WARNED_SHARE,
    TooManyUnknownError,
    UnknownCounts,
    describe_unknown,
    marks_warning,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CorpusRequest:
    """A corpus to prepare.

    Attributes:
      inputs: the expanded inputs.
      plan: everything that determines the corpus, in the manifest's format.
      tokenizer: the tokenizer.
      output: the corpus directory, which may be in a bucket.
      options: the options.
      num_workers: the number of worker processes on this machine.
      progress: called after every shard; None for no calls.
      allow_unknown: whether more than a fifth of the tokens may be unknown.
      screener: the settings for screening documents; None if no documents are filtered out.
    """

    inputs: PrepareInputs
    plan: dict[str, Any]
    tokenizer: Tokenizer
    output: Location
    options: PrepareOptions
    num_workers: int
    progress: ProgressCallback | None
    allow_unknown: bool
    screener: Screener | None

    @property
    def settings(self) -> ShardSettings:
        """The settings that determine the bytes of the shards."""
        return ShardSettings(
            self.options.max_length,
            self.options.max_fragments,
            bytes_of_id(self.tokenizer.vocab_size),
            self.options.language,
            self.tokenizer.unk_id,
            self.options.filters,
            ("train",) if self.inputs.heldout else SPLITS,
        )

    def workspace(self) -> Workspace | BucketWorkspace:
        """Return the workspace of a preparation that is not divided into parts."""
        if isinstance(self.output, ObjectUrl):
            return BucketWorkspace(self.output, self.plan)
        return Workspace(self.output, self.plan)

    def preparation(self, work: Path) -> Preparation:
        """Return the state of a preparation that has not begun."""
        return Preparation(
            self.inputs,
            self.options,
            work,
            self.settings,
            total_bytes=sum(source["num_bytes"] for source in self.plan["sources"]),
            unknown=UnknownCounts(allowed=self.allow_unknown),
        )


def check_request(
    inputs: Iterable[str],
    tokenizer: Tokenizer,
    output: str | os.PathLike[str],
    options: PrepareOptions,
    num_workers: int,
    progress: ProgressCallback | None,
    heldout_inputs: Iterable[str],
    *,
    allow_unknown: bool,
) -> CorpusRequest:
    """Check the arguments of `make_corpus`, and expand the inputs.

    Raises:
      ValueError: the inputs or the options are unusable.
    """
    if num_workers < 1:
        raise ValueError(f"num_workers={num_workers}: expected at least 1.")
    check_workers("num_workers", num_workers)
    location = parse_location(output, "output")
    if isinstance(location, ObjectUrl):
        with naming_store_errors("output", location):
            find(location)  # Check that the bucket exists and is readable.
            check_outside_bucket_corpora(location, "output")
    else:
        check_outside_corpora(location, "output")
    resolved = resolve_inputs(list(inputs), list(heldout_inputs), output, options)
    plan = {
        "tokenizer_fingerprint": tokenizer.fingerprint,
        "options": options.as_json(),
        "sources": resolved.describe(options.sources),
    }
    return CorpusRequest(
        resolved,
        plan,
        tokenizer,
        location,
        options,
        num_workers,
        progress,
        allow_unknown,
        Screener.load(options.filters),
    )


@contextmanager
def advising_to_resume(output: Location) -> Iterator[None]:
    """Make the message of any OSError in a `with` block mention that finished shards are kept."""
    try:
        yield
    except LeaseLostError:
        raise
    except OSError as error:
        advice = "Fix the cause, and run the same command again to resume"
        raise OSError(
            f"{error}. The finished shards are kept in {output / WORK}. {advice}"
        ) from error


def warn_about_marks(request: CorpusRequest, preparation: Preparation) -> None:
    """Log a warning if the tokenizer strips accents that many words have."""
    if not request.tokenizer.strips_accents:
        return
    if warning := marks_warning(request.tokenizer.kind, preparation.texts()):
        logger.warning("%s", warning)


@contextmanager
def explaining_unknown(
    request: CorpusRequest, preparation: Preparation, workspace: Workspace | BucketWorkspace | None
) -> Iterator[None]:
    """Convert a TooManyUnknownError in a `with` block to a ValueError with examples.

    If the error comes from the first check for unknown tokens, the unfinished work in `workspace`
    is removed. If `workspace` is None, nothing is removed.
    """
    try:
        yield
    except TooManyUnknownError as error:
        if error.first and workspace is not None:
            workspace.discard()
        raise ValueError(
            describe_unknown(request.tokenizer, error.unknown, error.tokens, preparation.texts())
            + " To prepare the corpus anyway, add --allow-unknown."
        ) from error


def publish(
    request: CorpusRequest, preparation: Preparation, workspace: Workspace | BucketWorkspace
) -> Manifest:
    """Check the results of all units, and turn the unfinished preparation into a corpus.

    Raises:
      ValueError: too many tokens are unknown, or a requested split is empty.
    """
    unknown = preparation.unknown
    with explaining_unknown(request, preparation, workspace):
        unknown.check()
    try:
        preparation.check_splits()
    except ValueError:
        # The user has to change the options, and cannot resume this preparation with new ones.
        workspace.discard()
        raise
    if unknown.share > WARNED_SHARE:
        logger.warning(
            "%s",
            describe_unknown(
                request.tokenizer, unknown.unknown, unknown.tokens, preparation.texts()
            ),
        )
    manifest = preparation.manifest(request.plan, request.tokenizer)
    workspace.publish(manifest)
    return manifest
