"""Synchronize a local directory with a run in a bucket, so that the run can continue locally."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from bert_jax.files import temporary_beside, write_file, writing
from bert_jax.local_paths import cache_directory, make_directory
from bert_jax.runs.bucket_layout import Layout, is_step
from bert_jax.runs.bucket_logs import read_log
from bert_jax.runs.ownership import LOCK_NAME
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, TOKENIZER_NAME
from bert_jax.storage.cache import download
from bert_jax.storage.errors import ConflictError, MissingObjectError
from bert_jax.storage.objects import read_bytes, stat
from bert_jax.storage.partial import REMOTE_NAME, leave_in_bucket
from bert_jax.storage.store import ObjectInfo
from bert_jax.storage.urls import ObjectUrl
from bert_jax.training.checkpoint_checksums import CHECKSUMS_NAME, verify
from bert_jax.training.checkpoint_files import ASIDE_NAME

# These names are repeated here, because the modules that define them (`finetuning.outcome` and
# `downstream.tasks`) import this package.
PREDICTIONS_NAME, DOWNSTREAM_NAME = "predictions", "downstream"
STAGING_VARIABLE = "BERT_JAX_STAGING"
# The directories of a run that are copied, besides the files directly in its work directory.
_COPIED = (TOKENIZER_NAME, PREDICTIONS_NAME, ASIDE_NAME, DOWNSTREAM_NAME)
_COPIED_TO_CONTINUE = ("tensorboard",)
# The parts of a checkpoint that are needed to select it.
_ALWAYS_COPIED = ("metrics",)
_THREADS = 16


def staging_directory(url: ObjectUrl) -> Path:
    """Return the local directory for a run in a bucket, which need not exist."""
    parent = os.environ.get(STAGING_VARIABLE) or cache_directory() / "runs"
    digest = hashlib.sha256(str(url).encode()).hexdigest()[:16]
    return Path(parent).absolute() / digest / url.name


def copy_run(layout: Layout, directory: Path, *, shared: bool) -> None:
    """Make a directory equal to a run in a bucket, except for the arrays of checkpoints.

    Files that are not in the bucket are removed. A checkpoint that is already in the directory is
    kept if it has the same checksums. Any other checkpoint is created without its arrays, which
    stay in the bucket until they are needed (see `RemoteFiles`).

    Args:
      layout: the objects of the run.
      directory: the directory.
      shared: see `RemoteFiles`.

    Raises:
      StorageError: an object cannot be read.
      NotWritten: a file cannot be written.
    """
    make_directory(directory)
    copied = _COPIED if shared else (*_COPIED, *_COPIED_TO_CONTINUE)
    small = {
        directory / name: info
        for name, info in layout.files.items()
        if "/" not in name or name.partition("/")[0] in copied
    }
    small = {file: info for file, info in small.items() if file.name not in layout.logs}
    logs = {directory / name: _parts_of(infos) for name, infos in layout.logs.items()}
    kept = _kept_checkpoints(layout, directory)
    _remove_others(directory, {*small, *logs}, kept)
    with ThreadPoolExecutor(_THREADS) as pool:
        copies = [pool.submit(_copy, info, file) for file, info in small.items()]
        copies += [pool.submit(_copy_log, url, file) for file, url in logs.items()]
        for step in sorted(layout.checkpoints.keys() - kept):
            target = directory / CHECKPOINTS_NAME / str(step)
            copies += [
                pool.submit(_copy, info, file)
                for file, info in _begin_checkpoint(layout, step, target, shared=shared).items()
            ]
        for copy in copies:
            copy.result()


def _parts_of(infos: list[ObjectInfo]) -> ObjectUrl:
    return infos[0].url.parent


def _kept_checkpoints(layout: Layout, directory: Path) -> set[int]:
    """Return the steps of the complete checkpoints that are the same as in the bucket."""
    kept = set()
    for step, files in layout.checkpoints.items():
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


def _remove_others(directory: Path, files: set[Path], steps: set[int]) -> None:
    """Remove everything from a directory except some files and checkpoints."""
    for path in list(_walk(directory)):
        parent, name = path.parent, path.name
        if parent.name == CHECKPOINTS_NAME and parent.parent == directory and is_step(name):
            if int(name) not in steps:
                shutil.rmtree(path)
        elif path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # The directory is not empty.
                path.rmdir()
        elif path not in files and path != directory / LOCK_NAME:
            path.unlink()


def _walk(directory: Path) -> Iterator[Path]:
    """Yield all files and directories from the bottom up, except those in checkpoints."""
    for path in sorted(directory.iterdir()):
        is_checkpoint = directory.name == CHECKPOINTS_NAME and is_step(path.name)
        if path.is_dir() and not path.is_symlink() and not is_checkpoint:
            yield from _walk(path)
        yield path


def _begin_checkpoint(
    layout: Layout, step: int, target: Path, *, shared: bool
) -> Mapping[Path, ObjectInfo]:
    """Create a checkpoint's directory without arrays, and return the files to copy now."""
    files = layout.checkpoints[step]
    sizes = {name: info.num_bytes for name, info in files.items()}
    leave_in_bucket(target, layout.directories[step], sizes, shared=shared)
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
