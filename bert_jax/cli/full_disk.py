"""Error messages for files that cannot be written, for example because the disk is full."""

from __future__ import annotations

import os
import sys

from bert_jax.files import NotWritten, full_disk

# Commands that continue from their unfinished output.
_RESUMED = ("prepare", "pretrain", "finetune", "sweep")
_RESUMES = "Fix the cause, such as a full disk, and run the same command again to resume"
_AGAIN = (
    "No incomplete file was left. Fix the cause, such as a full disk, and run the same command "
    "again"
)


def unwritten_refusal(error: BaseException, verb: str) -> str | None:
    """Return a message for a file that could not be written, or None for any other error.

    Args:
      verb: the command, which determines whether it can resume.
    """
    message = str(error)
    if isinstance(error, OSError) and "same command" in message:  # has more specific advice
        return " ".join(message.split())
    if not isinstance(error, NotWritten):
        cause, path = full_disk(error), _path_of(error)
        if not cause or not path:
            return None
        error = NotWritten(path, cause)
    return f"{error}. {_RESUMES if verb in _RESUMED else _AGAIN}"


def named_by_the_system(error: BaseException) -> str | None:
    """Return a message for a system error of a file or of standard output, or None for others."""
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if not error.filename:
        reason = full_disk(error)
        return (
            f"standard output: cannot be written: {reason}" if reason and _output_fails() else None
        )
    other = f" (and {os.fsdecode(error.filename2)})" if error.filename2 else ""
    return f"{os.fsdecode(error.filename)}{other}: {os.strerror(error.errno)}"


def _output_fails() -> bool:
    """Return whether another line break cannot be written to standard output."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return True
    return False


def _path_of(error: BaseException | None) -> str:
    """Return the first file named by an error or its causes; "" if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.filename:
            return os.fsdecode(error.filename)
        error = error.__cause__ or error.__context__
    return ""
