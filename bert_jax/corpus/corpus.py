"""Read a prepared corpus by record number, and compute its unigram baseline."""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader
from numpy.typing import NDArray

from bert_jax.corpus.manifest import Manifest, ShardInfo, SplitInfo, read_manifest
from bert_jax.corpus.records import CorruptRecordError, RecordBatch, decode_records

Split = Literal["train", "heldout"]

# No read-ahead and no thread pool per open shard: single records are wanted, from anywhere.
READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class Corpus:
    """One split of a prepared directory.

    Opening looks at the size of every shard but opens none: a shard is opened, and its record
    count compared, when the first record of it is read (about 1 ms), and then stays open. The
    process's soft limit on open files is raised for that by the number of shards if they would
    take much of it; where the hard limit forbids it, the least recently read shard gives way.
    Instances can be pickled, and read from several threads.
    """

    def __init__(self, directory: str | os.PathLike[str], split: Split):
        """Opens `split` of the corpus at `directory`.

        Raises:
            ValueError: there is no finished corpus, or shards are missing or have another size
                than the manifest says; all such shards are named.
        """
        if split not in ("train", "heldout"):
            raise ValueError(f"a corpus has the splits 'train' and 'heldout', not {split!r}")
        self.directory = Path(directory)
        self.split = split
        self.manifest: Manifest = read_manifest(self.directory)
        self.info: SplitInfo = getattr(self.manifest, split)
        _check_sizes(self.directory, self.info.shards)
        counts = [shard.num_records for shard in self.info.shards]
        self._shard_end = np.cumsum(np.array(counts, np.int64))
        self._open_nothing()

    def __len__(self) -> int:
        return self.info.num_records

    def __getstate__(self) -> dict[str, Any]:
        hidden = ("_readers", "_lock", "_max_open")
        return {name: value for name, value in vars(self).items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open_nothing()

    def read(self, indices: NDArray[np.int64]) -> list[bytes]:
        """Returns the bytes of the records with these numbers, in the order asked.

        Every shard is asked once, for an ascending list without repetitions: 6 us a record for
        256 records of one shard, 28 us for a record alone in its shard (uncompressed, 1 KB).

        Raises:
            IndexError: a number is outside the split.
            ValueError: a shard cannot be opened or read; names it.
        """
        wanted, place = np.unique(indices, return_inverse=True)
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < len(self):
            raise IndexError(
                f"records {wanted[0]}..{wanted[-1]} asked of {len(self)} in {self.directory}"
            )
        shard_of = np.searchsorted(self._shard_end, wanted, side="right")
        blobs: list[bytes] = []
        with self._lock:
            for shard in np.unique(shard_of).tolist():
                first = self._shard_end[shard] - self.info.shards[shard].num_records
                blobs += self._read_shard(shard, (wanted[shard_of == shard] - first).tolist())
        return [blobs[at] for at in place.tolist()]

    def decode(self, indices: NDArray[np.int64], blobs: Sequence[bytes]) -> RecordBatch:
        """Decodes what `read` returned for `indices`.

        Raises:
            ValueError: a record is corrupt; names its shard and its number there.
        """
        try:
            return decode_records(blobs, self.manifest.token_bytes)
        except CorruptRecordError as error:
            where = self.where(int(indices[error.index]))
            raise ValueError(f"{where} is corrupt: {error.reason}") from error

    def where(self, index: int) -> str:
        """Returns the file and place of a record, for messages."""
        shard = int(np.searchsorted(self._shard_end, index, side="right"))
        within = index - (self._shard_end[shard] - self.info.shards[shard].num_records)
        return f"{self.directory / self.info.shards[shard].name}: record {within}"

    def close(self) -> None:
        """Closes the shards that are open; reading opens them again."""
        with self._lock:
            while self._readers:
                self._readers.popitem()[1].close()

    def _open_nothing(self) -> None:
        self._readers: OrderedDict[int, ArrayRecordReader] = OrderedDict()
        self._lock = threading.Lock()
        self._max_open = _allow_open_files(len(self.info.shards))

    def _read_shard(self, shard: int, within: list[int]) -> list[bytes]:
        path = self.directory / self.info.shards[shard].name
        try:
            blobs = self._reader(shard).read(within)
        except (RuntimeError, OSError, IndexError) as error:  # what array_record raises
            raise ValueError(f"{path} cannot be read: {error}") from error
        if len(blobs) != len(within):
            raise ValueError(f"{path} gave {len(blobs)} of {len(within)} records: it is damaged")
        return blobs

    def _reader(self, shard: int) -> ArrayRecordReader:
        if shard in self._readers:
            self._readers.move_to_end(shard)
            return self._readers[shard]
        info = self.info.shards[shard]
        reader = ArrayRecordReader(str(self.directory / info.name), READER_OPTIONS)
        if reader.num_records() != info.num_records:
            found = reader.num_records()
            reader.close()
            raise OSError(f"it holds {found} records, the manifest says {info.num_records}")
        while len(self._readers) >= self._max_open:
            self._readers.popitem(last=False)[1].close()
        self._readers[shard] = reader
        return reader


def _allow_open_files(wanted: int) -> int:
    """Returns how many of `wanted` files may be held open, with the limit raised by them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = soft // 4
    if wanted <= spare:
        return wanted
    raised = soft + wanted if hard == resource.RLIM_INFINITY else min(soft + wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (ValueError, OSError):  # macOS names no hard limit yet has one
        raised = soft
    return min(wanted, max(1, spare + raised - soft))


def _check_sizes(directory: Path, shards: Sequence[ShardInfo]) -> None:
    with os.scandir(directory) as entries:
        present = {entry.name: entry for entry in entries}
    faults = []
    for shard in shards:
        entry = present.get(shard.name)
        if entry is None or not entry.is_file():
            faults.append(f"{shard.name} is missing")
        elif (size := entry.stat().st_size) != shard.num_bytes:
            faults.append(f"{shard.name} has {size} bytes instead of {shard.num_bytes}")
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if faults[5:] else "")
        raise ValueError(
            f"the corpus at {directory} is damaged: {shown}. Copy these files again, or prepare "
            "the corpus again."
        )


# 2^16 records of 512 tokens are 33 M tokens: far more than a unigram distribution needs.
MAX_RECORDS = 1 << 16


def unigram_cross_entropy(
    train: Corpus, held_out: Corpus, special_ids: Sequence[int] = ()
) -> float:
    """Nats per token of the held-out split under the unigram frequencies of the training split.

    Counts are smoothed by adding one to every id of the vocabulary. A split of more than
    MAX_RECORDS records is represented by that many, evenly spaced. A masked-LM loss below this
    value has learned something of context.

    special_ids: that are never predicted, [UNK] among them, and so not counted.

    Raises:
      ValueError: a split holds no record, or a shard cannot be read.
    """
    seen = token_counts(train) + 1.0
    met = token_counts(held_out)
    inside = [token_id for token_id in special_ids if token_id < len(seen)]
    seen[inside] = met[inside] = 0.0
    with np.errstate(divide="ignore"):
        costs = np.where(met > 0, -np.log(seen / seen.sum()), 0.0)
    return float((met @ costs) / max(met.sum(), 1.0))


def token_counts(corpus: Corpus) -> np.ndarray:
    """How often each token id occurs: [vocab_size] float64; see `unigram_cross_entropy`."""
    if not len(corpus):
        raise ValueError(f"the {corpus.split} split of {corpus.directory} holds no record")
    wanted = np.unique(np.linspace(0, len(corpus) - 1, min(len(corpus), MAX_RECORDS)).astype(int))
    counts = np.zeros(corpus.manifest.vocab_size)
    for indices in np.array_split(wanted, -(-len(wanted) // 1024)):
        tokens = corpus.decode(indices, corpus.read(indices)).tokens
        counts += np.bincount(tokens, minlength=len(counts))
    return counts
