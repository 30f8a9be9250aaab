"""Synchronize a local directory with a run in a bucket, so that the run can continue locally."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bert_jax.files import temporary_beside, write_file, writing
from bert_jax.local_paths import cache_directory, make_directory
from bert_jax.runs.bucket_layout import DOWNSTREAM_NAME, Layout, is_step
from bert_jax.runs.bucket_logs import read_log
from bert_jax.runs.ownership import LOCK_NAME
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, TOKENIZER_NAME
from bert_jax.storage.cache import download
from bert_jax.storage.errors import ConflictError, MissingObjectError
from bert_jax.storage.objects import list_objects, read_bytes, stat
from bert_jax.storage.partial import REMOTE_NAME, leave_in_bucket
from bert_jax.storage.store import ObjectInfo
from bert_jax.storage.urls import ObjectUrl
from bert_jax.training.checkpoint_checksums import CHECKSUMS_NAME, verify
from bert_jax.training.checkpoint_files import ASIDE_NAME

# This name is repeated here, because the module that defines it (`finetuning.outcome`) imports this
# package.
PREDICTIONS_NAME = "predictions"
STAGING_VARIABLE = "BERT_JAX_STAGING"
# The directories of a run that are copied, besides the files directly in its work directory.
_COPIED = (TOKENIZER_NAME, PREDICTIONS_NAME, ASIDE_NAME, DOWNSTREAM_NAME)
_COPIED_TO_CONTINUE = ("tensorboard",)
# The parts of a checkpoint that are needed to select it.
_ALWAYS_COPIED = ("metrics",)
_THREADS = 16


def staging_directory(url: ObjectUrl, purpose: str = "") -> Path:
    """Return the local directory for a run in a bucket, which need not exist.

    Args:
      url: the run's URL.
      purpose: distinguishes the directories of several processes that use the same run.
    """
    parent = os.environ.get(STAGING_VARIABLE) or cache_directory() / "runs"
    digest = hashlib.sha256(f"{purpose}{url}".encode()).hexdigest()[:16]
    return Path(parent).absolute() / digest / url.name


def is_read(name: str) -> bool:
    """Return whether the file with this relative name is needed to read a run."""
    return "/" not in name or name.partition("/")[0] in _COPIED


def copy_to_continue(layout: Layout, directory: Path) -> None:
    """Synchronize a directory with a run in a bucket, so that the run can continue there.

    Everything that is not in the bucket is removed from the directory; see `RunCopy`.
    """

    def is_copied(name: str) -> bool:
        return is_read(name) or name.partition("/")[0] in _COPIED_TO_CONTINUE

    RunCopy(directory, shared=False, is_copied=is_copied).update(layout)


@dataclass
class RunCopy:
    """A directory that is synchronized with a run in a bucket, except for arrays of checkpoints.

    A checkpoint that is already in the directory is kept if it has the same checksums. Any other
    checkpoint is created without its arrays, which stay in the bucket until they are needed (see
    `RemoteFiles`).

    Attributes:
      directory: the directory.
      shared: see `RemoteFiles`.
      is_copied: returns whether a file outside of the checkpoints, given its relative name, is
        copied.
      removes_others: whether files that are not copied are removed from the directory.
    """

    directory: Path
    shared: bool
    is_copied: Callable[[str], bool]
    removes_others: bool = True
    # `_files` contains the versions of the copied objects, keyed by the relative name of the file.
    # `_checkpoints` contains the versions of each checkpoint's files, keyed by step.
    _files: dict[str, list[str]] = field(default_factory=dict)
    _checkpoints: dict[int, dict[str, str]] = field(default_factory=dict)

    def update(self, layout: Layout) -> None:
        """Copy objects that have changed since the last update, and remove files without an object.

        Raises:
          StorageError: an object cannot be read.
          NotWritten: a file cannot be written.
        """
        directory = make_directory(self.directory)
        names = {*layout.files, *layout.logs}
        files = {name: self._objects(layout, name) for name in names if self.is_copied(name)}
        versions = {name: [info.version for info in infos] for name, infos in files.items()}
        checkpoints = {
            step: {name: info.version for name, info in infos.items()}
            for step, infos in layout.checkpoints.items()
        }
        kept = {step for step, each in checkpoints.items() if self._checkpoints.get(step) == each}
        kept |= _kept_checkpoints(layout, layout.checkpoints.keys() - kept, directory)
        self._remove_others({directory / name for name in files}, kept)
        changed = [
            name
            for name in files
            if self._files.get(name) != versions[name] or not (directory / name).is_file()
        ]
        objects = {directory / name: files[name] for name in changed}
        for step in sorted(layout.checkpoints.keys() - kept):
            target = directory / CHECKPOINTS_NAME / str(step)
            place, infos = layout.directories[step], layout.checkpoints[step]
            begun = _begin_checkpoint(target, place, infos, shared=self.shared)
            objects |= {file: [info] for file, info in begun.items()}
        logs = {directory / name for name in changed if name in layout.logs}
        copy_objects(objects, logs)
        self._files, self._checkpoints = versions, checkpoints

    def _objects(self, layout: Layout, name: str) -> list[ObjectInfo]:
        return layout.logs[name] if name in layout.logs else [layout.files[name]]

    def _remove_others(self, files: set[Path], steps: set[int]) -> None:
        """Remove all files and checkpoints except the given ones."""
        for path in list(_walk(self.directory)):
            parent, name = path.parent, path.name
            relative = path.relative_to(self.directory).as_posix()
            if is_step(name) and parent == self.directory / CHECKPOINTS_NAME:
                if int(name) not in steps:
                    shutil.rmtree(path)
            elif not (self.removes_others or self.is_copied(relative)):
                continue
            elif path.is_dir() and not path.is_symlink():
                with suppress(OSError):  # The directory is not empty.
                    path.rmdir()
            elif path not in files and path != self.directory / LOCK_NAME:
                path.unlink()


def copy_objects(objects: Mapping[Path, Sequence[ObjectInfo]], logs: Collection[Path] = ()) -> None:
    """Copy objects to files.

    Args:
      objects: the object for each file, or the parts of a log.
      logs: the files that are logs.

    Raises:
      StorageError: an object cannot be read.
      NotWritten: a file cannot be written.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        copies = [
            pool.submit(_copy_log, infos[0].url.parent, file)
            if file in logs
            else pool.submit(_copy, infos[0], file)
            for file, infos in objects.items()
        ]
        for copy in copies:
            copy.result()


def _kept_checkpoints(layout: Layout, steps: set[int], directory: Path) -> set[int]:
    """Return the steps of the complete checkpoints that are the same as in the bucket."""
    kept = set()
    for step in steps:
        files = layout.checkpoints[step]
        local = directory / CHECKPOINTS_NAME / str(step)
        checksums = local / CHECKSUMS_NAME
        if not checksums.is_file() or CHECKSUMS_NAME not in files:
            continue
        same_sizes = _sizes_on_disk(local) == {name: x.num_bytes for name, x in files.items()}
        if same_sizes and checksums.read_bytes() == read_bytes(files[CHECKSUMS_NAME].url):
            if verify(directory / CHECKPOINTS_NAME, step).problem is None:
                kept.add(step)
    return kept


def _sizes_on_disk(directory: Path) -> dict[str, int]:
    files = (path for path in directory.rglob("*") if path.is_file())
    sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}
    sizes.pop(REMOTE_NAME, None)
    return sizes


def _walk(directory: Path) -> Iterator[Path]:
    """Yield all files and directories from the bottom up, except those in checkpoints."""
    for path in sorted(directory.iterdir()):
        is_checkpoint = directory.name == CHECKPOINTS_NAME and is_step(path.name)
        if path.is_dir() and not path.is_symlink() and not is_checkpoint:
            yield from _walk(path)
        yield path


def leave_checkpoint(checkpoint: Path, url: ObjectUrl) -> None:
    """Remove the arrays of a checkpoint from a staging directory, and leave them in the bucket.

    Args:
      checkpoint: the directory of the checkpoint.
      url: the directory in the bucket that contains the complete checkpoint.

    Raises:
      StorageError: an object cannot be read.
      NotWritten: a file cannot be written.
    """
    files = {url.relative(info.url): info for info in list_objects(url)}
    small = _begin_checkpoint(checkpoint, url, files, shared=False)
    for file, info in small.items():
        _copy(info, file)
    for path in list(checkpoint.rglob("*")):
        if path.is_file() and path not in small and path != checkpoint / REMOTE_NAME:
            path.unlink()


def _begin_checkpoint(
    target: Path, url: ObjectUrl, files: Mapping[str, ObjectInfo], *, shared: bool
) -> Mapping[Path, ObjectInfo]:
    """Create a checkpoint's directory without arrays, and return the files to copy now."""
    sizes = {name: info.num_bytes for name, info in files.items()}
    leave_in_bucket(target, url, sizes, shared=shared)
    return {
        target / name: info
        for name, info in files.items()
        if "/" not in name or name.partition("/")[0] in _ALWAYS_COPIED
    }


def _copy(info: ObjectInfo, file: Path) -> None:
    make_directory(file.parent)
    with writing(file), temporary_beside(file) as temporary:
        while True:
            try:
                download(info, temporary)
                break
            except ConflictError:  # The run has replaced the object since it was listed.
                info = stat(info.url)
            except MissingObjectError:  # The run has removed the object.
                return
        os.replace(temporary, file)


def _copy_log(url: ObjectUrl, file: Path) -> None:
    write_file(file, read_log(url))
