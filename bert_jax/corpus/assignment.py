"""Decide, from the scans of all inputs, which documents to keep, and in which shard.

A unit consists of the documents of one shard. The result is the same as with `kept_documents` and
`build_units`, which read the documents themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.document_stream import SPLITS, Split, StreamCounts
from bert_jax.corpus.records import MAX_DOCUMENT_ID
from bert_jax.corpus.scans import Scan
from bert_jax.corpus.unique_documents import UniqueDocuments, find_unique, groups
from bert_jax.corpus.units import DOCUMENT_OVERHEAD, shard_name, unit_threshold


@dataclass(frozen=True)
class AssignOptions:
    """The options that, together with the scans, determine the assignment.

    Attributes:
      num_heldout: the number of inputs that are held out completely. These inputs come first.
      heldout_fraction: the fraction of the documents in the remaining inputs to hold out.
      unit_bytes: the size of a unit.
    """

    num_heldout: int
    heldout_fraction: float
    unit_bytes: int


@dataclass(frozen=True)
class Start:
    """The state of the assignment before an input.

    Attributes:
      document_id: the ID of the next kept document.
      units: for each split, the index of its open unit and the size of this unit so far.
    """

    document_id: int = 0
    units: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))


@dataclass(frozen=True)
class InputAssignment:
    """The units of one input's documents.

    Attributes:
      positions: [num_kept] the positions of the kept documents in the input.
      document_ids: [num_kept] the numbers of the kept documents in the corpus.
      splits: [num_kept] the indices of the documents' splits in `SPLITS`.
      units: [num_kept] the indices of the documents' units within the split.
      end: the state after the input.
    """

    positions: NDArray[np.int64]
    document_ids: NDArray[np.int64]
    splits: NDArray[np.int8]
    units: NDArray[np.int64]
    end: Start


@dataclass
class UnitSpan:
    """The location of a unit's documents in the inputs.

    Attributes:
      split: the split.
      index: the unit's index within the split.
      first_input: the index of the input with the unit's first document.
      last_input: the index of the input with the unit's last document.
      num_documents: the number of documents.
      num_text_bytes: the size of the documents' text in UTF-8.
      last_document: the number, in the corpus, of the unit's last document.
      hashing: the digest of the documents' ids and digests, as in `build_units`.
    """

    split: Split
    index: int
    first_input: int
    last_input: int
    num_documents: int = 0
    num_text_bytes: int = 0
    last_document: int = 0
    hashing: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    @property
    def name(self) -> str:
        """The stem of the shard's file name."""
        return shard_name(self.split, self.index)

    @property
    def digest(self) -> str:
        """The digest of a `Unit` with these documents."""
        return self.hashing.hexdigest()

    def is_full(self, unit_bytes: int) -> bool:
        """Return whether the unit ended because it was full, not because the corpus ended."""
        size = self.num_text_bytes + DOCUMENT_OVERHEAD * self.num_documents
        return size >= unit_threshold(self.index, unit_bytes)


@dataclass(frozen=True)
class Assignment:
    """The units of a corpus.

    Attributes:
      kept: for each input, a boolean array [num_documents] that is true for kept documents.
      starts: the state of the assignment before each input.
      units: all units, in order within each split.
      counts: the counts of kept and removed documents.
    """

    kept: list[NDArray[np.bool_]]
    starts: list[Start]
    units: list[UnitSpan]
    counts: StreamCounts


def assign(
    scans: Sequence[Scan],
    options: AssignOptions,
    unique: UniqueDocuments | None = None,
    left_out: NDArray[np.bool_] | None = None,
) -> Assignment:
    """Remove duplicates and repeats of held-out documents, and group the rest into units.

    Args:
      scans: the scans of all inputs.
      options: the options.
      unique: the result of `find_unique`, if it is known.
      left_out: for each unique document, whether the filters leave it out; None if there are no
        filters.

    Raises:
      ValueError: the corpus has too many documents.
    """
    counts = StreamCounts()
    unique = find_unique(scans, options.num_heldout) if unique is None else unique
    kept, counts.heldout_repeats = unique.kept, unique.heldout_repeats
    if left_out is not None:
        kept = _without(kept, left_out)
        counts.screened_out = int(np.count_nonzero(left_out))
    starts, start = [], Start()
    spans: dict[str, UnitSpan] = {}
    for number, (scan, mask) in enumerate(zip(scans, kept, strict=True)):
        starts.append(start)
        assigned = assign_input(scan, mask, number, start, options)
        _count(scan, mask, assigned, counts)
        _add_to_spans(spans, scan, assigned, number)
        start = assigned.end
    removed = counts.heldout_repeats + counts.screened_out
    counts.duplicates = sum(len(scan.rows) for scan in scans) - removed - start.document_id
    order = sorted(spans.values(), key=lambda span: (SPLITS.index(span.split), span.index))
    return Assignment(kept, starts, order, counts)


def _without(
    kept: Sequence[NDArray[np.bool_]], left_out: NDArray[np.bool_]
) -> list[NDArray[np.bool_]]:
    """Return `kept` without the documents that are left out."""
    masks, start = [], 0
    for mask in kept:
        stop = start + int(np.count_nonzero(mask))
        rest = mask.copy()
        rest[np.flatnonzero(mask)[left_out[start:stop]]] = False
        masks.append(rest)
        start = stop
    assert start == len(left_out), "the documents have not all been screened"
    return masks


def assign_input(
    scan: Scan, kept: NDArray[np.bool_], number: int, start: Start, options: AssignOptions
) -> InputAssignment:
    """Assign the documents of one input to units.

    Args:
      scan: the input's scan.
      kept: a boolean array [num_documents] that is true for kept documents.
      number: the input's number in reading order.
      start: the state of the assignment before the input.
      options: the options.

    Raises:
      ValueError: the corpus has too many documents.
    """
    positions = np.flatnonzero(kept)
    document_ids = start.document_id + np.arange(len(positions))
    if len(positions) and document_ids[-1] > MAX_DOCUMENT_ID:
        raise ValueError(
            f"inputs: a corpus can have at most {MAX_DOCUMENT_ID + 1} documents. Split the input "
            "into multiple corpora."
        )
    held_out = _fractions(scan)[positions] < options.heldout_fraction
    if number < options.num_heldout:
        held_out[:] = True
    splits = np.where(held_out, SPLITS.index("heldout"), SPLITS.index("train")).astype(np.int8)
    sizes = scan.by_position("size")[positions].astype(np.int64) + DOCUMENT_OVERHEAD
    units = np.zeros(len(positions), np.int64)
    ends = list(start.units)
    for split in range(len(SPLITS)):
        members = splits == split
        units[members], ends[split] = _cut(sizes[members], *ends[split], options.unit_bytes)
    end = Start(start.document_id + len(positions), (ends[0], ends[1]))
    return InputAssignment(positions, document_ids, splits, units, end)


def _cut(
    sizes: NDArray[np.int64], index: int, filled: int, unit_bytes: int
) -> tuple[NDArray[np.int64], tuple[int, int]]:
    """Return each document's unit, and the index and size of the last unit, which is still open."""
    units = np.empty(len(sizes), np.int64)
    ends = np.cumsum(sizes)
    begin, before = 0, -filled  # The open unit already contains `filled` bytes.
    while begin < len(sizes):
        full = before + unit_threshold(index, unit_bytes)
        last = int(np.searchsorted(ends, full))  # The document `last` fills the unit.
        units[begin : last + 1] = index
        if last >= len(sizes):
            return units, (index, int(ends[-1]) - before)
        begin, before, index = last + 1, int(ends[last]), index + 1
    return units, (index, (int(ends[-1]) if len(sizes) else 0) - before)


def _fractions(scan: Scan) -> NDArray[np.float64]:
    """Return the `hash_fraction` of each document in reading order, as an array [num_documents]."""
    return scan.by_position("high").astype(np.float64) / 2.0**64


def _count(
    scan: Scan, kept: NDArray[np.bool_], assigned: InputAssignment, counts: StreamCounts
) -> None:
    counts.left_out_bytes += int(scan.by_position("size")[~kept].sum())
    for split, name in enumerate(SPLITS):
        counts.documents[name] += int(np.count_nonzero(assigned.splits == split))
    if len(assigned.positions):
        fractions = _fractions(scan)[assigned.positions]
        counts.lowest_hash = min(counts.lowest_hash, float(fractions.min()))
        counts.highest_hash = max(counts.highest_hash, float(fractions.max()))


def _add_to_spans(
    spans: dict[str, UnitSpan], scan: Scan, assigned: InputAssignment, number: int
) -> None:
    """Add one input's documents to the units that they belong to."""
    sizes = scan.by_position("size")[assigned.positions]
    hashed = np.empty(len(sizes), [("id", ">u4"), ("high", ">u8"), ("low", ">u8")])
    hashed["id"] = assigned.document_ids
    for half in ("high", "low"):
        hashed[half] = scan.by_position(half)[assigned.positions]
    for split, name in enumerate(SPLITS):
        members = np.flatnonzero(assigned.splits == split)
        for index, chosen in groups(assigned.units[members]):
            documents = members[chosen]
            span = spans.setdefault(
                shard_name(name, index), UnitSpan(name, index, first_input=number, last_input=0)
            )
            span.last_input = number
            span.num_documents += len(documents)
            span.num_text_bytes += int(sizes[documents].sum())
            span.last_document = int(assigned.document_ids[documents[-1]])
            span.hashing.update(hashed[documents].tobytes())
