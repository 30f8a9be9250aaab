"""Explain errors in one sentence: a full disk, too little memory, uncaught exceptions.

Imports none of the libraries that raise them.
"""

from __future__ import annotations

import _thread
import errno
import os
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

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


_SMALLER_STEP = (
    "Raise accumulation_steps, lower the batch size or set compute.remat='layer'; with several "
    "devices, mesh.fsdp shards the parameters and the optimizer state"
)
_SMALLER_SCORING = "Lower evaluation_batch_size or max_length, or use a device with more memory"
_FEWER_WORKERS = "Use fewer --workers or a smaller --unit-bytes"
_WEIGHTS = "All weights are in memory at once. Use a machine with more memory"
# Keys are verbs.
_ADVICE = {
    "prepare": _FEWER_WORKERS,
    "train-tokenizer": "Lower --max-bytes or --vocab-size",
    "pretrain": f"{_SMALLER_STEP}. `bert-jax plan` finds a setting that fits",
    "finetune": f"{_SMALLER_STEP}. To train fewer layers, set tuning.top_layers",
    "evaluate": _SMALLER_SCORING,
    "sweep": f"{_SMALLER_STEP}. Smaller --batch-sizes also help",
    "import": _WEIGHTS,
    "export": _WEIGHTS,
    "extract": _WEIGHTS,
    "verify": f"{_WEIGHTS}; verify loads both models",
    "plan": "Plan a smaller model or batch, or compile on a machine with more memory",
    "bench data": "Use a smaller --batch-size or fewer --workers",
    "bench prepare": _FEWER_WORKERS,
    "bench step": f"{_SMALLER_STEP}. `bert-jax plan` finds a setting that fits",
    "predict": "Lower --batch-size or --max-length",
}
_ELSEWHERE = "Use a machine with more memory"
# XLA, PyTorch, ONNX Runtime, Rust's allocator and Python's threads raise general error classes with
# these phrases.
_PHRASES = (
    *("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "capacity overflow"),
    *("not enough memory", "can't allocate memory", "Failed to allocate memory"),
    *("memory allocation of", "can't start new thread"),
)
_GENERAL = ("RuntimeError", "RuntimeException", "Fail", "PanicException")
_LIBRARY_PANIC = "PanicException"  # defined by pyo3; derives from BaseException, not Exception


def memory_refusal(error: BaseException, verb: str) -> str | None:
    """Return a message if an error was caused by running out of memory, else None.

    verb: the command, such as "bench step", which determines the advice.
    """
    for cause in _chain(error):
        if _is_shortage(cause):
            detail = " ".join(str(cause).split())[:200].rstrip(".")
            return (
                f"out of memory{f' ({detail})' if detail else ''}. {_ADVICE.get(verb, _ELSEWHERE)}."
            )
    return None


def panic_refusal(error: BaseException) -> str | None:
    """Return a message for a panic in a Rust library such as tokenizers, else None."""
    if type(error).__name__ != _LIBRARY_PANIC:
        return None
    return f"a library stopped with an internal error: {' '.join(str(error).split())[:300]}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )


def _is_shortage(error: BaseException) -> bool:
    if isinstance(error, MemoryError):  # base class of numpy's and pyarrow's
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names.intersection(_GENERAL)) and any(x in str(error) for x in _PHRASES)


_AGAIN_SECONDS = 0.05


def raise_lost_interrupts() -> None:
    """Raise KeyboardInterrupts again that Python would only print.

    Ctrl-C may arrive during a callback of the garbage collector, such as JAX's.
    """
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            # Raised later, since Python would only print it here as well.
            again = threading.Timer(_AGAIN_SECONDS, _thread.interrupt_main)
            again.daemon = True
            again.start()
        else:
            previous(unraisable)

    sys.unraisablehook = hook


def ignore_closed_loops() -> None:
    """Print nothing when a thread reports to an event loop that is closed.

    TensorStore's threads do so when another part of the same save has failed already, and a full
    disk fails all parts of it. Depending on where they fail, Python gets the error as an uncaught
    or as an unraisable one. The first error is raised and reported.
    """
    uncaught, unraisable = sys.excepthook, sys.unraisablehook

    def on_uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if not _is_closed_loop(error):
            uncaught(kind, error, trace)

    def on_unraisable(event: Any) -> None:
        if not _is_closed_loop(event.exc_value):
            unraisable(event)

    sys.excepthook, sys.unraisablehook = on_uncaught, on_unraisable


def _is_closed_loop(error: BaseException | None) -> bool:
    return type(error) is RuntimeError and str(error) == "Event loop is closed"
