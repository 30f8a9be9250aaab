"""Expand inputs into files and datasets."""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bert_jax.storage.locations import described, objects_below
from bert_jax.storage.patterns import matching_objects
from bert_jax.storage.urls import Location, ObjectUrl, parse_location
from bert_jax.text.archives import COMPRESSIONS
from bert_jax.text.dataset_folders import data_files
from bert_jax.text.hub_names import HUB_PREFIX, pinned_hub

logger = logging.getLogger(__name__)

TFDS_PREFIX = "tfds:"
TEXT_SUFFIXES = (".txt", ".text")
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet", ".pq")
ARROW_SUFFIXES = (".arrow",)
MDS_SUFFIXES = (".mds",)
_MDS_COMPRESSIONS = (".br", ".bz2", ".gz", ".snappy", ".zstd")
# Formats that may contain text but must not be read as plain text. Files with any other unknown
# suffix are read as plain text.
_UNREADABLE_SUFFIXES = (
    ".7z",
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
    f"plain text ({', '.join(TEXT_SUFFIXES)} or any other name) or "
    f"JSON Lines ({', '.join(JSON_LINES_SUFFIXES)}), optionally compressed "
    f"({', '.join(COMPRESSIONS)}), Parquet ({', '.join(PARQUET_SUFFIXES)}), Arrow "
    f"({', '.join(ARROW_SUFFIXES)}) or MDS ({', '.join(MDS_SUFFIXES)})"
)


def is_tfds(name: str) -> bool:
    """Return whether an input is the name of a TFDS dataset rather than a file."""
    return name.startswith(TFDS_PREFIX)


def is_hub(name: str) -> bool:
    """Return whether an input is the name of a dataset on the Hugging Face Hub."""
    return name.startswith(HUB_PREFIX)


def is_file_name(name: str) -> bool:
    """Return whether an input is a file, a directory or a pattern rather than a dataset's name."""
    return not is_tfds(name) and not is_hub(name)


def content_suffix(path: Location) -> str:
    """Return the lowercase suffix of a path, ignoring compression: ".jsonl" for "a.jsonl.gz"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    of_mds = len(suffixes) > 1 and suffixes[-2] in MDS_SUFFIXES
    if suffixes and suffixes[-1] in (_MDS_COMPRESSIONS if of_mds else COMPRESSIONS):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def expand_inputs(inputs: Sequence[str]) -> list[str]:
    """Return the files and TFDS datasets that the inputs refer to, in reading order.

    A file or `tfds:...` is returned unchanged, and `hf:...` is returned with the commit that it
    refers to. A directory is replaced by all files below it that have a supported suffix. A pattern
    (`*`, `?`, `[...]`, `**`) is replaced by the files that match it. In both cases, the files are
    sorted by path. Inside a directory, names that begin with "." or "_" are skipped, as in Spark
    and Hadoop. A file that is found more than once is returned only once.

    Raises:
      ValueError: an input does not exist, contains or matches no file, or has an unsupported
        format.
    """
    if isinstance(inputs, str):
        raise ValueError(f"inputs={inputs!r}: this is a single string. Expected a list of paths.")
    if not inputs:
        raise ValueError("No inputs. Specify at least one file, directory, tfds:NAME or hf:NAME.")
    # Maps each TFDS name or real path to its input.
    expanded: dict[str, str] = {}
    for name in inputs:
        for source in _expand(name):
            expanded.setdefault(identity(source) if is_file_name(source) else source, source)
    return list(expanded.values())


def identity(name: str) -> str:
    """Return a string that is the same for all names of a file: its real path or URL."""
    location = parse_location(name)
    return str(location) if isinstance(location, ObjectUrl) else os.path.realpath(location)


def _expand(name: str) -> Iterator[str]:
    if is_tfds(name):
        yield name
        return
    if is_hub(name):
        yield pinned_hub(name)
        return
    path = parse_location(name)
    if isinstance(path, ObjectUrl):
        files = _expand_url(path)
        yield from _supported(files)
        return
    if path.is_dir():
        yield from _files_below(path)
        return
    if path.exists():
        if not path.is_file():
            raise ValueError(
                f"{name}: this is a pipe or a device, not a file. Write its content to a file "
                "first: a resumed run reads its input again, and progress is computed from the "
                "file's size."
            )
        files = [name]
    elif glob.has_magic(name):
        files = sorted(file for file in glob.glob(name, recursive=True) if not os.path.isdir(file))
        if not files:
            raise ValueError(f"{name}: no file matches this pattern.")
    else:
        raise ValueError(f"{name}: no such file or directory.")
    yield from _supported(files)


def _expand_url(url: ObjectUrl) -> list[str]:
    """Return the objects that a URL, a pattern or a directory in a bucket refers to."""
    if url.key and described(url) is not None:
        return [str(url)]
    if glob.has_magic(url.key):
        names = [str(info.url) for info in matching_objects(url)]
        if not names:
            raise ValueError(f"{url}: no object matches this pattern.")
        return names
    below = [(info.url, str(info.url)) for info in objects_below(url)]
    if not below:
        raise ValueError(f"{url}: there is no such object or directory in the bucket.")
    return _with_text(url, below)


def _supported(files: Sequence[str]) -> Iterator[str]:
    for file in files:
        suffix = content_suffix(Path(file))
        if suffix in _UNREADABLE_SUFFIXES:
            raise ValueError(f"{file}: cannot read {suffix} files. Expected {_EXPECTED}.")
        if Path(file).suffix.lower() in COMPRESSIONS:
            if suffix in PARQUET_SUFFIXES:
                raise ValueError(
                    f"{file}: cannot read a compressed Parquet file. Decompress it first (Parquet "
                    "compresses its own content)."
                )
            if suffix in ARROW_SUFFIXES:
                raise ValueError(
                    f"{file}: cannot read a compressed Arrow file. Decompress it first."
                )
        yield file


def _files_below(directory: Path) -> Iterator[str]:
    yield from _with_text(directory, [(path, str(path)) for path in _walk(directory)])


def _with_text(directory: Location, paths: Iterable[tuple[Location, str]]) -> list[str]:
    """Return the files in a directory that have a supported suffix, sorted by path."""
    suffixes = (
        TEXT_SUFFIXES + JSON_LINES_SUFFIXES + PARQUET_SUFFIXES + ARROW_SUFFIXES + MDS_SUFFIXES
    )
    files: list[str] = []
    skipped: list[str] = []
    for path, name in data_files(directory, paths):
        (files if content_suffix(path) in suffixes else skipped).append(name)
    if not files:
        raise ValueError(
            f"{directory}: no file in this directory has a supported suffix. Expected {_EXPECTED}. "
            f"To read files with other suffixes, use a pattern such as {str(directory / '*')!r}."
        )
    if skipped:
        logger.warning(
            "%s: skipping %d files with other suffixes, such as %s",
            directory,
            len(skipped),
            min(skipped),
        )
    return sorted(files)


def _walk(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory in no particular order, following links to directories.

    Raises:
      OSError: a directory cannot be listed; `os.walk` would skip it silently.
    """

    def refuse(error: OSError) -> None:
        raise error

    entered = {os.path.realpath(directory)}
    for folder, subfolders, names in os.walk(directory, onerror=refuse, followlinks=True):
        visible = sorted(name for name in subfolders if not name.startswith((".", "_")))
        subfolders.clear()
        for name in visible:
            target = os.path.realpath(os.path.join(folder, name))
            # Do not follow a link to a parent directory, which would never end.
            if target not in entered:
                entered.add(target)
                subfolders.append(name)
        yield from (Path(folder, name) for name in names if not name.startswith((".", "_")))
