"""Screen the documents of a corpus on multiple machines.

From the scans of all inputs, every machine computes the same blocks of documents as a preparation
on one machine. It screens its share of the blocks, and then all blocks that no other machine has
screened yet.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert_jax.corpus.document_stream import DIGEST_BYTES, document_digest
from bert_jax.corpus.scans import Scan, ScanTask, halves
from bert_jax.corpus.screened_blocks import (
    BLOCK_BYTES,
    BlockScreener,
    DocumentBlock,
    permanent_source,
)
from bert_jax.corpus.screened_files import (
    block_names,
    keep_screening,
    kept_screening,
    sharing_blocks,
)
from bert_jax.corpus.screening import Screener, Screening
from bert_jax.corpus.screening_pool import screen_blocks
from bert_jax.corpus.shared_files import SharedFiles
from bert_jax.corpus.unique_documents import UniqueDocuments
from bert_jax.corpus.workspace import SCREENED, SCREENING
from bert_jax.text.documents import SourceCounts
from bert_jax.text.sources import read_documents


@dataclass(frozen=True)
class BlockSpan:
    """The position of a block's documents among all unique documents.

    Attributes:
      number: the block's number, counted from 0.
      first: the position of the block's first document.
      stop: the position just past the block's last document.
      digest: the digest of the block, as in `group_documents`.
    """

    number: int
    first: int
    stop: int
    digest: str


@dataclass(frozen=True)
class BlockReader:
    """The unique documents of all inputs, divided into blocks.

    Attributes:
      tasks: the inputs.
      scans: the scans of the inputs.
      unique: the documents that are neither duplicates nor repeats of held-out ones.
      num_heldout: the number of inputs that are held out completely; these inputs come first.
    """

    tasks: Sequence[ScanTask]
    scans: Sequence[Scan]
    unique: UniqueDocuments
    num_heldout: int

    def spans(self, fingerprint: bytes) -> list[BlockSpan]:
        """Return all blocks, which are the same as in `group_documents`.

        Args:
          fingerprint: the digest of the settings.
        """
        spans: list[BlockSpan] = []
        first = position = size = 0
        hashing = hashlib.blake2b(fingerprint, digest_size=16)
        for number, scan in enumerate(self.scans):
            kept = np.flatnonzero(self.unique.kept[number])
            sizes = scan.by_position("size")[kept].astype(np.int64)
            rows = np.empty(len(kept), [("high", ">u8"), ("low", ">u8"), ("filtered", "u1")])
            rows["high"], rows["low"] = (scan.by_position(half)[kept] for half in ("high", "low"))
            rows["filtered"] = number >= self.num_heldout
            ends, done = np.cumsum(sizes), 0
            while done < len(kept):
                before = int(ends[done - 1]) if done else 0
                last = int(np.searchsorted(ends, before + BLOCK_BYTES - size))
                stop = min(last + 1, len(kept))
                hashing.update(rows[done:stop].tobytes())
                size += int(ends[stop - 1]) - before
                position += stop - done
                done = stop
                if size >= BLOCK_BYTES:
                    spans.append(BlockSpan(len(spans), first, position, hashing.hexdigest()))
                    hashing = hashlib.blake2b(fingerprint, digest_size=16)
                    first, size = position, 0
        if position > first:
            spans.append(BlockSpan(len(spans), first, position, hashing.hexdigest()))
        return spans

    def digest(self) -> bytes:
        """Return a digest of all documents, equal to the one that `Preparation.screen` computes."""
        hashing = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for scan, mask in zip(self.scans, self.unique.kept, strict=True):
            kept = np.flatnonzero(mask)
            rows = np.empty((len(kept), 2), ">u8")
            rows[:, 0], rows[:, 1] = (scan.by_position(half)[kept] for half in ("high", "low"))
            hashing.update(rows.tobytes())
        return hashing.digest()

    def read(
        self, spans: Sequence[BlockSpan], is_finished: Callable[[BlockSpan], bool]
    ) -> Iterator[DocumentBlock]:
        """Yield blocks in order, reading only the inputs that contain their documents.

        Args:
          spans: the blocks, in order.
          is_finished: returns whether to skip a block. It is called just before the block is read.

        Raises:
          ValueError: an input has changed since it was scanned.
        """
        waiting = deque(spans)
        pending, start = _Pending(), 0

        def skip_finished() -> None:
            while waiting and not pending.texts and is_finished(waiting[0]):
                waiting.popleft()

        for number, mask in enumerate(self.unique.kept):
            stop = start + int(np.count_nonzero(mask))
            skip_finished()
            if not waiting:
                return
            if waiting[0].first < stop:
                for position, text, source in self._documents(number, start):
                    if position < waiting[0].first:
                        continue
                    pending.add(text, permanent_source(source), number >= self.num_heldout)
                    if position + 1 == waiting[0].stop:
                        yield pending.block(waiting.popleft())
                        pending = _Pending()
                        skip_finished()
                        if not waiting or waiting[0].first >= stop:
                            break
            start = stop
        assert not pending.texts, "a block is incomplete"

    def _documents(self, number: int, start: int) -> Iterator[tuple[int, bytes, str]]:
        """Yield (position among all unique documents, text, source) for an input's documents."""
        task, scan, kept = self.tasks[number], self.scans[number], self.unique.kept[number]
        highs, lows = scan.by_position("high"), scan.by_position("low")
        position, read = start, 0
        counts = SourceCounts(logged=False)
        for row, document in enumerate(read_documents([task.path], task.sources, counts)):
            read += 1
            text = document.text.encode("utf-8")
            if row >= len(kept) or halves(document_digest(text)) != (highs[row], lows[row]):
                raise ValueError(_changed(task.path))
            if kept[row]:
                yield position, text, document.source
                position += 1
        if read < len(kept):
            raise ValueError(_changed(task.path))


@dataclass
class _Pending:
    """The documents of a block that have been read so far."""

    texts: list[bytes] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    filtered: list[bool] = field(default_factory=list)

    def add(self, text: bytes, source: str, filtered: bool) -> None:
        self.texts.append(text)
        self.sources.append(source)
        self.filtered.append(filtered)

    def block(self, span: BlockSpan) -> DocumentBlock:
        return DocumentBlock(span.number, self.texts, self.sources, self.filtered, span.digest)


def _changed(path: str) -> str:
    return (
        f"{path}: this file changed while the corpus was being prepared. Run the preparation again."
    )


def screen_part(
    screener: Screener,
    reader: BlockReader,
    files: SharedFiles,
    plan: Mapping[str, Any],
    part: tuple[int, int],
    num_workers: int,
    progress: Callable[[float], None],
) -> Screening:
    """Screen one part of the blocks and then any other unscreened blocks, and combine all results.

    The combined result is kept. It is not computed again if another part, or an earlier run of this
    part, has already kept it.

    Args:
      screener: the settings.
      reader: the blocks.
      files: the files that the parts exchange.
      plan: everything that determines the corpus.
      part: the index of the part, and the number of parts.
      num_workers: the number of worker processes.
      progress: called after every block, with the fraction of blocks that this part has processed.

    Raises:
      ValueError: an input has changed since it was scanned.
      OSError: a file cannot be written, or a worker died.
    """
    documents = reader.digest()
    if screening := _kept(files, plan, documents):
        return screening
    directory = files.work / SCREENING
    blocks = screener.for_blocks(directory)
    spans = reader.spans(blocks.fingerprint)
    index, count = part
    own = [span for span in spans if span.number * count // max(1, len(spans)) == index]
    seen = 0

    def report() -> None:
        nonlocal seen
        seen += 1
        progress(min(1.0, seen / len(spans)))

    for chosen in (own, spans):
        files.fetch_all(SCREENING)
        texts = reader.read(chosen, lambda span: _is_screened(span, blocks, files))
        with sharing_blocks(files) as share:
            screen_blocks(texts, blocks, num_workers, report, share)
    # Another part may have kept the combined result in the meantime.
    if screening := _kept(files, plan, documents):
        return screening
    output = directory / f"part-{index}-of-{count}"
    screening = screener.combine(directory, _sizes(spans), output)
    keep_screening(files, screening, plan, documents)
    return screening


def _kept(files: SharedFiles, plan: Mapping[str, Any], documents: bytes) -> Screening | None:
    """Return the combined result if it was kept and is for the same documents."""
    kept = kept_screening(files, plan)
    return kept.screening if kept is not None and kept.documents == documents.hex() else None


def _is_screened(span: BlockSpan, blocks: BlockScreener, files: SharedFiles) -> bool:
    """Return whether this or another machine has screened a block."""
    if not blocks.has(span.number, span.digest):
        files.fetch(*block_names(span.number))
    return blocks.has(span.number, span.digest)


def combine_parts(
    screener: Screener, reader: BlockReader, files: SharedFiles, plan: Mapping[str, Any]
) -> Screening:
    """Combine the results of all parts, unless a part has kept the combined result.

    Args:
      screener: the settings.
      reader: the blocks.
      files: the files that the parts exchange.
      plan: everything that determines the corpus.

    Raises:
      ValueError: a block has not been screened, or its documents have changed since.
      NotWritten: a file cannot be written.
    """
    documents = reader.digest()
    if screening := _kept(files, plan, documents):
        return screening
    directory = files.work / SCREENING
    blocks = screener.for_blocks(directory)
    spans = reader.spans(blocks.fingerprint)
    files.fetch_all(SCREENING)
    missing = [span for span in spans if not _is_screened(span, blocks, files)]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(spans)} blocks of documents have not been screened, or have "
            "changed since. Run all parts, and then repeat --merge."
        )
    screening = screener.combine(directory, _sizes(spans), files.work / SCREENED)
    keep_screening(files, screening, plan, documents)
    return screening


def _sizes(spans: Sequence[BlockSpan]) -> list[int]:
    return [span.stop - span.first for span in spans]
