"""Divide rows that may not fit in memory into parts, in temporary files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bert_jax.files import writing


@contextmanager
def divided(
    chunks: Iterable[tuple[NDArray[Any], NDArray[np.int64]]], num_parts: int, directory: Path
) -> Iterator[Sequence[IO[bytes]]]:
    """Yield one temporary file per part, which contains the rows of this part in their order.

    Args:
      chunks: pairs of an array of rows and the part of each row, from 0.
      num_parts: the number of parts.
      directory: the directory for the files.

    Raises:
      NotWritten: a file cannot be written.
    """
    with ExitStack() as stack:
        with writing(directory):
            files = [stack.enter_context(TemporaryFile(dir=directory)) for _ in range(num_parts)]
        for rows, parts in chunks:
            order = np.argsort(parts, kind="stable")
            ends = np.cumsum(np.bincount(parts, minlength=num_parts))
            with writing(directory):
                for file, chosen in zip(files, np.split(rows[order], ends[:-1]), strict=True):
                    file.write(chosen.tobytes())
        for file in files:
            with writing(directory):
                file.seek(0)  # also writes buffered rows
        yield files
