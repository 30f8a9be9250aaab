"""A stream of documents -> units of work, the same ones however many workers there are.

A unit is some consecutive documents of one split; one worker turns it into one shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from bert_jax.data.deduplication import SeenDocuments, document_digest, folded_digest
from bert_jax.data.documents import Document
from bert_jax.data.records import MAX_DOCUMENT_ID

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
