"""Prepare one of several parts of a corpus, and merge the parts that were made.

Parts may run on different machines at different times. They share only the output directory, and
never wait for each other:

1. A part scans its share of the inputs, and then all inputs that no other part has scanned yet.
2. From all scans, every part computes the same units, each with the documents of one shard; see
   `assign`.
3. It reads the inputs that contain its share of the units again, and makes the shards.

Parts write whole files, whose content does not depend on which part writes them. Therefore, the
number of parts may change between runs, and work that is done twice does no harm.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bert_jax.corpus.assignment import Assignment, UnitSpan
from bert_jax.corpus.bucket_parts import BucketPartWorkspace
from bert_jax.corpus.bucket_workspace import BucketWorkspace
from bert_jax.corpus.manifest import TOKENIZER, Manifest
from bert_jax.corpus.part_assignment import assign_documents, assign_options
from bert_jax.corpus.part_workspace import PartWorkspace, check_has_plan, numbers_of_parts
from bert_jax.corpus.preparation import Preparation
from bert_jax.corpus.progress import ProgressMeter
from bert_jax.corpus.requests import (
    CorpusRequest,
    advising_to_resume,
    explaining_unknown,
    publish,
    warn_about_marks,
)
from bert_jax.corpus.scan_pool import fetched_scan, scan_missing
from bert_jax.corpus.scans import Scan, ScanTask, read_scan, scan_tasks, total_counts
from bert_jax.corpus.shard_keeper import ShardKeeper
from bert_jax.corpus.shards import FinishedUnit, UnitResult, WorkerPool
from bert_jax.corpus.shared_files import SharedFiles
from bert_jax.corpus.unit_reader import UnitReader
from bert_jax.corpus.workspace import WORK, Workspace, finished_corpus
from bert_jax.storage.urls import Location, ObjectUrl

_MAX_NAMES = 5


@dataclass(frozen=True)
class Part:
    """One of several parts of a corpus, each prepared by its own process.

    Attributes:
      index: the index of the part, from 0.
      count: the number of parts.
    """

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Part:
        """Parse a part that is given as "INDEX/COUNT".

        Raises:
          ValueError: the text has a different form, or there is no such part.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise ValueError(
                f"part={text}: expected I/N with I from 0 to N - 1, such as 0/4 for the first of "
                "four parts."
            )
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class PreparedPart:
    """A finished part of a corpus.

    Attributes:
      path: the corpus directory.
      part: the part, as "INDEX/COUNT".
      num_shards: the number of shards in the part.
      total_shards: the number of shards in the corpus.
    """

    path: Location
    part: str
    num_shards: int
    total_shards: int


def make_part(request: CorpusRequest, part: Part) -> PreparedPart:
    """Scan inputs, and make the shards of one part.

    Raises:
      ValueError: the inputs or the contents of the output directory are unusable, too many tokens
        in this part are unknown, or the same part is already running.
      OSError: a file cannot be read or written, or a worker died. Finished work is kept.
    """
    manifest = finished_corpus(request.output, request.plan)
    if manifest is not None:
        total = len(manifest.train.shards) + len(manifest.heldout.shards)
        return PreparedPart(request.output, str(part), 0, total)
    with advising_to_resume(request.output), _part_workspace(request, part) as workspace:
        preparation = request.preparation(workspace.work)
        preparation.keeper = workspace.keeper
        tokenizer = workspace.work / f"{TOKENIZER}-{part.index}-of-{part.count}"
        request.tokenizer.save(tokenizer)
        if part.index == 0:
            warn_about_marks(request, preparation)
        tasks = scan_tasks(request.inputs, request.plan, request.options)
        files = workspace.files
        scan_missing(_scan_order(tasks, part), files, min(request.num_workers, len(tasks)))
        scans = all_scans(request, tasks, files)
        place = (part.index, part.count)
        assignment = assign_documents(request, preparation, tasks, scans, files, place)
        mine = part_of(assignment.units, part)
        reader = UnitReader(tasks, scans, assignment, assign_options(request))
        with explaining_unknown(request, preparation, None):
            _make_units(request, preparation, reader, mine, tokenizer)
            preparation.unknown.check()
        workspace.keeper.wait()
    return PreparedPart(request.output, str(part), len(mine), len(assignment.units))


def _part_workspace(request: CorpusRequest, part: Part) -> PartWorkspace | BucketPartWorkspace:
    if isinstance(request.output, ObjectUrl):
        return BucketPartWorkspace(request.output, request.plan, part.index, part.count)
    return PartWorkspace(request.output, request.plan, part.index, part.count)


def _make_units(
    request: CorpusRequest,
    preparation: Preparation,
    reader: UnitReader,
    mine: Sequence[UnitSpan],
    tokenizer: Path,
) -> None:
    """Make the shards of some units, except for those that already exist."""
    total_bytes = max(1, sum(span.num_text_bytes for span in mine))
    meter = ProgressMeter()

    unchecked = deque(span.name for span in mine)

    def report(name: str, result: UnitResult) -> None:
        preparation.results[name] = result
        if request.progress is not None:
            request.progress(meter.read(min(1.0, meter.text_bytes / total_bytes)))
        preparation.check_unknown(unchecked)

    def collect(finished: Iterable[FinishedUnit]) -> None:
        for unit in finished:
            preparation.keeper.keep(preparation.work, unit.name)
            meter.add_new(unit.result, unit.peak_memory)
            report(unit.name, unit.result)

    missing = []
    for span, result in finished_units(
        preparation.keeper, preparation.work, mine, request.num_workers
    ):
        if result is None:
            missing.append(span)
        else:
            meter.add_kept(result)
            report(span.name, result)
    pool = WorkerPool(request.num_workers, tokenizer, preparation.settings, preparation.work)
    with pool:
        for unit in reader.read(missing):
            collect(pool.submit(unit))
        collect(pool.drain())


def merge_parts(request: CorpusRequest) -> Manifest:
    """Turn the finished parts of a corpus into a corpus, without reading the inputs.

    Raises:
      ValueError: a part has not been made or is still running, too many tokens are unknown, or a
        requested split is empty. Finished parts are kept, unless a split is empty.
      OSError: a file cannot be read or written.
    """
    manifest = finished_corpus(request.output, request.plan)
    if manifest is not None:
        return manifest
    check_has_plan(request.output, request.plan)
    with advising_to_resume(request.output), request.workspace() as workspace:
        return publish_units(request, workspace)


def publish_units(request: CorpusRequest, workspace: Workspace | BucketWorkspace) -> Manifest:
    """Publish a corpus whose scans and shards are all in the directory for unfinished work."""
    tasks = scan_tasks(request.inputs, request.plan, request.options)
    for task in tasks:
        fetched_scan(task, workspace.files)
    scans = all_scans(request, tasks, workspace.files)
    preparation = request.preparation(workspace.work)
    assignment = assign_documents(request, preparation, tasks, scans, workspace.files)
    preparation.source = total_counts(scans, request.inputs.paths)
    preparation.stream = assignment.counts
    missing = []
    for span, result in finished_units(
        workspace.keeper, workspace.work, assignment.units, request.num_workers
    ):
        if result is None:
            missing.append(span)
        else:
            preparation.results[span.name] = result
    if missing:
        raise ValueError(_missing_units(request.output, assignment, missing))
    request.tokenizer.save(workspace.work / TOKENIZER)
    preparation.unknown.keep_finished_work()
    with explaining_unknown(request, preparation, workspace):
        order = in_stream_order(assignment.units, request.options.unit_bytes)
        preparation.check_unknown(deque(order))
    meter = ProgressMeter()
    for result in preparation.results.values():
        meter.add_kept(result)
    if request.progress is not None:
        request.progress(meter.read(1.0))
    return publish(request, preparation, workspace)


def part_of(units: Sequence[UnitSpan], part: Part) -> list[UnitSpan]:
    """Return the units of one part: for each split, a range with an equal share of the text."""
    chosen: list[UnitSpan] = []
    for split in dict.fromkeys(span.split for span in units):
        spans = [span for span in units if span.split == split]
        total, before = sum(span.num_text_bytes for span in spans), 0
        for span in spans:
            middle = before + span.num_text_bytes / 2
            before += span.num_text_bytes
            if min(int(middle * part.count / max(1, total)), part.count - 1) == part.index:
                chosen.append(span)
    return chosen


def finished_units(
    keeper: ShardKeeper, work: Path, units: Sequence[UnitSpan], num_threads: int
) -> Iterator[tuple[UnitSpan, UnitResult | None]]:
    """Yield (unit, result); the result is None if the shard is missing, damaged or outdated."""
    keeper.refresh()
    with ThreadPoolExecutor(num_threads) as pool:  # Hashing releases Python's global lock.
        results = pool.map(lambda span: keeper.kept(work, span.name), units)
        for span, result in zip(units, results, strict=True):
            usable = result is not None and result.unit_digest == span.digest
            yield span, result if usable else None


def in_stream_order(units: Sequence[UnitSpan], unit_bytes: int) -> list[str]:
    """Return the names of the units in the order in which `build_units` yields them."""
    full = [span for span in units if span.is_full(unit_bytes)]
    rest = [span for span in units if not span.is_full(unit_bytes)]
    return [span.name for span in [*sorted(full, key=lambda span: span.last_document), *rest]]


def _scan_order(tasks: Sequence[ScanTask], part: Part) -> list[ScanTask]:
    """Return the tasks in the order in which a part looks for inputs without a scan.

    After its own inputs, a part scans the inputs of the following parts, beginning with the inputs
    that each of these parts scans last.
    """
    shares: list[list[ScanTask]] = [[] for _ in range(part.count)]
    total, before = sum(task.description["num_bytes"] for task in tasks), 0
    for task in tasks:
        middle = before + task.description["num_bytes"] / 2
        before += task.description["num_bytes"]
        shares[min(int(middle * part.count / max(1, total)), part.count - 1)].append(task)
    order = list(shares[part.index])
    for distance in range(1, part.count):
        order += reversed(shares[(part.index + distance) % part.count])
    return order


def all_scans(request: CorpusRequest, tasks: Sequence[ScanTask], files: SharedFiles) -> list[Scan]:
    """Return the scans of all inputs.

    Raises:
      ValueError: an input has no scan.
    """
    scans = [read_scan(task, files.work) for task in tasks]
    missing = [task.path for task, scan in zip(tasks, scans, strict=True) if scan is None]
    if missing:
        raise ValueError(
            f"{request.output}: {len(missing)} of {len(tasks)} inputs have not been read, or "
            f"have changed since: {_some(missing)}. Run all parts, and then repeat --merge."
        )
    return [scan for scan in scans if scan is not None]


def _missing_units(output: Location, assignment: Assignment, missing: Sequence[UnitSpan]) -> str:
    names = [span.name for span in missing]
    counts = numbers_of_parts(output / WORK)
    parts = []
    if len(counts) == 1:  # If there are several counts, the number of parts has changed.
        (count,) = counts
        parts = [
            str(part)
            for part in (Part(index, count) for index in range(count))
            if {span.name for span in part_of(assignment.units, part)} & set(names)
        ]
    which = f" They belong to part {', '.join(parts)}." if parts else ""
    return (
        f"{output}: {len(missing)} of {len(assignment.units)} shards are missing, "
        f"damaged or made from other text: {_some(names)}.{which} Run the missing parts again, "
        "and then repeat --merge."
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
