"""Write results to standard output, or to a file that appears once it is complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from bert_jax.files import NotWritten, full_disk
from bert_jax.inference.input_lines import UnusableLine
from bert_jax.inference.input_stream import Input
from bert_jax.inference.requests import Answer, json_line
from bert_jax.local_paths import make_directory
from bert_jax.storage.uploads import local_output
from bert_jax.storage.urls import parse_location
from bert_jax.terminal import use_utf8


@contextmanager
def open_output(path: str | None, source: Input, standard_output: TextIO) -> Iterator[TextIO]:
    """Yield the stream to which the results for an input are written.

    Until the body of the `with` statement ends without an error, the file is named PATH.partial.

    Args:
      path: the output file or the URL of an object; None or "-" for standard output. The file's
        directory is created if it does not exist. An object is uploaded at the end.
      source: the input, which must not be overwritten.
      standard_output: the stream to yield for standard output.

    Raises:
      ValueError: the file is the input.
      StorageError: the object cannot be written.
      NotWritten: the disk is full.
    """
    if path is None or path == "-":
        use_utf8(standard_output)
        yield standard_output
        return
    source.check_not_overwritten(parse_location(path))
    with local_output(path) as target:
        yield from _open(target, source)


def _open(target: Path, source: Input) -> Iterator[TextIO]:
    """Yield the stream for a file on a local disk."""
    source.check_not_overwritten(target)
    # Do not replace a device or a pipe with a regular file.
    if target.exists() and not target.is_file():
        with open(target, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
        return
    make_directory(target.parent)
    partial = target.with_name(f"{target.name}.partial")
    source.check_not_overwritten(partial)
    try:
        with open(partial, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
        os.replace(partial, target)
    except OSError as error:
        cause = full_disk(error)
        if not cause:
            raise
        raise NotWritten(
            target,
            f"{cause}. {partial} holds the results so far. Free some space, and run the same "
            "command again",
        ) from error


def write_answers(
    parts: Iterable[list[Answer]], output: TextIO, on_progress: Callable[[int], None]
) -> tuple[int, int]:
    """Write each line's result as JSON Lines, and flush the stream after every part.

    Args:
      parts: lines with their results, from `LineRequest.answer`.
      output: the stream to write to.
      on_progress: called after every part with the number of lines written so far.

    Returns:
      (number of lines, number of unusable lines).
    """
    num_lines = num_unusable = 0
    for part in parts:
        for line, result in part:
            num_unusable += isinstance(result, UnusableLine)
            output.write(json_line(line, result))
        output.flush()
        num_lines += len(part)
        on_progress(num_lines)
    return num_lines, num_unusable


def unusable_note(num_lines: int, num_unusable: int) -> str:
    """Return a note on the number of input lines that could not be used."""
    counts = f"{num_unusable:,} of {num_lines:,}"
    return f"NOTE  {counts} lines could not be used; the output contains their errors"
