"""Write and check SHA256SUMS, a directory's checksums in the format of `sha256sum -c`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bert_jax.files import file_sha256, write_file
from bert_jax.local_paths import check_local

NAME = "SHA256SUMS"
_HEX_DIGITS = 64


def write_checksums(directory: Path) -> None:
    """Write the checksums of all files in a directory tree to its SHA256SUMS.

    Raises:
      NotWritten: the file cannot be written.
    """
    names = sorted(
        file.relative_to(directory).as_posix()
        for file in directory.rglob("*")
        if file.is_file() and file != directory / NAME
    )
    lines = (f"{file_sha256(directory / name)}  {name}\n" for name in names)
    write_file(directory / NAME, "".join(lines))


def check_checksums(directory: Path, names: Collection[str] | None = None) -> None:
    """Compare the files of a directory with its SHA256SUMS, if it has one.

    Files that are not listed are ignored.

    Args:
      names: the files to compare, if they are listed; None for all.

    Raises:
      ValueError: a file is missing or differs, or SHA256SUMS is damaged; names the file.
    """
    check_local(directory)
    file = directory / NAME
    if not file.is_file():
        return
    for name, digest in _read(file).items():
        if names is not None and name not in names:
            continue
        listed = directory / name
        problem = "missing, but listed" if not listed.is_file() else "differs from its checksum"
        if not listed.is_file() or file_sha256(listed) != digest:
            raise ValueError(
                f"{listed}: {problem} in {NAME}. Restore it from a copy, or, if the change is "
                f"intended, remove {file}"
            )


def _read(file: Path) -> dict[str, str]:
    """Return the checksums by file name."""
    checksums = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        lines = [""]
    for number, line in enumerate(lines, start=1):
        digest, name = line[:_HEX_DIGITS], line[_HEX_DIGITS + 2 :]
        mark = line[_HEX_DIGITS : _HEX_DIGITS + 2]  # two spaces, or " *" for a binary file
        well_formed = set(digest) <= set("0123456789abcdef") and mark in ("  ", " *")
        if not well_formed or not name or ".." in Path(name).parts or Path(name).is_absolute():
            raise ValueError(
                f"{file}:{number}: damaged: expected a SHA-256 and a name. Restore the file from a "
                "copy, or remove it to skip the check"
            )
        checksums[name] = digest
    return checksums
