"""Describe full disks, memory shortages and library errors in one sentence each.

This module does not import the libraries that raise these errors.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TextIO

from bert_jax.files import NotWritten, full_disk

# XLA, PyTorch, ONNX Runtime, Rust's allocator and Python's threads raise general error classes
# whose messages contain these phrases.
_PHRASES = (
    *("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "capacity overflow"),
    *("not enough memory", "can't allocate memory", "Failed to allocate memory"),
    *("memory allocation of", "can't start new thread"),
)
_GENERAL = ("RuntimeError", "RuntimeException", "Fail", "PanicException")
_LIBRARY_PANIC = "PanicException"  # pyo3 defines this subclass of BaseException.


def unwritten_file(error: BaseException, advice: str) -> str | None:
    """Return a message if a file could not be written, or None for any other error.

    Args:
      error: the error; its causes may name the file.
      advice: a sentence to append, unless the error contains more specific advice.
    """
    message = str(error)
    if isinstance(error, OSError) and "same command" in message:  # has more specific advice
        return " ".join(message.split())
    if not isinstance(error, NotWritten):
        cause, path = full_disk(error), _path_of(error)
        if not cause or not path:
            return None
        error = NotWritten(path, cause)
    return f"{error}. {advice}"


def system_error(error: BaseException, output: TextIO) -> str | None:
    """Return a message for a system error on a file or standard output, or None otherwise.

    Args:
      error: the error.
      output: the process's standard output.
    """
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if not error.filename:
        reason = full_disk(error)
        if not reason or _accepts_a_line(output):
            return None
        return f"standard output: cannot be written: {reason}"
    other = f" (and {os.fsdecode(error.filename2)})" if error.filename2 else ""
    return f"{os.fsdecode(error.filename)}{other}: {os.strerror(error.errno)}"


def memory_shortage(error: BaseException, advice: str) -> str | None:
    """Return a message if the process ran out of memory, or None for any other error.

    Args:
      error: the error; its causes are checked too.
      advice: a sentence to append, without its period.
    """
    for cause in _chain(error):
        if _is_shortage(cause):
            detail = " ".join(str(cause).split())[:200].rstrip(".")
            return f"out of memory{f' ({detail})' if detail else ''}. {advice}."
    return None


def library_panic(error: BaseException) -> str | None:
    """Return a message for a panic in a Rust library, such as tokenizers, or None otherwise."""
    if type(error).__name__ != _LIBRARY_PANIC:
        return None
    return f"a library stopped with an internal error: {' '.join(str(error).split())[:300]}"


def raised_by_this_package(error: BaseException) -> bool:
    """Return whether the error was raised by this package rather than by a library it calls."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    # Do not use __name__, which is "__main__" for a module run with `python -m`.
    package = None if frame is None else frame.tb_frame.f_globals.get("__package__")
    return package is not None and package.split(".")[0] == "bert_jax"


def _accepts_a_line(output: TextIO) -> bool:
    try:
        os.write(output.fileno(), b"\n")
    except OSError:
        return False
    return True


def _path_of(error: BaseException | None) -> str:
    """Return the first file named by an error or its causes, or "" if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.filename:
            return os.fsdecode(error.filename)
        error = error.__cause__ or error.__context__
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, followed by its causes."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, MemoryError):  # This includes the memory errors of numpy and pyarrow.
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names.intersection(_GENERAL)) and any(x in str(error) for x in _PHRASES)
