"""Turn units of documents into finished shard files, in worker processes."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from bert_jax.corpus.manifest import ShardInfo, SplitInfo
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
from bert_jax.json_files import read_json_object
from bert_jax.processes import cause_of_death, end_with_parent
from bert_jax.tokenizers.tokenizer import Tokenizer

# One record a chunk, not compressed: what random reads by index are fastest on.
_WRITER_OPTIONS = "group_size:1,uncompressed"


@dataclass(frozen=True)
class ShardSettings:
    """The settings, apart from the tokenizer, that determine a shard's bytes.

    unknown_id: the id of the unknown token, which is counted.
    """

    max_length: int
    max_pieces: int
    token_bytes: int
    language: str
    unknown_id: int


@dataclass(frozen=True)
class UnitResult:
    """Counts of one unit, and its shard. `unit_digest` is the digest of its source.

    num_unknown: the number of unknown tokens; None in older results, which did not record it.
    """

    unit_digest: str
    num_text_bytes: int
    num_documents: int
    num_empty_documents: int
    num_pieces: int
    num_sentences: int
    num_tokens: int
    shard: ShardInfo
    num_unknown: int | None = None


def shard_path(directory: Path, name: str) -> Path:
    """Where a unit's shard lies while the corpus is being prepared."""
    return directory / f"{name}.arrayrecord"


def write_records(path: Path, blobs: Sequence[bytes]) -> ShardInfo:
    """Write records to a shard that is there whole or not at all, also after a power cut.

    Raises:
        NotWritten: it cannot be written.
    """
    with writing(path), temporary_beside(path) as temporary:
        try:
            writer = ArrayRecordWriter(str(temporary), _WRITER_OPTIONS)
            for blob in blobs:
                writer.write(blob)
            writer.close()
        except RuntimeError as error:  # all that ArrayRecord raises, a full disk included
            raise NotWritten(path, full_disk(error) or str(error)) from error
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        info = ShardInfo(path.name, len(blobs), temporary.stat().st_size, file_sha256(temporary))
        os.replace(temporary, path)
    return info


def write_shard(
    unit: Unit, encoder: Encoder, settings: ShardSettings, directory: Path
) -> UnitResult:
    """Tokenise, pack and write a unit; its result is written last, so what has one is whole.

    Raises:
        OSError: the shard cannot be written.
    """
    documents = _tokenize(unit, encoder, settings)
    filled = [document for document in documents if len(document.token_ids)]
    records = pack_documents(filled, settings.max_length, settings.max_pieces)
    path = shard_path(directory, unit.name)
    shard = write_records(path, [encode_record(each, settings.token_bytes) for each in records])
    result = UnitResult(
        unit_digest=unit.digest,
        num_text_bytes=unit.num_bytes,
        num_documents=len(filled),
        num_empty_documents=len(documents) - len(filled),
        num_pieces=sum(map(len, records)),
        num_sentences=sum(len(document.sentence_starts) for document in filled),
        num_tokens=sum(len(document.token_ids) for document in filled),
        shard=shard,
        num_unknown=sum(
            int(np.count_nonzero(document.token_ids == settings.unknown_id)) for document in filled
        ),
    )
    write_file(path.with_suffix(".json"), json.dumps(dataclasses.asdict(result)))
    return result


def read_result(directory: Path, name: str) -> UnitResult | None:
    """The result of a unit whose shard is here and undamaged; None if it must be made again."""
    path = shard_path(directory, name)
    try:
        content = read_json_object(path.with_suffix(".json"))
        result = UnitResult(**{**content, "shard": ShardInfo(**content["shard"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not path.is_file() or file_sha256(path) != result.shard.sha256:
        return None
    return result


def split_info(results: Sequence[UnitResult], max_length: int) -> SplitInfo:
    """Return the manifest entry of a split made of these units, in their order."""
    records = sum(result.shard.num_records for result in results)
    pieces = sum(result.num_pieces for result in results)
    tokens = sum(result.num_tokens for result in results)
    unknown = [result.num_unknown for result in results]
    counted = [number for number in unknown if number is not None]
    return SplitInfo(
        shards=tuple(result.shard for result in results if result.shard.num_records),
        num_records=records,
        num_pieces=pieces,
        num_documents=sum(result.num_documents for result in results),
        num_sentences=sum(result.num_sentences for result in results),
        num_tokens=tokens,
        fill_rate=fill_rate(tokens, pieces, records, max_length),
        num_unknown=sum(counted) if len(counted) == len(unknown) else None,
    )


def _tokenize(unit: Unit, encoder: Encoder, settings: ShardSettings) -> list[TokenizedDocument]:
    dtype = token_dtype(settings.token_bytes)
    documents = []
    for document_id, data in zip(unit.document_ids, unit.texts, strict=True):
        text = data.decode("utf-8")
        try:
            tokens = tokenize_document(text, encoder, settings.language, dtype)
        except BaseException as error:  # a panic in a library's Rust is no Exception
            error.add_note(f"in the document that begins {text[:80]!r}")
            raise
        documents.append(TokenizedDocument(document_id, *tokens))
    return documents


@dataclass(frozen=True)
class Done:
    """A unit's name, its result, and the most memory its worker has held so far, in bytes."""

    name: str
    result: UnitResult
    peak_memory: int


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    unit: str = ""  # name of the unit it has; empty while it waits for one


class WorkerPool:
    """A context manager around up to `num_workers` processes; leaving it ends them at once.

    A process starts when there is a unit and no other process is free to take it. It is spawned,
    not forked: the parent may hold threads (of a reader, of a tokenizer) that a fork would lose
    together with the locks they hold.
    """

    def __init__(self, num_workers: int, tokenizer: Path, settings: ShardSettings, directory: Path):
        self._num_workers = num_workers
        self._arguments = (tokenizer, settings, directory)
        self._workers: list[_Worker] = []

    def submit(self, unit: Unit) -> Iterator[Done]:
        """Hand a unit to the first worker that is free, yielding what is done until then.

        Raises:
            OSError: a worker could not write, or was killed.
        """
        if self._free() is None and len(self._workers) < self._num_workers:
            self._workers.append(self._start())
        while (worker := self._free()) is None:
            yield from self._wait()
        worker.unit = unit.name
        try:
            worker.connection.send(unit)
        except (BrokenPipeError, ConnectionResetError):
            _receive(worker)  # what it died of
            raise

    def _free(self) -> _Worker | None:
        return next((worker for worker in self._workers if not worker.unit), None)

    def _start(self) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def drain(self) -> Iterator[Done]:
        """Yield the rest as it is done."""
        while any(worker.unit for worker in self._workers):
            yield from self._wait()

    def _wait(self) -> Iterator[Done]:
        """Wait until at least one worker that has a unit says something."""
        busy = {worker.connection: worker for worker in self._workers if worker.unit}
        for ready in connection.wait(list(busy)):
            worker = busy[ready]  # type: ignore[index]
            done = _receive(worker)
            worker.unit = ""
            yield done

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.process.kill()  # nothing is lost: a file counts once it is renamed
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()


def _receive(worker: _Worker) -> Done:
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
    """The life of a worker: units in, results or an exception out, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # A worker that outlived a killed preparation could rename its shard into the next one's files.
    end_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    try:
        encoder = Tokenizer.load(tokenizer)
        while True:
            unit = requests.recv()
            result = write_shard(unit, encoder, settings, directory)
            requests.send(Done(unit.name, result, peak_memory()))
            del unit, result
    except EOFError:
        return
    # Any other error is a bug; its traceback goes to stderr.
    except (ValueError, OSError, MemoryError) as error:
        requests.send(error)


def peak_memory() -> int:
    """The most memory this process has held, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, whose ru_maxrss begins with the size of the spawning process
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
