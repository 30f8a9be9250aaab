"""Which documents were seen before, in memory that does not grow with the corpus."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from bert_jax.files import NotWritten

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
