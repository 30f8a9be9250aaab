"""Group a stream of documents into units of work, without the duplicates.

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

DIGEST_BYTES = 16  # two of 10**9 different documents share one with probability 1.5e-21
_CACHE_KIB = 65_536


def document_digest(text: bytes) -> bytes:
    """BLAKE2b-128 of a document's UTF-8 text: its identity for duplicates and for the split."""
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def folded_digest(text: str) -> bytes:
    """As `document_digest`, of the text without regard to case and to which white space it has.

    No digest of the one kind is one of the other, so a set may hold both.
    """
    folded = " ".join(text.casefold().split()).encode("utf-8")
    return b"folded" + document_digest(folded)


class SeenDocuments:
    """A set of document digests on disk: a context manager around a scratch file.

    The file is made afresh and is worth nothing afterwards, so SQLite may skip all that would
    protect it from a crash.
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
        """Add a digest; whether it was not there before.

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
        found = self._database.execute("SELECT 1 FROM seen WHERE digest = ?", (digest,))
        return found.fetchone() is not None

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

# The first units of a split are small so that a small corpus, too, occupies every core: eight each
# of 1/32, 1/16, 1/8, 1/4 and 1/2 of the size asked for.
_RAMP_DOUBLINGS = 5
_RAMP_UNITS = 8
# What a worker holds for a document besides its text: a unit of very short ones is smaller.
_DOCUMENT_OVERHEAD = 256


@dataclass(frozen=True)
class Unit:
    """Documents of one split: corpus-wide ids and UTF-8 texts, and a digest of both."""

    split: Split
    index: int
    document_ids: list[int]
    texts: list[bytes]
    digest: str

    @property
    def name(self) -> str:
        """Stem of the shard's file name."""
        return shard_name(self.split, self.index)

    @property
    def num_bytes(self) -> int:
        """Bytes of text."""
        return sum(map(len, self.texts))


def shard_name(split: Split, index: int) -> str:
    """Stem of the name of a split's shard."""
    return f"{split}-{index:05d}"


@dataclass
class StreamCounts:
    """What the stream has handed out or left out so far.

    `heldout_repeats` are documents left out because one of those held out has their text.
    `lowest_hash` and `highest_hash` are those of the documents' places in 0..1 that decide the
    split, for advice on a split that came out empty.
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
    """Drop exact duplicates, assign each document to a split by its hash, and group them.

    Those of `heldout` come first, and are held out whatever their hash; of `documents` those are
    left out that differ from one of them in case and white space alone.
    Holds one unit of each split at a time. A unit ends with the document that reaches its size.

    Raises:
        ValueError: the corpus has more documents than ids.
    """
    open_units = {split: _OpenUnit(split, unit_bytes) for split in SPLITS}
    document_id = 0
    sides = chain(((each, True) for each in heldout), ((each, False) for each in documents))
    any_held_out = False
    for document, held_out in sides:
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
                f"{document.source}: a corpus holds at most {MAX_DOCUMENT_ID + 1} documents; "
                "prepare it in several directories"
            )
        place = int.from_bytes(digest[:8], "big") / 2**64
        counts.lowest_hash = min(counts.lowest_hash, place)
        counts.highest_hash = max(counts.highest_hash, place)
        split: Split = "heldout" if held_out or place < heldout_fraction else "train"
        counts.documents[split] += 1
        unit = open_units[split].add(document_id, text, digest)
        document_id += 1
        if unit is not None:
            yield unit
    for open_unit in open_units.values():
        if open_unit.texts:
            yield open_unit.close()


class _OpenUnit:
    """The unit of a split that documents are being added to."""

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
        """Add a document; the unit if that completes it."""
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
