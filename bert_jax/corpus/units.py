"""Group the documents of a corpus into units, each of which becomes one shard."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bert_jax.corpus.document_stream import SPLITS, KeptDocument, Split

# The first units of a split are small, so that even a small corpus uses all cores. Eight units have
# 1/32 of the configured size, followed by eight units each of 1/16, 1/8, 1/4 and 1/2.
_RAMP_DOUBLINGS = 5
_RAMP_UNITS = 8
# The memory in bytes that a worker needs for each document, in addition to the document's text.
DOCUMENT_OVERHEAD = 256


@dataclass(frozen=True)
class Unit:
    """Documents from one split that are processed together.

    Attributes:
      split: the split.
      index: the unit's index within the split.
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


def unit_threshold(index: int, unit_bytes: int) -> int:
    """Return the size in bytes at which the unit with this index in a split is full."""
    return unit_bytes >> max(0, _RAMP_DOUBLINGS - index // _RAMP_UNITS)


def build_units(documents: Iterable[KeptDocument], unit_bytes: int) -> Iterator[Unit]:
    """Group documents into units, each of which belongs to one split.

    At most one unit per split is in memory. A unit ends with the document that brings it to its
    full size.

    Args:
      documents: the documents of the corpus in order.
      unit_bytes: the size of a unit.
    """
    open_units = {split: _OpenUnit(split, unit_bytes) for split in SPLITS}
    for document in documents:
        unit = open_units[document.split].add(document)
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

    def add(self, document: KeptDocument) -> Unit | None:
        """Add a document, and return the unit if the document completes it."""
        self.document_ids.append(document.document_id)
        self.texts.append(document.text)
        self.size += len(document.text) + DOCUMENT_OVERHEAD
        self.digest.update(document.document_id.to_bytes(4, "big") + document.digest)
        return self.close() if self.size >= unit_threshold(self.index, self.unit_bytes) else None

    def close(self) -> Unit:
        unit = Unit(self.split, self.index, self.document_ids, self.texts, self.digest.hexdigest())
        self.index += 1
        self._clear()
        return unit
