"""Turn units of documents into shard files, one unit per shard, in worker processes."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from bert_jax.corpus.document_stream import SPLITS, Split
from bert_jax.corpus.manifest import ShardInfo, SplitInfo, field_values, json_fields
from bert_jax.corpus.packing import (
    Encoder,
    TokenizedDocument,
    fill_rate,
    pack_documents,
    tokenize_document,
)
from bert_jax.corpus.records import encode_record, token_dtype
from bert_jax.corpus.units import Unit
from bert_jax.files import NotWritten, file_sha256, full_disk, temporary_beside, write_file, writing
from bert_jax.filtering.document_filter import clean_document
from bert_jax.filtering.options import FilterOptions
from bert_jax.json_files import read_json_object
from bert_jax.processes import cause_of_death, end_with_parent
from bert_jax.tokenizers.tokenizer import Tokenizer

# Store one uncompressed record per chunk, which is fastest for random reads by index.
_WRITER_OPTIONS = "group_size:1,uncompressed"


@dataclass(frozen=True)
class ShardSettings:
    """The settings, apart from the tokenizer, that determine a shard's bytes.

    Attributes:
      max_length: the length of a record in tokens.
      max_fragments: the maximum number of fragments in a record.
      token_bytes: the size of a stored token id, 2 or 4.
      language: the language whose sentence rules are used.
      unknown_id: the id of the unknown token, whose occurrences are counted.
      filters: the options that may remove lines from documents; see `clean_document`.
      cleaned_splits: the splits whose documents are cleaned with these options.
    """

    max_length: int
    max_fragments: int
    token_bytes: int
    language: str
    unknown_id: int
    filters: FilterOptions = field(default_factory=FilterOptions)
    cleaned_splits: tuple[Split, ...] = SPLITS


@dataclass(frozen=True)
class UnitResult:
    """The shard that was written for a unit, and the unit's counts.

    Attributes:
      unit_digest: the digest of the unit.
      num_text_bytes: the size of the unit's text in UTF-8.
      num_documents: the number of documents with at least one token.
      num_empty_documents: the number of documents without tokens.
      num_fragments: the number of fragments in the shard's records.
      num_sentences: the number of sentences.
      num_tokens: the number of tokens.
      shard: the shard file.
      num_unknown: the number of unknown tokens; None in results from versions that did not count
        them.
    """

    unit_digest: str
    num_text_bytes: int
    num_documents: int
    num_empty_documents: int
    num_fragments: int
    num_sentences: int
    num_tokens: int
    shard: ShardInfo
    num_unknown: int | None = None


def shard_path(directory: Path, name: str) -> Path:
    """Return the path of a unit's shard during preparation."""
    return directory / f"{name}.arrayrecord"


def write_records(path: Path, blobs: Sequence[bytes]) -> ShardInfo:
    """Write records to a shard atomically, so that a power failure leaves no partial shard.

    Raises:
      NotWritten: the shard cannot be written.
    """
    with writing(path), temporary_beside(path) as temporary:
        try:
            writer = ArrayRecordWriter(str(temporary), _WRITER_OPTIONS)
            for blob in blobs:
                writer.write(blob)
            writer.close()
        # ArrayRecord raises this type for any error, even for a full disk.
        except RuntimeError as error:
            raise NotWritten(path, full_disk(error) or str(error)) from error
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        info = ShardInfo(path.name, len(blobs), temporary.stat().st_size, file_sha256(temporary))
        os.replace(temporary, path)
    return info


def write_shard(
    unit: Unit, encoder: Encoder, settings: ShardSettings, directory: Path
) -> UnitResult:
    """Tokenize a unit, pack it and write its shard.

    The result is written last, which marks the shard as finished.

    Raises:
      OSError: the shard cannot be written.
    """
    documents = _tokenize(unit, encoder, settings)
    nonempty = [document for document in documents if len(document.token_ids)]
    records = pack_documents(nonempty, settings.max_length, settings.max_fragments)
    path = shard_path(directory, unit.name)
    blobs = [encode_record(fragments, settings.token_bytes) for fragments in records]
    shard = write_records(path, blobs)
    result = UnitResult(
        unit_digest=unit.digest,
        num_text_bytes=unit.num_bytes,
        num_documents=len(nonempty),
        num_empty_documents=len(documents) - len(nonempty),
        num_fragments=sum(map(len, records)),
        num_sentences=sum(len(document.sentence_starts) for document in nonempty),
        num_tokens=sum(len(document.token_ids) for document in nonempty),
        shard=shard,
        num_unknown=sum(
            int(np.count_nonzero(document.token_ids == settings.unknown_id))
            for document in nonempty
        ),
    )
    content = dataclasses.asdict(result, dict_factory=json_fields)
    write_file(path.with_suffix(".json"), json.dumps(content))
    return result


def result_of(content: Mapping[str, Any]) -> UnitResult:
    """Parse the content of a result file.

    Raises:
      KeyError: a field is missing.
      TypeError: there is an unknown field.
    """
    return UnitResult(**{**field_values(content), "shard": ShardInfo(**content["shard"])})


def read_result(directory: Path, name: str) -> UnitResult | None:
    """Return the result of a finished unit, or None if its shard is missing or damaged."""
    path = shard_path(directory, name)
    try:
        result = result_of(read_json_object(path.with_suffix(".json")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not path.is_file() or file_sha256(path) != result.shard.sha256:
        return None
    return result


def split_info(results: Sequence[UnitResult], max_length: int) -> SplitInfo:
    """Return the manifest entry for a split that consists of these units, in the given order."""
    records = sum(result.shard.num_records for result in results)
    fragments = sum(result.num_fragments for result in results)
    tokens = sum(result.num_tokens for result in results)
    unknown = [result.num_unknown for result in results]
    counted = [count for count in unknown if count is not None]
    return SplitInfo(
        shards=tuple(result.shard for result in results if result.shard.num_records),
        num_records=records,
        num_fragments=fragments,
        num_documents=sum(result.num_documents for result in results),
        num_sentences=sum(result.num_sentences for result in results),
        num_tokens=tokens,
        fill_rate=fill_rate(tokens, fragments, records, max_length),
        num_unknown=sum(counted) if len(counted) == len(unknown) else None,
    )


def _tokenize(unit: Unit, encoder: Encoder, settings: ShardSettings) -> list[TokenizedDocument]:
    dtype = token_dtype(settings.token_bytes)
    documents = []
    for document_id, data in zip(unit.document_ids, unit.texts, strict=True):
        text = data.decode("utf-8")
        if unit.split in settings.cleaned_splits:
            text = clean_document(text, settings.filters)
        try:
            tokens = tokenize_document(text, encoder, settings.language, dtype)
        except BaseException as error:  # A panic in Rust code is not a subclass of Exception.
            error.add_note(f"in the document that begins with {text[:80]!r}")
            raise
        documents.append(TokenizedDocument(document_id, *tokens))
    return documents


@dataclass(frozen=True)
class FinishedUnit:
    """A finished unit, as reported by its worker.

    Attributes:
      name: the unit's name.
      result: the unit's result.
      peak_memory: the maximum memory that the worker has used so far, in bytes.
    """

    name: str
    result: UnitResult
    peak_memory: int


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    unit: str = ""  # The name of the worker's current unit; empty while the worker is idle.


class WorkerPool:
    """A context manager for a pool of up to `num_workers` processes, which are killed on exit.

    A process is started when there is a unit but no idle process. Processes are spawned, because a
    fork would lose the parent's threads (from a reader or a tokenizer) but keep their locks.
    """

    def __init__(self, num_workers: int, tokenizer: Path, settings: ShardSettings, directory: Path):
        self._num_workers = num_workers
        self._arguments = (tokenizer, settings, directory)
        self._workers: list[_Worker] = []

    def submit(self, unit: Unit) -> Iterator[FinishedUnit]:
        """Give a unit to the first idle worker, and yield the units that finish in the meantime.

        Raises:
          OSError: a worker cannot write a file, or was killed.
        """
        if self._idle() is None and len(self._workers) < self._num_workers:
            self._workers.append(self._start())
        while (worker := self._idle()) is None:
            yield from self._wait()
        worker.unit = unit.name
        try:
            worker.connection.send(unit)
        except (BrokenPipeError, ConnectionResetError):
            _receive(worker)  # `_receive` raises the error that ended the worker.
            raise

    def _idle(self) -> _Worker | None:
        return next((worker for worker in self._workers if not worker.unit), None)

    def _start(self) -> _Worker:
        context = get_context("spawn")
        local, remote = context.Pipe()
        process = context.Process(target=_serve, args=(remote, *self._arguments), daemon=True)
        process.start()
        remote.close()
        return _Worker(process, local)

    def drain(self) -> Iterator[FinishedUnit]:
        """Yield the remaining units as they finish."""
        while any(worker.unit for worker in self._workers):
            yield from self._wait()

    def _wait(self) -> Iterator[FinishedUnit]:
        """Wait until at least one busy worker finishes its unit."""
        busy = {worker.connection: worker for worker in self._workers if worker.unit}
        for ready in connection.wait(list(busy)):
            worker = busy[ready]  # type: ignore[index]
            finished = _receive(worker)
            worker.unit = ""
            yield finished

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            # Killing is safe, since files are renamed only when they are complete.
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()


def _receive(worker: _Worker) -> FinishedUnit:
    try:
        message = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        raise _death(worker) from None
    if isinstance(message, BaseException):
        raise message
    return message


def _death(worker: _Worker) -> OSError:
    cause = cause_of_death(worker.process, "Use fewer workers or smaller units")
    return OSError(f"the worker preparing {worker.unit} {cause}")


def _serve(requests: Connection, tokenizer: Path, settings: ShardSettings, directory: Path) -> None:
    """Process units until the parent process exits, sending back their results or an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    # A worker that outlives a killed preparation could replace a shard of the next preparation.
    end_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # The workers already use all cores.
    try:
        encoder = Tokenizer.load(tokenizer)
        while True:
            unit = requests.recv()
            result = write_shard(unit, encoder, settings, directory)
            requests.send(FinishedUnit(unit.name, result, peak_memory()))
            del unit, result
    except EOFError:
        return
    # Any other error is a bug, so its traceback goes to standard error.
    except (ValueError, OSError, MemoryError) as error:
        requests.send(error)


def peak_memory() -> int:
    """Return the maximum memory that this process has used, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # On Linux, ru_maxrss includes the size of the spawning process.
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
