"""Record checksums of a checkpoint's files when it is saved, and verify them before it is used."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from bert_jax.files import sync_directory, write_file
from bert_jax.storage.errors import MissingObjectError, StorageError
from bert_jax.storage.partial import RemoteFiles, remote_files

CHECKSUMS_NAME = "checksums.json"
# If a checkpoint's metadata has this key, the checkpoint is incomplete without its CHECKSUMS_NAME
# file. Checkpoints saved by earlier versions have neither the key nor the file.
CHECKSUMS_MARK = "checksums"
# If a checkpoint's metadata has this key, an uninterrupted run would not have saved the checkpoint.
INTERIM_MARK = "interim"
PARAMETERS = "params"
AVERAGE = "average"
GUARD = "divergence"
REMOVED = "it was removed during the check; a run removes older checkpoints when it saves"
_METADATA_NAME = "_CHECKPOINT_METADATA"
_READ_BYTES = 1 << 20
# A quick check hashes only files up to this size: all of the metadata, but no arrays.
_SMALL_BYTES = 1 << 16
# More threads would not help: two threads already read 13 GB/s from the page cache.
_THREADS = 4


@dataclass(frozen=True)
class Verification:
    """The result of checking one checkpoint; `str()` describes it in a phrase.

    Attributes:
      problem: a phrase that names the damaged file, or None if the checkpoint is intact.
      has_checksums: whether checksums were recorded; earlier versions recorded none.
      num_files: the number of files that were compared with their checksums.
      num_bytes: the total size of these files.
    """

    problem: str | None = None
    has_checksums: bool = True
    num_files: int = 0
    num_bytes: int = 0

    def __str__(self) -> str:
        if self.problem == REMOVED:
            return "removed during the check; a run removes older checkpoints when it saves"
        if self.problem is not None:
            return f"damaged: {self.problem}"
        if not self.has_checksums:
            return "readable; saved by an earlier version, which recorded no checksums"
        return f"intact   {self.num_files} files, {self.num_bytes / 1e6:,.1f} MB"


def write_checksums(checkpoint: Path, step: int, metadata: Mapping[str, Any]) -> None:
    """Record checksums of all files in a checkpoint just before it gets its final name.

    All files are flushed to disk except two that Orbax has not finished writing: an empty marker
    file and `_METADATA_NAME`. In `_METADATA_NAME`, only this package's part gets a checksum.

    Args:
      checkpoint: the checkpoint's directory.
      step: the checkpoint's step.
      metadata: this package's part of the checkpoint's metadata.

    Raises:
      OSError: a file cannot be read, flushed or written.
    """
    paths = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    paths = [path for path in paths if path.parent != checkpoint]
    content = {
        "step": step,
        "metadata": _metadata_digest(metadata),
        "files": checksums_of(checkpoint, paths),
    }
    for directory in checkpoint.rglob("*"):
        if directory.is_dir():
            sync_directory(directory)
    write_file(checkpoint / CHECKSUMS_NAME, json.dumps(content, indent=1) + "\n")


def checksums_of(directory: Path, paths: Sequence[Path]) -> dict[str, dict[str, int | str]]:
    """Flush files to disk, and return their sizes and checksums, keyed by relative name.

    Raises:
      OSError: a file cannot be read or flushed.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        digests = list(pool.map(_flushed_digest, paths))
    return {
        path.relative_to(directory).as_posix(): {"bytes": size, "xxh3_128": digest}
        for path, (size, digest) in zip(paths, digests, strict=True)
    }


def flush(checkpoint: Path) -> None:
    """Flush to disk the files that Orbax changed after the checksums were recorded."""
    with open(checkpoint / _METADATA_NAME, "rb") as file:
        os.fsync(file.fileno())
    sync_directory(checkpoint)
    sync_directory(checkpoint.parent)


def verify(
    directory: Path, step: int, *, parts: tuple[str, ...] = (), quick: bool = False
) -> Verification:
    """Verify a checkpoint against the checksums that were saved with it.

    Files that are still in a bucket are read from it, without being copied to disk.

    Args:
      directory: the directory that holds the checkpoints.
      step: the checkpoint's step.
      parts: the parts to check in addition to the metadata, such as `PARAMETERS`; () means all
        parts.
      quick: whether to compare only the sizes of large files, and of files in a bucket.

    Raises:
      StorageError: a file in a bucket cannot be read, although it may be intact.
    """
    checkpoint = directory / str(step)
    if not checkpoint.is_dir():
        return Verification("the directory is missing")
    remote = remote_files(checkpoint)
    try:
        recorded = _recorded(checkpoint)
        if recorded is None:
            problem = _problem_without_checksums(checkpoint, remote)
            return Verification(problem, has_checksums=False)
        if recorded.step != step:
            return Verification(
                f"it was saved as step {recorded.step} according to {CHECKSUMS_NAME}, so the "
                "directory was renamed"
            )
        if recorded.metadata != _metadata_digest(custom_metadata(checkpoint)):
            return Verification(f"{_METADATA_NAME} differs from the saved metadata")
        files = [file for file in recorded.files if file.belongs_to(parts)]
        with ThreadPoolExecutor(_THREADS) as pool:
            problems = pool.map(lambda file: _problem_of(checkpoint, remote, file, quick), files)
            problem = next((problem for problem in problems if problem), None)
    except Unreadable as error:
        problem, files = str(error), []
    if problem and (not checkpoint.is_dir() or remote.removed()):
        return Verification(REMOVED)
    return Verification(
        problem, num_files=len(files), num_bytes=sum(file.num_bytes for file in files)
    )


def fetch(directory: Path, step: int, parts: tuple[str, ...] = ()) -> None:
    """Copy to disk those files of a checkpoint that are still in a bucket.

    Files that were removed from the bucket are left out, and `verify` reports them later.

    Args:
      directory: the directory that holds the checkpoints.
      step: the checkpoint's step.
      parts: the parts to copy; () means all parts.

    Raises:
      StorageError: a file cannot be read.
      NotWritten: a file cannot be written.
    """
    remote = remote_files(directory / str(step))
    with suppress(MissingObjectError):
        remote.fetch(lambda name: not parts or name.partition("/")[0] in parts)


def recorded_checksum(directory: Path, step: int, part: str) -> str:
    """Return a checksum of the recorded checksums of one part of a checkpoint.

    The result is "" for checkpoints saved by earlier versions, which recorded no checksums.

    Raises:
      Unreadable: the checkpoint's metadata or checksums are missing or damaged.
    """
    recorded = _recorded(directory / str(step))
    if recorded is None:
        return ""
    digests = [(file.path, file.digest) for file in recorded.files if file.belongs_to((part,))]
    return xxhash.xxh3_128_hexdigest(json.dumps(sorted(digests)).encode())


class Unreadable(Exception):
    """A checkpoint's metadata or checksums cannot be read."""


@dataclass(frozen=True)
class _File:
    path: str
    num_bytes: int
    digest: str

    def belongs_to(self, parts: tuple[str, ...]) -> bool:
        """Return whether the file belongs to one of `parts`; () means all parts."""
        return not parts or self.path.partition("/")[0] in parts


@dataclass(frozen=True)
class _Recorded:
    step: int
    metadata: str
    files: tuple[_File, ...]


def _recorded(checkpoint: Path) -> _Recorded | None:
    """Return the recorded checksums, or None if an earlier version did not record any."""
    path = checkpoint / CHECKSUMS_NAME
    if not path.is_file():
        if CHECKSUMS_MARK not in custom_metadata(checkpoint):
            return None
        raise Unreadable(f"{CHECKSUMS_NAME} is missing")
    try:
        content = json.loads(path.read_bytes())
        files = tuple(
            _File(str(name), int(file["bytes"]), str(file["xxh3_128"]))
            for name, file in content["files"].items()
        )
        return _Recorded(int(content["step"]), str(content["metadata"]), files)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise Unreadable(f"{CHECKSUMS_NAME} cannot be read ({_brief(error)})") from error


def custom_metadata(checkpoint: Path) -> Mapping[str, Any]:
    """Return the metadata that this package saved with a checkpoint, excluding Orbax's own.

    Raises:
      Unreadable: the metadata file is missing or damaged.
    """
    try:
        custom = json.loads((checkpoint / _METADATA_NAME).read_bytes())["custom_metadata"] or {}
        if not isinstance(custom, dict):
            raise TypeError("custom_metadata is not an object")
        return custom
    except FileNotFoundError as error:
        raise Unreadable(f"{_METADATA_NAME} is missing") from error
    except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
        raise Unreadable(f"{_METADATA_NAME} cannot be read ({_brief(error)})") from error


def is_interim(checkpoint: Path) -> bool:
    """Return whether a checkpoint was saved only because its run was interrupted."""
    try:
        return bool(custom_metadata(checkpoint).get(INTERIM_MARK, False))
    except Unreadable:  # the damage will be reported when the checkpoint is loaded
        return False


def _metadata_digest(metadata: Mapping[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(metadata, sort_keys=True).encode())


def _problem_without_checksums(checkpoint: Path, remote: RemoteFiles) -> str | None:
    """Check a checkpoint without checksums; return a phrase that names a missing file, or None."""
    names = (f"{PARAMETERS}/_METADATA", f"{PARAMETERS}/manifest.ocdbt")
    missing = (
        name for name in names if not (checkpoint / name).is_file() and remote.size(name) is None
    )
    return next((f"{name} is missing" for name in missing), None)


def _problem_of(checkpoint: Path, remote: RemoteFiles, file: _File, quick: bool) -> str | None:
    path = checkpoint / file.path
    try:
        size = remote.size(file.path)
        size = path.stat().st_size if size is None else size
        if size != file.num_bytes:
            return f"{file.path} has {size:,} bytes instead of {file.num_bytes:,}"
        if quick and (size > _SMALL_BYTES or remote.size(file.path) is not None):
            return None
        with remote.open(file.path) as content:
            digest = _digest_of(content)
        if digest != file.digest:
            return f"{file.path} does not match the checksum recorded when it was saved"
    except FileNotFoundError:
        return f"{file.path} is missing"
    except StorageError:  # this error does not mean that the file is damaged
        raise
    except OSError as error:
        return f"{file.path} cannot be read ({_brief(error)})"
    return None


def _flushed_digest(path: Path) -> tuple[int, str]:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return path.stat().st_size, _digest(path)


def _digest(path: Path) -> str:
    with io.FileIO(path) as file:
        return _digest_of(file)


def _digest_of(file: io.BufferedReader | io.FileIO) -> str:
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_READ_BYTES))
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
    return digest.hexdigest()


def _brief(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
