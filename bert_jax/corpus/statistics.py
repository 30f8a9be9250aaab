"""Measure the rows and documents of a corpus, from an evenly spaced sample if it is large."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.distributions import Distribution
from bert_jax.corpus.packing import SPECIAL_TOKENS_PER_FRAGMENT
from bert_jax.corpus.records import RecordBatch

# These limits keep the time below a minute for a corpus of any size. Rows are sampled in runs,
# because opening a shard takes much longer than reading a few more of its rows.
MAX_ROWS = 1 << 16
_MAX_POSITIONS = 1 << 25
_RUN_ROWS = 32
# The rows of a document can be anywhere in one shard, but are never in two shards. The lengths of
# documents are therefore measured in whole shards.
_MAX_SHARDS = 256
_MAX_SHARD_POSITIONS = 1 << 27
_READ_ROWS = 1024


@dataclass(frozen=True)
class CorpusStatistics:
    """Measurements of one split of a corpus.

    Attributes:
      num_rows: the number of rows that were read to measure rows and count tokens.
      num_runs: the number of runs of consecutive rows that these rows form.
      num_shards: the number of shards that were read to measure the documents.
      positions: how many positions of a row contain tokens, if every document in the row is written
        as `[CLS] A [SEP] B [SEP]`. The mean over a whole split is the fill rate times the length of
        a row.
      documents: how many documents are in a row.
      document_tokens: how many tokens a document has, without special tokens.
      token_counts: [vocab_size] how often each token occurs in the rows.
    """

    num_rows: int
    num_runs: int
    num_shards: int
    positions: Distribution
    documents: Distribution
    document_tokens: Distribution
    token_counts: NDArray[np.int64] = field(repr=False)


def measure(corpus: Corpus) -> CorpusStatistics:
    """Measure a split of a corpus. The time is limited even if the corpus is very large.

    Raises:
      ValueError: the split has no records, or a shard cannot be read.
    """
    if not len(corpus):
        raise ValueError(f"{corpus.directory}: the {corpus.split} split has no records.")
    runs = sampled_runs(len(corpus), corpus.manifest.max_length)
    positions, documents = [], []
    token_counts = np.zeros(corpus.manifest.vocab_size, np.int64)
    for batch in _batches(corpus, np.concatenate(runs)):
        cost = batch.fragment_length + SPECIAL_TOKENS_PER_FRAGMENT
        positions.append(np.bincount(batch.fragment_record, cost).astype(np.int64))
        documents.append(np.bincount(batch.fragment_record))
        token_counts += np.bincount(batch.tokens, minlength=len(token_counts))
    shards = _sampled_shards(corpus)
    return CorpusStatistics(
        num_rows=sum(map(len, runs)),
        num_runs=len(runs),
        num_shards=len(shards),
        positions=Distribution.of(np.concatenate(positions)),
        documents=Distribution.of(np.concatenate(documents)),
        document_tokens=Distribution.of(
            np.concatenate([_document_tokens(corpus, rows) for rows in shards])
        ),
        token_counts=token_counts,
    )


def sampled_runs(num_rows: int, length: int) -> list[NDArray[np.int64]]:
    """Return the numbers of the rows to read, as evenly spaced runs of consecutive rows.

    Args:
      num_rows: the number of rows in the split.
      length: the number of positions in a row.
    """
    limit = max(_RUN_ROWS, min(MAX_ROWS, _MAX_POSITIONS // length) // _RUN_ROWS * _RUN_ROWS)
    if num_rows <= limit:
        return [np.arange(num_rows)]
    first = np.linspace(0, num_rows - _RUN_ROWS, limit // _RUN_ROWS).astype(np.int64)
    return [row + np.arange(_RUN_ROWS) for row in first.tolist()]


def _sampled_shards(corpus: Corpus) -> list[NDArray[np.int64]]:
    """Return the numbers of the rows in each sampled shard; there is at least one shard.

    All shards are sampled if there are few enough. Otherwise, the shards that contain evenly spaced
    rows are sampled.
    """
    counts = np.array([shard.num_records for shard in corpus.info.shards])
    end = np.cumsum(counts)
    chosen = np.flatnonzero(counts)
    max_rows = _MAX_SHARD_POSITIONS // corpus.manifest.max_length
    if end[-1] > max_rows or len(chosen) > _MAX_SHARDS:
        typical = max(1, int(counts.max()))
        num_shards = min(_MAX_SHARDS, max(1, max_rows // typical))
        middles = (2 * np.arange(num_shards) + 1) * end[-1] // (2 * num_shards)
        chosen = np.unique(np.searchsorted(end, middles, side="right"))
    return [np.arange(end[shard] - counts[shard], end[shard]) for shard in chosen.tolist()]


def _document_tokens(corpus: Corpus, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of tokens of each document in the rows of one shard."""
    batches = [(batch.fragment_document, batch.fragment_length) for batch in _batches(corpus, rows)]
    documents, lengths = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    _, number = np.unique(documents, return_inverse=True)
    return np.bincount(number, lengths).astype(np.int64)


def _batches(corpus: Corpus, rows: NDArray[np.int64]) -> Iterator[RecordBatch]:
    for indices in np.array_split(rows, -(-len(rows) // _READ_ROWS)):
        yield corpus.decode(indices, corpus.read(indices))
