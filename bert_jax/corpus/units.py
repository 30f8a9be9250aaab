"""Remove duplicates from a stream of documents, and group the documents into units of work.

The units are the same for any number of workers.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Literal

from bert_jax.corpus.records import MAX_DOCUMENT_ID
from bert_jax.files import NotWritten
from bert_jax.text.documents import Document

DIGEST_BYTES = 16  # among 10**9 documents, the probability of a collision is 1.5e-21
_CACHE_KIB = 65_536


def document_digest(text: bytes) -> bytes:
    """Return the BLAKE2b-128 digest that identifies a document and determines its split."""
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def folded_digest(text: str) -> bytes:
    """Return the `document_digest` of a text, ignoring case and differences in white space.

    The digest never equals a `document_digest`, so a set may contain both kinds.
    """
    folded = " ".join(text.casefold().split()).encode("utf-8")
    return b"folded" + document_digest(folded)


class SeenDocuments:
    """A set of document digests in a scratch file, usable as a context manager.

    The file is always new and is not needed afterwards, so SQLite does not have to protect it from
    crashes.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = path
        Path(path).unlink(missing_ok=True)
        with self._writing():
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = OFF")
            self._database.execute("PRAGMA synchronous = OFF")
            self._database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._database.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID")
            self._database.execute("BEGIN")

    def add(self, digest: bytes) -> bool:
        """Add a digest, and return whether it is new.

        Raises:
          NotWritten: the scratch file cannot grow because the disk is full.
        """
        with self._writing():
            cursor = self._database.execute("INSERT OR IGNORE INTO seen VALUES (?)", (digest,))
        return cursor.rowcount == 1

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise NotWritten(self._path, str(error)) from error

    def __contains__(self, digest: bytes) -> bool:
        rows = self._database.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,))
        return rows.fetchone() is not None

    def __enter__(self) -> SeenDocuments:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._database.close()


Split = Literal["train", "heldout"]
SPLITS: tuple[Split, Split] = ("train", "heldout")

# The first units of a split are small, so that even a small corpus uses all cores: eight units of
# 1/32 of the configured size, then eight each of 1/16, 1/8, 1/4 and 1/2.
_RAMP_DOUBLINGS = 5
_RAMP_UNITS = 8
# The memory in bytes that a worker needs for each document, in addition to the document's text.
_DOCUMENT_OVERHEAD = 256


@dataclass(frozen=True)
class Unit:
    """Documents from one split that are processed together.

    Attributes:
      split: the split.
      index: the number of the unit in the split.
      document_ids: the numbers of the unit's documents in the corpus.
      texts: the documents' texts in UTF-8.
      digest: a digest of the ids and texts.
    """

    split: Split
    index: int
    document_ids: list[int]
    texts: list[bytes]
    digest: str

    @property
    def name(self) -> str:
        """The stem of the shard's file name."""
        return shard_name(self.split, self.index)

    @property
    def num_bytes(self) -> int:
        """The size of the texts in UTF-8."""
        return sum(map(len, self.texts))


def shard_name(split: Split, index: int) -> str:
    """Return the stem of a shard's file name."""
    return f"{split}-{index:05d}"


@dataclass
class StreamCounts:
    """Counts of the documents that have been passed on or removed so far.

    Attributes:
      documents: the number of documents in each split.
      duplicates: the number of documents removed because an earlier one has the same text.
      heldout_repeats: the number of documents removed because a held-out one has the same text.
      left_out_bytes: the size of the removed documents in UTF-8.
      lowest_hash: the lowest document hash, from 0 to 1, which is used for advice when a split is
        empty.
      highest_hash: the highest document hash.
    """

    documents: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    duplicates: int = 0
    heldout_repeats: int = 0
    left_out_bytes: int = 0
    lowest_hash: float = 1.0
    highest_hash: float = 0.0


def build_units(
    documents: Iterable[Document],
    unit_bytes: int,
    heldout_fraction: float,
    seen: SeenDocuments,
    counts: StreamCounts,
    heldout: Iterable[Document] = (),
) -> Iterator[Unit]:
    """Remove exact duplicates, assign documents to splits by hash, and group them into units.

    At most one unit per split is in memory. A unit ends with the document that brings it to its
    full size.

    Args:
      documents: the documents to split.
      unit_bytes: the size of a unit.
      heldout_fraction: the fraction of documents to hold out.
      seen: the digests of earlier documents. New digests are added to it.
      counts: the counts to update.
      heldout: documents that come first and are all held out. Documents with the same text,
        ignoring case and white space, are removed from `documents`.

    Raises:
      ValueError: the corpus has too many documents.
    """
    open_units = {split: _OpenUnit(split, unit_bytes) for split in SPLITS}
    document_id = 0
    stream = chain(
        ((document, True) for document in heldout), ((document, False) for document in documents)
    )
    any_held_out = False
    for document, held_out in stream:
        text = document.text.encode("utf-8")
        digest = document_digest(text)
        if held_out:
            any_held_out = True
            seen.add(folded_digest(document.text))
        elif any_held_out and folded_digest(document.text) in seen:
            counts.heldout_repeats += 1
            counts.left_out_bytes += len(text)
            continue
        if not seen.add(digest):
            counts.duplicates += 1
            counts.left_out_bytes += len(text)
            continue
        if document_id > MAX_DOCUMENT_ID:
            raise ValueError(
                f"{document.source}: a corpus can have at most {MAX_DOCUMENT_ID + 1} documents. "
                "Split the input into multiple corpora."
            )
        fraction = int.from_bytes(digest[:8], "big") / 2**64
        counts.lowest_hash = min(counts.lowest_hash, fraction)
        counts.highest_hash = max(counts.highest_hash, fraction)
        split: Split = "heldout" if held_out or fraction < heldout_fraction else "train"
        counts.documents[split] += 1
        unit = open_units[split].add(document_id, text, digest)
        document_id += 1
        if unit is not None:
            yield unit
    for open_unit in open_units.values():
        if open_unit.texts:
            yield open_unit.close()


class _OpenUnit:
    """The unit to which a split's documents are currently being added."""

    def __init__(self, split: Split, unit_bytes: int):
        self.split: Split = split
        self.unit_bytes = unit_bytes
        self.index = 0
        self._clear()

    def _clear(self) -> None:
        self.document_ids: list[int] = []
        self.texts: list[bytes] = []
        self.size = 0
        self.digest = hashlib.blake2b(digest_size=16)

    def add(self, document_id: int, text: bytes, digest: bytes) -> Unit | None:
        """Add a document, and return the unit if the document completes it."""
        self.document_ids.append(document_id)
        self.texts.append(text)
        self.size += len(text) + _DOCUMENT_OVERHEAD
        self.digest.update(document_id.to_bytes(4, "big") + digest)
        halvings = max(0, _RAMP_DOUBLINGS - self.index // _RAMP_UNITS)
        return self.close() if self.size >= self.unit_bytes >> halvings else None

    def close(self) -> Unit:
        unit = Unit(self.split, self.index, self.document_ids, self.texts, self.digest.hexdigest())
        self.index += 1
        self._clear()
        return unit
