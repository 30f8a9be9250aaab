"""Read the documents of chosen units from the inputs that contain them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.assignment import (
    Assignment,
    AssignOptions,
    InputAssignment,
    Start,
    UnitSpan,
    assign_input,
)
from bert_jax.corpus.document_stream import SPLITS, Split, document_digest
from bert_jax.corpus.scans import Scan, ScanTask, halves
from bert_jax.corpus.units import Unit, shard_name
from bert_jax.text.documents import SourceCounts
from bert_jax.text.sources import read_documents


@dataclass(frozen=True)
class PlacedDocument:
    """A document and the unit that it belongs to.

    Attributes:
      split: the unit's split.
      unit: the unit's index within the split.
      document_id: the document's number in the corpus.
      text: the document's text in UTF-8.
    """

    split: Split
    unit: int
    document_id: int
    text: bytes


def placed_documents(
    task: ScanTask,
    scan: Scan,
    kept: NDArray[np.bool_],
    start: Start,
    options: AssignOptions,
    chosen: frozenset[str] | None = None,
) -> Iterator[PlacedDocument]:
    """Read an input again, and yield its kept documents in order.

    Args:
      task: the input.
      scan: the scan of the input.
      kept: a boolean array [num_documents] that is true for the kept documents of the input.
      start: the state of the assignment before the input.
      options: the options of the assignment.
      chosen: the names of the units that contain the documents to yield; None for all units.

    Raises:
      ValueError: the input has changed since it was scanned.
    """
    assigned = assign_input(scan, kept, task.number, start, options)
    wanted = _wanted(assigned, chosen)
    if not len(wanted):
        return
    highs, lows = scan.by_position("high"), scan.by_position("low")
    documents = enumerate(read_documents([task.path], task.sources, SourceCounts(logged=False)))
    for row in wanted.tolist():
        position = int(assigned.positions[row])
        document = next((document for number, document in documents if number == position), None)
        text = document.text.encode("utf-8") if document is not None else b""
        if document is None or halves(document_digest(text)) != (highs[position], lows[position]):
            raise ValueError(
                f"{task.path}: this file changed while the corpus was being prepared. Run the "
                "preparation again."
            )
        yield PlacedDocument(
            SPLITS[assigned.splits[row]],
            int(assigned.units[row]),
            int(assigned.document_ids[row]),
            text,
        )


def _wanted(assigned: InputAssignment, chosen: frozenset[str] | None) -> NDArray[np.intp]:
    """Return the indices of the documents in the chosen units."""
    if chosen is None:
        return np.arange(len(assigned.positions))
    wanted = np.zeros(len(assigned.positions), np.bool_)
    for split, name in enumerate(SPLITS):
        members = assigned.splits == split
        units = [
            unit for unit in np.unique(assigned.units[members]) if shard_name(name, unit) in chosen
        ]
        wanted |= members & np.isin(assigned.units, units)
    return np.flatnonzero(wanted)


@dataclass
class _Pending:
    """The documents of a unit that have been read so far."""

    span: UnitSpan
    document_ids: list[int] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)

    def unit(self) -> Unit:
        span = self.span
        return Unit(span.split, span.index, self.document_ids, self.texts, span.digest)


@dataclass(frozen=True)
class UnitReader:
    """A reader of units.

    Attributes:
      tasks: all inputs.
      scans: the scans of the inputs.
      assignment: the units.
      options: the options that determined the units.
    """

    tasks: Sequence[ScanTask]
    scans: Sequence[Scan]
    assignment: Assignment
    options: AssignOptions

    def read(self, spans: Sequence[UnitSpan]) -> Iterator[Unit]:
        """Yield the chosen units as soon as they are complete, reading only the inputs they are in.

        Raises:
          ValueError: an input has changed since it was scanned.
        """
        pending = {span.name: _Pending(span) for span in spans}
        for task, scan in zip(self.tasks, self.scans, strict=True):
            number = task.number
            here = frozenset(
                name
                for name, unit in pending.items()
                if unit.span.first_input <= number <= unit.span.last_input
            )
            if not here:
                continue
            for document in placed_documents(
                task,
                scan,
                self.assignment.kept[number],
                self.assignment.starts[number],
                self.options,
                here,
            ):
                name = shard_name(document.split, document.unit)
                unit = pending[name]
                unit.document_ids.append(document.document_id)
                unit.texts.append(document.text)
                if len(unit.texts) == unit.span.num_documents:
                    del pending[name]
                    yield unit.unit()
        assert not pending, "a unit is incomplete"
