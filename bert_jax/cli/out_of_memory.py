"""Recognize libraries' out-of-memory errors without importing the libraries."""

from __future__ import annotations

import errno
from collections.abc import Iterator

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
