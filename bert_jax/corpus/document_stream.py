"""Decide which documents a corpus keeps and which split each of them belongs to.

Only `kept_documents` removes and numbers documents. All later steps depend only on the documents
that it yields, and on their order.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Literal

from bert_jax.corpus.records import MAX_DOCUMENT_ID
from bert_jax.files import NotWritten
from bert_jax.text.documents import Document

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, Split] = ("train", "heldout")

DIGEST_BYTES = 16  # The probability of a collision among 10**9 documents is 1.5e-21.
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


@dataclass
class StreamCounts:
    """Counts of the documents that have been passed on or removed so far.

    Attributes:
      documents: the number of documents in each split.
      duplicates: the number of documents removed because an earlier one has the same text.
      screened_out: the number of documents removed by filters or as near-duplicates.
      heldout_repeats: the number of documents removed because a held-out one has the same text.
      left_out_bytes: the size of the removed documents in UTF-8.
      lowest_hash: the lowest document hash, from 0 to 1. If a split is empty, the error message
        uses it to suggest another fraction.
      highest_hash: the highest document hash, from 0 to 1.
    """

    documents: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    duplicates: int = 0
    screened_out: int = 0
    heldout_repeats: int = 0
    left_out_bytes: int = 0
    lowest_hash: float = 1.0
    highest_hash: float = 0.0


@dataclass(frozen=True)
class KeptDocument:
    """A document that belongs to the corpus.

    Attributes:
      document_id: the document's number in the corpus, counting kept documents in reading order.
      split: the split.
      text: the document's text in UTF-8.
      digest: the `document_digest` of the text.
      source: where the document comes from.
    """

    document_id: int
    split: Split
    text: bytes
    digest: bytes
    source: str


def hash_fraction(digest: bytes) -> float:
    """Return a document's digest as a fraction from 0 to 1, which determines its split."""
    return int.from_bytes(digest[:8], "big") / 2**64


def kept_documents(
    heldout: Iterable[Document],
    documents: Iterable[Document],
    heldout_fraction: float,
    seen: SeenDocuments,
    counts: StreamCounts,
    is_left_out: Callable[[int, bytes], bool] | None = None,
) -> Iterator[KeptDocument]:
    """Yield a corpus's documents in order, without duplicates or repeats of held-out documents.

    Args:
      heldout: documents that come first and are all held out. Documents with the same text,
        ignoring case and white space, are removed from `documents`.
      documents: the documents that are assigned to a split by hash.
      heldout_fraction: the fraction of `documents` to hold out.
      seen: the digests of earlier documents. New digests are added to it.
      counts: the counts to update.
      is_left_out: a function that returns whether to leave out a document for another reason. Its
        arguments are the document's digest and its number among all documents that are neither
        duplicates nor repeats. None to leave out no other documents.

    Raises:
      ValueError: the corpus has too many documents.
    """
    position = document_id = 0
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
        position += 1
        if is_left_out is not None and is_left_out(position - 1, digest):
            counts.screened_out += 1
            counts.left_out_bytes += len(text)
            continue
        if document_id > MAX_DOCUMENT_ID:
            raise ValueError(
                f"{document.source}: a corpus can have at most {MAX_DOCUMENT_ID + 1} documents. "
                "Split the input into multiple corpora."
            )
        fraction = hash_fraction(digest)
        counts.lowest_hash = min(counts.lowest_hash, fraction)
        counts.highest_hash = max(counts.highest_hash, fraction)
        split: Split = "heldout" if held_out or fraction < heldout_fraction else "train"
        counts.documents[split] += 1
        yield KeptDocument(document_id, split, text, digest, document.source)
        document_id += 1
