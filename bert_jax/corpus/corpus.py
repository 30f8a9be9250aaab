"""Read a prepared corpus by record number, and compute its unigram baseline."""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from numpy.typing import NDArray

from bert_jax.corpus.manifest import Manifest, ShardInfo, SplitInfo, read_manifest
from bert_jax.corpus.records import CorruptRecordError, RecordBatch, decode_records
from bert_jax.corpus.shard_files import BucketShardFiles, corpus_cache, file_sizes
from bert_jax.files import NotWritten
from bert_jax.storage.cache import Cache
from bert_jax.storage.errors import StorageError
from bert_jax.storage.urls import Location, ObjectUrl, parse_location

Split = Literal["train", "heldout"]

# Single records are read at random positions, so read-ahead and thread pools would not help.
READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class Corpus:
    """One split of a prepared corpus.

    When a corpus is opened, the size of every shard is checked, but no shard is opened. A shard is
    opened, and its record count checked, when one of its records is first read (about 1 ms). After
    that, the shard stays open. If there are many shards, the process's soft limit on open files is
    raised by the number of shards. If the hard limit is too low, the least recently read shards are
    closed. Instances can be pickled and read from multiple threads.
    """

    def __init__(self, directory: str | os.PathLike[str], split: Split, cache: Cache | None = None):
        """Open a split of a corpus.

        Args:
          directory: a directory written by `prepare`, which may be in a bucket.
          split: "train" or "heldout".
          cache: where shards from a bucket are kept; None for `corpus_cache()`.

        Raises:
          ValueError: there is no finished corpus, or shards are missing or do not have the size
            recorded in the manifest. The message names up to five such shards.
        """
        if split not in ("train", "heldout"):
            raise ValueError(f"split={split!r}: expected 'train' or 'heldout'.")
        self.directory = parse_location(directory)
        self._cache = corpus_cache() if cache is None else cache
        self.split = split
        self.manifest: Manifest = read_manifest(self.directory)
        self.info: SplitInfo = getattr(self.manifest, split)
        _check_sizes(self.directory, self.info.shards)
        counts = [shard.num_records for shard in self.info.shards]
        self._shard_end = np.cumsum(np.array(counts, np.int64))
        self._reset_readers()

    def __repr__(self) -> str:
        return f"Corpus({str(self.directory)!r}, {self.split!r}, {len(self):,} records)"

    def __len__(self) -> int:
        return self.info.num_records

    def __getstate__(self) -> dict[str, Any]:
        excluded = ("_readers", "_lock", "_max_open", "_copies")
        return {name: value for name, value in vars(self).items() if name not in excluded}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset_readers()

    def read(self, indices: NDArray[np.int64]) -> list[bytes]:
        """Return the bytes of the records with these numbers, in the given order.

        Each shard is read once, using a sorted list of unique record numbers. This takes 6 us per
        record for 256 records from one shard, and 28 us for a single record (uncompressed, 1 KB).

        Raises:
          IndexError: a number is out of range for the split.
          ValueError: a shard cannot be opened or read. The message names the shard.
        """
        unique, inverse = np.unique(indices, return_inverse=True)
        if len(unique) and not 0 <= unique[0] <= unique[-1] < len(self):
            raise IndexError(
                f"{self.directory}: records {unique[0]} to {unique[-1]} were requested, but the "
                f"{self.split} split has only {len(self)} records"
            )
        shard_of = np.searchsorted(self._shard_end, unique, side="right")
        blobs: list[bytes] = []
        with self._lock:
            for shard in np.unique(shard_of).tolist():
                first = self._shard_end[shard] - self.info.shards[shard].num_records
                blobs += self._read_shard(shard, (unique[shard_of == shard] - first).tolist())
        return [blobs[position] for position in inverse.tolist()]

    def decode(self, indices: NDArray[np.int64], blobs: Sequence[bytes]) -> RecordBatch:
        """Decode the result of `read` for `indices`.

        Raises:
          ValueError: a record is corrupt. The message names its shard and its number in the shard.
        """
        try:
            return decode_records(blobs, self.manifest.token_bytes)
        except CorruptRecordError as error:
            where = self.where(int(indices[error.index]))
            raise ValueError(f"{where} is corrupt: {error.reason}") from error

    def where(self, index: int) -> str:
        """Return a record's file and its number in the file, for use in messages."""
        shard = int(np.searchsorted(self._shard_end, index, side="right"))
        within = index - (self._shard_end[shard] - self.info.shards[shard].num_records)
        return f"{self.directory / self.info.shards[shard].name}: record {within}"

    def close(self) -> None:
        """Close the open shards. Reading a record reopens its shard."""
        with self._lock:
            while self._readers:
                self._readers.popitem()[1].close()
        if self._copies is not None:
            self._copies.close()

    def _reset_readers(self) -> None:
        self._readers: OrderedDict[int, ArrayRecordReader] = OrderedDict()
        self._lock = threading.Lock()
        self._max_open = _allow_open_files(len(self.info.shards))
        self._copies: BucketShardFiles | None = None
        if isinstance(self.directory, ObjectUrl):
            self._copies = BucketShardFiles(self.directory, self.info.shards, self._cache)
            if not self._copies.fits:
                self._max_open = 1  # A removed copy keeps its disk space while it is open.

    def _read_shard(self, shard: int, within: list[int]) -> list[bytes]:
        path = self.directory / self.info.shards[shard].name
        try:
            blobs = self._reader(shard).read(within)
        except (StorageError, NotWritten):
            raise
        except (RuntimeError, OSError, IndexError) as error:  # raised by array_record
            raise ValueError(f"{path}: cannot be read: {error}") from error
        if len(blobs) != len(within):
            raise ValueError(f"{path}: damaged: read only {len(blobs)} of {len(within)} records.")
        return blobs

    def _reader(self, shard: int) -> ArrayRecordReader:
        if shard in self._readers:
            self._readers.move_to_end(shard)
            return self._readers[shard]
        info = self.info.shards[shard]
        while len(self._readers) >= self._max_open:
            self._readers.popitem(last=False)[1].close()
        with self._file(shard) as file:
            reader = ArrayRecordReader(str(file), READER_OPTIONS)
        if reader.num_records() != info.num_records:
            num_records = reader.num_records()
            reader.close()
            raise OSError(
                f"it has {num_records} records, but should have {info.num_records} according to "
                "the manifest"
            )
        self._readers[shard] = reader
        return reader

    def _file(self, shard: int) -> AbstractContextManager[Path]:
        if self._copies is not None:
            return self._copies.open(shard)
        assert isinstance(self.directory, Path)
        return nullcontext(self.directory / self.info.shards[shard].name)


def _allow_open_files(num_files: int) -> int:
    """Raise the limit on open files by `num_files`, and return how many of them may stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = soft // 4
    if num_files <= spare:
        return num_files
    raised = soft + num_files if hard == resource.RLIM_INFINITY else min(soft + num_files, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (ValueError, OSError):  # macOS has another hard limit, which it does not report.
        raised = soft
    return min(num_files, max(1, spare + raised - soft))


def _check_sizes(directory: Location, shards: Sequence[ShardInfo]) -> None:
    sizes = file_sizes(directory)
    faults = []
    for shard in shards:
        size = sizes.get(shard.name)
        if size is None:
            faults.append(f"{shard.name} is missing")
        elif size != shard.num_bytes:
            faults.append(f"{shard.name} has {size} bytes instead of {shard.num_bytes}")
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if faults[5:] else "")
        raise ValueError(
            f"the corpus at {directory} is damaged: {shown}. Copy these files again, or prepare "
            "the corpus again."
        )


# 2^16 records of 512 tokens each contain 33 million tokens, far more than a unigram distribution
# needs.
MAX_RECORDS = 1 << 16


def unigram_cross_entropy(
    train: Corpus, held_out: Corpus, special_ids: Sequence[int] = ()
) -> float:
    """Return the held-out split's cross-entropy under the training split's unigram frequencies.

    A masked-LM loss below this value shows that a model uses context. Counts are smoothed by adding
    one for every id in the vocabulary. If a split has more than MAX_RECORDS records, only
    MAX_RECORDS evenly spaced records are counted.

    Args:
      train: the training split.
      held_out: the held-out split.
      special_ids: ids that are never predicted, including [UNK], and therefore not counted.

    Returns:
      The cross-entropy in nats per token.

    Raises:
      ValueError: a split has no records, or a shard cannot be read.
    """
    train_counts = token_counts(train) + 1.0
    heldout_counts = token_counts(held_out)
    excluded = [token_id for token_id in special_ids if token_id < len(train_counts)]
    train_counts[excluded] = heldout_counts[excluded] = 0.0
    with np.errstate(divide="ignore"):
        nats = -np.log(train_counts / train_counts.sum())
    nats = np.where(heldout_counts > 0, nats, 0.0)
    return float((heldout_counts @ nats) / max(heldout_counts.sum(), 1.0))


def token_counts(corpus: Corpus) -> np.ndarray:
    """Return how many times each token id occurs, as float64 [vocab_size].

    See `unigram_cross_entropy` for which records are counted.

    Raises:
      ValueError: the split has no records, or a shard cannot be read.
    """
    if not len(corpus):
        raise ValueError(f"{corpus.directory}: the {corpus.split} split has no records.")
    sample = np.unique(np.linspace(0, len(corpus) - 1, min(len(corpus), MAX_RECORDS)).astype(int))
    counts = np.zeros(corpus.manifest.vocab_size)
    for indices in np.array_split(sample, -(-len(sample) // 1024)):
        tokens = corpus.decode(indices, corpus.read(indices)).tokens
        counts += np.bincount(tokens, minlength=len(counts))
    return counts
