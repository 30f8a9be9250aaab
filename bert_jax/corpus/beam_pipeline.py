"""Prepare a corpus with Apache Beam, on any of its runners.

Two pipelines share the work. The first one scans the inputs. From the scans, this process computes
the units; see `assign`. The second one reads the inputs again, groups their documents by unit, and
makes one shard per unit. Workers write whole files to the output directory. The content of these
files depends only on the plan, so a runner may repeat any step. This process writes the manifest
last.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np

from bert_jax.corpus.assignment import Assignment, AssignOptions, Start, UnitSpan
from bert_jax.corpus.beam_process import Runner, run_pipeline
from bert_jax.corpus.bucket_workspace import BucketWorkspace
from bert_jax.corpus.document_stream import Split
from bert_jax.corpus.manifest import TOKENIZER, Manifest
from bert_jax.corpus.part_assignment import assign_documents, assign_options
from bert_jax.corpus.parts import all_scans, finished_units, publish_units
from bert_jax.corpus.requests import CorpusRequest, advising_to_resume, warn_about_marks
from bert_jax.corpus.scan_pool import fetched_scan
from bert_jax.corpus.scans import ScanTask, scan_files, scan_input, scan_tasks
from bert_jax.corpus.shards import ShardSettings, write_shard
from bert_jax.corpus.shared_files import SharedFiles, WorkPlace, files_below
from bert_jax.corpus.unit_reader import placed_documents
from bert_jax.corpus.units import Unit, shard_name
from bert_jax.corpus.workspace import WORK, Workspace, finished_corpus
from bert_jax.files import write_file
from bert_jax.storage.locations import absolute
from bert_jax.storage.urls import ObjectUrl, parse_location
from bert_jax.text.sources import source_name
from bert_jax.tokenizers.tokenizer import Tokenizer

_BEAM = "beam"  # This process and the workers exchange files in this subdirectory.
_UNITS, _ERROR = f"{_BEAM}/units.json", f"{_BEAM}/error-"
_CHUNK_BYTES = 1 << 20  # Documents are shuffled in chunks of this size.

# Some documents of a unit: their ids, and their texts in UTF-8.
_Chunk = tuple[list[int], list[bytes]]


def make_with_beam(request: CorpusRequest, runner: str, runner_args: str) -> Manifest:
    """Prepare a corpus with an Apache Beam runner.

    Args:
      request: the corpus. Its number of workers applies only to the work on this machine, which
        consists of screening documents and checking finished shards.
      runner: the name of a Beam runner, such as "DirectRunner".
      runner_args: options for the runner, separated by spaces as in a shell.

    Raises:
      ValueError: the runner, the inputs or the contents of the output directory are unusable, or
        too many tokens are unknown.
      OSError: a file cannot be read or written, or a pipeline failed. Finished work is kept.
    """
    chosen = _check_runner(runner, runner_args)
    manifest = finished_corpus(request.output, request.plan)
    if manifest is not None:
        return manifest
    with advising_to_resume(request.output), _workspace(request) as workspace:
        files = workspace.files
        for leftover in files.names(_BEAM):
            files.remove(leftover)
        (workspace.work / _BEAM).mkdir(exist_ok=True)
        request.tokenizer.save(workspace.work / TOKENIZER)
        files.share(*files_below(workspace.work, TOKENIZER))
        shared = WorkPlace(absolute(request.output / WORK), uuid.uuid4().hex)
        preparation = request.preparation(workspace.work)
        warn_about_marks(request, preparation)
        tasks = scan_tasks(request.inputs, request.plan, request.options)
        _scan_inputs(_absolute(tasks), files, shared, chosen)
        scans = all_scans(request, tasks, files)
        # If filters are set, this machine screens the documents.
        assignment = assign_documents(request, preparation, tasks, scans, files, (0, 1))
        units = finished_units(
            workspace.keeper, workspace.work, assignment.units, request.num_workers
        )
        missing = [span for span, result in units if result is None]
        if missing:
            _make_units(request, _absolute(tasks), assignment, missing, files, shared, chosen)
        return publish_units(request, workspace)


def _workspace(request: CorpusRequest) -> Workspace | BucketWorkspace:
    if isinstance(request.output, ObjectUrl):
        return BucketWorkspace(request.output, request.plan)
    # Paths are absolute, because the workers may run in another directory.
    return Workspace(request.output.resolve(), request.plan)


def _scan_inputs(
    tasks: Sequence[ScanTask], files: SharedFiles, shared: WorkPlace, runner: Runner
) -> None:
    unscanned = [task for task in tasks if fetched_scan(task, files) is None]
    if unscanned:
        run_pipeline(runner, _add_scans, unscanned, shared)
        _raise_recorded(files)
        files.forget()
        for task in unscanned:
            fetched_scan(task, files)


def _add_scans(pipeline: beam.Pipeline, tasks: Sequence[ScanTask], shared: WorkPlace) -> None:
    _ = (
        pipeline
        | "Inputs" >> beam.Create(tasks)
        | "DistributeInputs" >> beam.Reshuffle()
        | "Scan" >> beam.Map(_scan, shared)
    )


def _make_units(
    request: CorpusRequest,
    tasks: Sequence[ScanTask],
    assignment: Assignment,
    missing: Sequence[UnitSpan],
    files: SharedFiles,
    shared: WorkPlace,
    runner: Runner,
) -> None:
    """Make the shards of some units, reading only the inputs that contain their documents."""
    units = {
        span.name: (span.split, span.index, span.num_documents, span.digest) for span in missing
    }
    write_file(files.work / _UNITS, json.dumps(units))
    files.share(_UNITS)
    inputs = []
    for task, kept, start in zip(tasks, assignment.kept, assignment.starts, strict=True):
        if any(span.first_input <= task.number <= span.last_input for span in missing):
            np.save(files.work / _kept_name(task.number), kept)
            files.share(_kept_name(task.number))
            inputs.append((task, start))
    reading = ReadDocuments(shared, assign_options(request))
    run_pipeline(runner, _add_shards, inputs, reading, MakeShards(shared, request.settings))
    _raise_recorded(files)


def _add_shards(
    pipeline: beam.Pipeline,
    inputs: Sequence[tuple[ScanTask, Start]],
    reading: ReadDocuments,
    making: MakeShards,
) -> None:
    _ = (
        pipeline
        | "Inputs" >> beam.Create(inputs)
        | "DistributeInputs" >> beam.Reshuffle()
        | "ReadDocuments" >> beam.ParDo(reading).with_output_types(tuple[str, Any])
        | "GroupByUnit" >> beam.GroupByKey()
        | "MakeShards" >> beam.ParDo(making)
    )


def _scan(task: ScanTask, shared: WorkPlace) -> None:
    """Scan an input, and record the error if the user has to fix the input."""
    files = shared.files()
    try:
        scan_input(task, files.work)
        files.share(*scan_files(task.number))
    except ValueError as error:  # If the error were raised, a runner would retry in vain.
        _record_error(files, task, error)


class ReadDocuments(beam.DoFn):
    """Read the kept documents of an input, and yield them in chunks keyed by unit."""

    def __init__(self, shared: WorkPlace, options: AssignOptions):
        self._shared, self._options = shared, options

    def setup(self) -> None:
        """Read the names of the units to make."""
        self._files = self._shared.files()
        self._units = frozenset(_read_units(self._files))

    def process(self, element: tuple[ScanTask, Start]) -> Iterator[tuple[str, _Chunk]]:
        """Yield (unit, chunk) pairs for an input, given the state of the assignment before it."""
        task, start = element
        scan = fetched_scan(task, self._files)
        if scan is None:
            raise OSError(f"{self._shared.work}: the scan of {task.path} is missing")
        kept_name = _kept_name(task.number)
        self._files.fetch(kept_name)
        kept = np.load(self._files.work / kept_name)
        documents = placed_documents(task, scan, kept, start, self._options, self._units)
        chunks: dict[str, _Chunk] = {}
        sizes: dict[str, int] = {}
        try:
            for document in documents:
                name = shard_name(document.split, document.unit)
                ids, texts = chunks.setdefault(name, ([], []))
                ids.append(document.document_id)
                texts.append(document.text)
                sizes[name] = sizes.get(name, 0) + len(document.text)
                if sizes[name] >= _CHUNK_BYTES:
                    yield name, chunks.pop(name)
                    del sizes[name]
        except ValueError as error:
            _record_error(self._files, task, error)
            return
        yield from chunks.items()


class MakeShards(beam.DoFn):
    """Make the shard of a unit from its documents, which arrive in any order."""

    def __init__(self, shared: WorkPlace, settings: ShardSettings):
        self._shared, self._settings = shared, settings

    def setup(self) -> None:
        """Load the tokenizer, and read the units to make."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # The runner already uses all cores.
        self._tokenizer = Tokenizer.load(parse_location(self._shared.work) / TOKENIZER)
        self._files = self._shared.files()
        self._units = _read_units(self._files)

    def process(self, element: tuple[str, Iterable[_Chunk]]) -> None:
        """Write the shard of a unit, given its name and chunks."""
        name, chunks = element
        # If a runner has read an input twice, the dict drops the repeated documents.
        texts: dict[int, bytes] = {}
        for ids, documents in chunks:
            texts.update(zip(ids, documents, strict=True))
        split, index, num_documents, digest = self._units[name]
        if len(texts) < num_documents:
            return  # An input could not be read, and its error was recorded.
        ordered = sorted(texts)
        unit = Unit(split, index, ordered, [texts[number] for number in ordered], digest)
        write_shard(unit, self._tokenizer, self._settings, self._files.work)
        self._files.keep_shard(name)


def _read_units(files: SharedFiles) -> dict[str, tuple[Split, int, int, str]]:
    files.fetch(_UNITS)
    content = (files.work / _UNITS).read_text(encoding="utf-8")
    return {name: tuple(unit) for name, unit in json.loads(content).items()}


def _kept_name(number: int) -> str:
    return f"{_BEAM}/kept-{number:06d}.npy"


def _absolute(tasks: Sequence[ScanTask]) -> list[ScanTask]:
    return [dataclasses.replace(task, path=source_name(task.path, task.sources)) for task in tasks]


def _record_error(files: SharedFiles, task: ScanTask, error: ValueError) -> None:
    name = f"{_ERROR}{task.number:06d}.txt"
    (files.work / _BEAM).mkdir(exist_ok=True)
    write_file(files.work / name, str(error))
    files.share(name)


def _raise_recorded(files: SharedFiles) -> None:
    """Raise the error of the first input that cannot be used."""
    files.forget()
    for name in files.names(_BEAM):
        if name.startswith(_ERROR):
            files.fetch(name)
            raise ValueError((files.work / name).read_text(encoding="utf-8"))


def _check_runner(runner: str, runner_args: str) -> Runner:
    try:
        words = shlex.split(runner_args)
    except ValueError as error:
        raise ValueError(f"runner_args={runner_args}: {error}.") from error
    chosen = Runner(runner, words)
    try:
        chosen.pipeline()
    except ValueError as error:
        raise ValueError(f"runner={runner}: {error}") from error
    return chosen
