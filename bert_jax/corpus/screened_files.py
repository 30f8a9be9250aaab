"""Keep the results of screening, so that other machines and later runs can use them.

Two kinds of results are kept in the directory for unfinished work. The results for blocks of
documents are in the subdirectory "screening". The result for all documents is in "screened": the
documents that are left out, and the files that describe them. Once this result exists, the
results for blocks are no longer needed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bert_jax.corpus.screened_blocks import block_files
from bert_jax.corpus.screening import VERDICTS, ChangedInputsError, Screening
from bert_jax.corpus.screening_report import NEAR_DUPLICATES, PAGE
from bert_jax.corpus.shared_files import SharedFiles
from bert_jax.corpus.workspace import SCREENED, SCREENING
from bert_jax.files import file_sha256, temporary_beside, write_file, writing
from bert_jax.filtering.page import FilterSummary
from bert_jax.json_files import read_json_object

_UPLOADS = 8  # This many blocks are uploaded at the same time, and twice as many may wait.
_RESULT = f"{SCREENED}/result.json"  # This file marks the other files as finished.
_FILES = (_RESULT, *(f"{SCREENED}/{name}" for name in (VERDICTS, NEAR_DUPLICATES, PAGE)))


def block_names(number: int) -> list[str]:
    """Return the names of the files of a block, relative to the directory for unfinished work."""
    return [f"{SCREENING}/{name}" for name in block_files(number)]


@contextmanager
def sharing_blocks(files: SharedFiles) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes a block's number, and shares the block's files in a thread.

    The `with` block ends when all files have been shared. If an error is raised in it, files that
    are still waiting are not shared.

    Raises:
      OSError: a file cannot be shared.
    """
    threads = ThreadPoolExecutor(_UPLOADS, thread_name_prefix="upload")
    pending: deque[Future[None]] = deque()

    def share(number: int) -> None:
        while len(pending) >= 2 * _UPLOADS or (pending and pending[0].done()):
            pending.popleft().result()
        pending.append(threads.submit(files.share, *block_names(number)))

    try:
        yield share
        while pending:
            pending.popleft().result()
    finally:
        threads.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class KeptScreening:
    """The kept result of screening all documents.

    Attributes:
      screening: the result.
      documents: a digest of the documents, in hex.
    """

    screening: Screening
    documents: str


def keep_screening(
    files: SharedFiles, screening: Screening, plan: Mapping[str, Any], documents: bytes
) -> None:
    """Keep the result of screening all documents.

    Args:
      files: the files that machines exchange.
      screening: the result. Its files are copied if they are in another directory.
      plan: everything that determines the corpus.
      documents: a digest of the documents.

    Raises:
      OSError: a file cannot be written.
    """
    folder = files.work / SCREENED
    paths = [screening.verdicts_path, *screening.files]
    with writing(folder):
        folder.mkdir(exist_ok=True)
    for path in paths:
        if path.parent != folder:
            with writing(path), temporary_beside(folder / path.name) as temporary:
                shutil.copyfile(path, temporary)
                temporary.replace(folder / path.name)
    content = {
        "plan": _digest(plan),
        "documents": documents.hex(),
        "summary": dataclasses.asdict(screening.summary),
        "files": {path.name: file_sha256(path) for path in paths},
    }
    write_file(files.work / _RESULT, json.dumps(content))
    files.share(*_FILES)


def kept_screening(files: SharedFiles, plan: Mapping[str, Any]) -> KeptScreening | None:
    """Return the kept result for the same plan, or None if there is none or it is damaged."""
    if not (files.work / _RESULT).is_file():
        files.fetch(*_FILES)
    folder = files.work / SCREENED
    try:
        content = read_json_object(files.work / _RESULT)
        if content["plan"] != _digest(plan):
            return None
        checksums = content["files"]
        if any(file_sha256(folder / name) != checksum for name, checksum in checksums.items()):
            return None
        summary, documents = FilterSummary(**content["summary"]), content["documents"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    names = [name for name in (NEAR_DUPLICATES, PAGE) if name in checksums]
    paths = tuple(folder / name for name in names)
    return KeptScreening(Screening(summary, paths, folder / VERDICTS), documents)


def remove_screening(files: SharedFiles) -> None:
    """Remove the kept result of screening all documents, but not those for blocks."""
    files.remove(_RESULT)


@contextmanager
def removing_if_changed(files: SharedFiles) -> Iterator[None]:
    """Remove the kept result if a `with` block finds an input that has changed since screening."""
    try:
        yield
    except ChangedInputsError:
        remove_screening(files)
        raise


def _digest(plan: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()
