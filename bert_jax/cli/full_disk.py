"""Sentences about files that cannot be written, on a full disk for example, with advice."""

from __future__ import annotations

import os

from bert_jax.files import NotWritten, full_disk

# Commands that continue from their unfinished output.
_RESUMED = ("prepare", "pretrain", "finetune", "sweep")
_RESUMES = "Fix the cause, such as a full disk, and the same command resumes"
_AGAIN = (
    "No incomplete file was left: fix the cause, such as a full disk, and give the same command "
    "again"
)


def unwritten_refusal(error: BaseException, verb: str) -> str | None:
    """Return a sentence about a file that cannot be written, or None if that is not the error.

    Args:
      verb: the command, which decides whether it resumes.
    """
    message = str(error)
    if isinstance(error, OSError) and "same command" in message:  # whoever raised it knows more
        return " ".join(message.split())
    if not isinstance(error, NotWritten):
        cause, path = full_disk(error), _path_of(error)
        if not cause or not path:
            return None
        error = NotWritten(path, cause)
    return f"{error}. {_RESUMES if verb in _RESUMED else _AGAIN}"


def named_by_the_system(error: BaseException) -> str | None:
    """Return a sentence for an error in which the system names a file; None for all others."""
    if not isinstance(error, OSError) or error.errno is None or not error.filename:
        return None
    other = f" (and {os.fsdecode(error.filename2)})" if error.filename2 else ""
    return f"{os.fsdecode(error.filename)}{other}: {os.strerror(error.errno)}"


def _path_of(error: BaseException | None) -> str:
    """Return the file of the first error, of this one and its causes, that names one."""
    while error is not None:
        if isinstance(error, OSError) and error.filename:
            return os.fsdecode(error.filename)
        error = error.__cause__ or error.__context__
    return ""
