"""Check output files and directories, and create new directories atomically.

This module does not import JAX.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bert_jax.corpus.bucket_workspace import check_outside_bucket_corpora, is_corpus
from bert_jax.corpus.workspace import (
    MODEL_NAME,
    PROGRAM_NAMES,
    SWEEP_NAME,
    Kind,
    check_output,
    check_outside_corpora,
)
from bert_jax.files import NotWritten, full_disk, sync_directory, temporary_beside
from bert_jax.local_paths import check_local, make_directory
from bert_jax.storage.errors import located, naming_store_errors
from bert_jax.storage.locations import file_names
from bert_jax.storage.objects import find
from bert_jax.storage.uploads import check_new, check_new_file, new_tree
from bert_jax.storage.urls import Location, ObjectUrl, parse_url

# Every program needs one of these files to read a model's directory.
_MODEL_MARKS = (MODEL_NAME, *PROGRAM_NAMES, "config.json")


def check_work_dir_kind(path: Path, *, may_be: Collection[Kind] = ()) -> None:
    """Check a run's work directory with `check_output`, unless a run has already started in it.

    Args:
      path: the directory.
      may_be: the kinds of directory that are accepted.

    Raises:
      ValueError: see `check_output`.
    """
    if not (path / MODEL_NAME).is_file():
        check_output(path, "work_dir", may_be=may_be)


def check_output_files(files: Mapping[str, str | os.PathLike[str]]) -> None:
    """Check files with `check_output_file`, given a dict from option to path."""
    for name, path in files.items():
        check_output_file(path, name)


def check_output_file(path: str | os.PathLike[str], name: str) -> None:
    """Check that a file can be written, before any work is done.

    Args:
      path: the file, whose directory need not exist. Pipes and devices are accepted.
      name: the option that specifies it.

    Raises:
      ValueError: the path is a directory, or inside a file or a corpus.
      StorageError: the path is the URL of an object, and the store does not respond.
    """
    url = parse_url(path, name)
    if url is not None:
        check_new_file(url, name)
        check_outside_bucket_corpora(url, name)
        return
    file = Path(path)
    if file.is_dir():
        raise ValueError(f"{name}={path}: is a directory. Specify the path of a file.")
    check_outside_corpora(file, name)
    parent = next(parent for parent in file.absolute().parents if parent.exists())
    if not parent.is_dir():
        raise ValueError(f"{name}={path}: {parent} is not a directory. Use another path.")


def check_output_url(url: ObjectUrl, name: str, *, may_be: Collection[Kind] = ()) -> None:
    """Check that a command may write below a URL; see `check_output`.

    Raises:
      ValueError: there is something else at the URL, it is inside a corpus, or the store does not
        grant access.
      StorageError: the store does not respond.
    """
    with naming_store_errors(name, url):
        if not url.key:
            raise ValueError(f"{located(url, name)}: this is a whole bucket. Specify a directory.")
        if find(url) is not None:
            raise ValueError(f"{located(url, name)}: this is an object. Specify another URL.")
        kinds: dict[str, Kind] = {SWEEP_NAME: "sweep", MODEL_NAME: "work directory"}
        kind = next((kinds[file] for file in file_names(url) if file in kinds), None)
        kind = "corpus" if is_corpus(url) else kind
        if kind is not None and kind not in may_be:
            raise ValueError(f"{located(url, name)}: this is a {kind}. Choose another directory.")
        check_outside_bucket_corpora(url, name)


def check_new_directory(path: Location) -> None:
    """Check the path or URL of a new model directory before any work is done.

    Raises:
      ValueError: the directory contains something, or is inside a corpus.
      StorageError: the store does not respond.
    """
    if isinstance(path, ObjectUrl):
        check_new(path, "--output")
        with naming_store_errors("--output", path):
            check_outside_bucket_corpora(path, "--output")
    else:
        check_local(path, "--output")
        check_output(path, "--output")


@contextmanager
def new_directory(path: Location) -> Iterator[Path]:
    """Yield a temporary directory, which becomes `path` if the `with` block ends without an error.

    If `path` is a URL, the files are uploaded at the end of the block; see `new_tree`.

    Raises:
      ValueError: `path` already exists or cannot be created.
      StorageError: an object cannot be written.
      NotWritten: the disk is full; the message names `path`, not the temporary directory.
    """
    check_new_directory(path)
    if isinstance(path, ObjectUrl):
        with new_tree(path, _MODEL_MARKS, "--output") as temporary:
            yield temporary
        return
    path = path.absolute()
    if path.is_symlink() or path == Path.cwd():
        raise ValueError(
            f"{path}: the output cannot replace a link or the current directory. Choose another "
            "--output."
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} already exists. Remove it, or choose another --output.")
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            raise ValueError(
                f"{parent} is a file, so {path} cannot be created in it. Choose another --output."
            )
    created = [parent for parent in path.parents if not parent.exists()]
    make_directory(path.parent)
    try:
        with temporary_beside(path, directory=True) as temporary:
            yield temporary
            for entry in (*temporary.rglob("*"), temporary):
                sync_directory(entry)  # The contents of the files must survive a power failure too.
            temporary.rename(path)
        sync_directory(path.parent)
    except BaseException as error:
        with suppress(OSError):  # A parent may contain something else by now.
            for parent in created:
                parent.rmdir()
        if cause := full_disk(error):
            raise NotWritten(path, cause) from error
        raise
