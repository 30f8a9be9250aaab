"""What the user names as input, expanded into the files and TFDS datasets to read."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_jax.data.compression import COMPRESSIONS
from bert_jax.local_paths import check_local

logger = logging.getLogger(__name__)

TFDS_PREFIX = "tfds:"
TEXT_SUFFIXES = (".txt", ".text")
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet", ".pq")
# Formats people do keep text in which would otherwise be read as if they were plain text.
_UNREADABLE_SUFFIXES = (
    ".7z",
    ".arrow",
    ".bz2",
    ".csv",
    ".html",
    ".pdf",
    ".rar",
    ".tar",
    ".tgz",
    ".tsv",
    ".xml",
    ".zip",
)
_EXPECTED = (
    f"plain text ({', '.join(TEXT_SUFFIXES)} or any other name), "
    f"JSON Lines ({', '.join(JSON_LINES_SUFFIXES)}), each also {', '.join(COMPRESSIONS)}, "
    f"or Parquet ({', '.join(PARQUET_SUFFIXES)})"
)


def is_tfds(name: str) -> bool:
    """Whether an input names a TFDS dataset and not a file."""
    return name.startswith(TFDS_PREFIX)


def content_suffix(path: Path) -> str:
    """The suffix that tells the format, in lower case: ".jsonl" of "a.jsonl.gz"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def expand_inputs(inputs: Sequence[str]) -> list[str]:
    """The files and TFDS datasets that `inputs` stand for, each once, in the order to read them.

    A file or `tfds:...` stands for itself, a directory for every file below it with a known
    suffix, a pattern (`*`, `?`, `[...]`, `**`) for the files it matches; the files of a directory
    or pattern are sorted by path. Names that begin with "." or "_" within a directory are passed
    over, as Spark's and Hadoop's readers do. ValueError if an input stands for nothing, or for a
    format that cannot be read.
    """
    if isinstance(inputs, str):
        raise ValueError(f"inputs is the single string {inputs!r}; expected a list of paths")
    if not inputs:
        raise ValueError("no input was given; name at least one file, directory or tfds:NAME")
    expanded: dict[str, str] = {}  # what identifies the input -> its name
    for name in inputs:
        for found in _expand(name):
            identity = found if is_tfds(found) else os.path.realpath(found)
            expanded.setdefault(identity, found)
    return list(expanded.values())


def _expand(name: str) -> Iterator[str]:
    if is_tfds(name):
        yield name
        return
    check_local(name)
    path = Path(name)
    if path.is_dir():
        yield from _files_below(path)
        return
    if path.exists():
        if not path.is_file():
            raise ValueError(
                f"{name} is a pipe or a device, not a file; input is read again after a kill and "
                "its size tells how far one is, so write it to a file first"
            )
        files = [name]
    elif glob.has_magic(name):
        files = sorted(file for file in glob.glob(name, recursive=True) if not os.path.isdir(file))
        if not files:
            raise ValueError(f"no file matches the pattern {name!r}")
    else:
        raise ValueError(f"input {name!r} does not exist")
    for file in files:
        suffix = content_suffix(Path(file))
        if suffix in _UNREADABLE_SUFFIXES:
            raise ValueError(f"{file}: cannot read {suffix} files; expected {_EXPECTED}")
        if suffix in PARQUET_SUFFIXES and Path(file).suffix.lower() in COMPRESSIONS:
            raise ValueError(f"{file}: decompress it first; Parquet is compressed inside")
        yield file


def _files_below(directory: Path) -> Iterator[str]:
    known = TEXT_SUFFIXES + JSON_LINES_SUFFIXES + PARQUET_SUFFIXES
    files: list[str] = []
    passed_over: list[str] = []
    for path in _walk(directory):
        (files if content_suffix(path) in known else passed_over).append(str(path))
    if not files:
        raise ValueError(
            f"directory {str(directory)!r} holds no file that is known by its name as {_EXPECTED}; "
            f"for files named otherwise give a pattern, such as {str(directory / '*')!r}"
        )
    if passed_over:
        logger.warning(
            "%s: passing over %d files not known by their suffix, such as %s",
            directory,
            len(passed_over),
            min(passed_over),
        )
    yield from sorted(files)


def _walk(directory: Path) -> Iterator[Path]:
    """The files below a directory, through links to others, in no particular order.

    OSError for a directory that cannot be listed, which `os.walk` would leave out in silence.
    """

    def refuse(error: OSError) -> None:
        raise error

    entered = {os.path.realpath(directory)}
    for folder, subfolders, names in os.walk(directory, onerror=refuse, followlinks=True):
        visible = sorted(name for name in subfolders if not name.startswith((".", "_")))
        subfolders.clear()
        for name in visible:
            target = os.path.realpath(os.path.join(folder, name))
            if target not in entered:  # a link to a directory above would never end
                entered.add(target)
                subfolders.append(name)
        yield from (Path(folder, name) for name in names if not name.startswith((".", "_")))
