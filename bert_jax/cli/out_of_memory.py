"""Errors of libraries that ran out of memory, recognized without importing the libraries."""

from __future__ import annotations

import errno
from collections.abc import Iterator

_SMALLER_STEP = (
    "Raise accumulation_steps, lower the batch size or set compute.remat='layer'; over several "
    "devices mesh.fsdp splits the parameters and the optimizer state"
)
_SMALLER_SCORING = "Lower evaluation_batch_size or max_length, or use a device with more memory"
_FEWER_WORKERS = "Use fewer --workers or a smaller --unit-bytes"
_WEIGHTS = "All weights are in memory at once: use a machine with more of it"
# Advice by verb.
_ADVICE = {
    "prepare": _FEWER_WORKERS,
    "train-tokenizer": "Lower --max-bytes or --vocab-size",
    "pretrain": f"{_SMALLER_STEP}. `bert-jax plan` finds a setting that fits",
    "finetune": f"{_SMALLER_STEP}. tuning.top_layers trains fewer layers",
    "evaluate": _SMALLER_SCORING,
    "sweep": f"{_SMALLER_STEP}. Smaller --batch-sizes help too",
    "import": _WEIGHTS,
    "export": _WEIGHTS,
    "extract": _WEIGHTS,
    "verify": f"{_WEIGHTS}; both models are loaded",
    "plan": "Plan a smaller model or batch, or use a machine with more memory to compile on",
    "bench data": "Use a smaller --batch-size or fewer --workers",
    "bench prepare": _FEWER_WORKERS,
    "bench step": f"{_SMALLER_STEP}. `bert-jax plan` finds a setting that fits",
    "predict": "Lower --batch-size or --max-length",
}
_ELSEWHERE = "Use a machine with more memory"
# Phrases of XLA, PyTorch, ONNX Runtime, Rust's allocator and Python's threads, which raise errors
# of general classes.
_PHRASES = (
    *("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "capacity overflow"),
    *("not enough memory", "can't allocate memory", "Failed to allocate memory"),
    *("memory allocation of", "can't start new thread"),
)
_GENERAL = ("RuntimeError", "RuntimeException", "Fail", "PanicException")
_LIBRARY_PANIC = "PanicException"  # pyo3's, which derives from BaseException only


def memory_refusal(error: BaseException, verb: str) -> str | None:
    """Return a sentence about running out of memory if that is what an error comes from.

    verb: the words of the command, such as "bench step", which decide the advice.
    """
    for cause in _chain(error):
        if _is_shortage(cause):
            detail = " ".join(str(cause).split())[:200].rstrip(".")
            return (
                f"out of memory{f' ({detail})' if detail else ''}. {_ADVICE.get(verb, _ELSEWHERE)}."
            )
    return None


def panic_refusal(error: BaseException) -> str | None:
    """Return a sentence about a panic in a library written in Rust, such as tokenizers."""
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
    if isinstance(error, MemoryError):  # also numpy's and pyarrow's
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names.intersection(_GENERAL)) and any(x in str(error) for x in _PHRASES)
