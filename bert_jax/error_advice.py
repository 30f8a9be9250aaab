"""Turn the error that ended a command into a short message with advice on what to change."""

from __future__ import annotations

from typing import TextIO

from bert_jax.failures import library_panic, memory_shortage, system_error, unwritten_file

# Commands that can resume from unfinished output.
_RESUMED = ("prepare", "pretrain", "finetune", "sweep")
_RESUMES = "Fix the cause, such as a full disk, and run the same command again to resume"
_AGAIN = (
    "No incomplete file was left behind. Fix the cause, such as a full disk, and run the same "
    "command again"
)
_SMALLER_STEP = (
    "Raise accumulation_steps, lower the batch size or set compute.remat='layer'; with multiple "
    "devices, mesh.fsdp shards the parameters and the optimizer state"
)
_SMALLER_SCORING = "Lower evaluation_batch_size or max_length, or use a device with more memory"
_FEWER_WORKERS = "Use fewer --workers or a smaller --unit-bytes"
_WEIGHTS = "All weights are held in memory at once. Use a machine with more memory"
# Advice for a command that ran out of memory, keyed by verb.
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
    "verify": "All weights of both models are held in memory at once. Use a machine with more "
    "memory",
    "plan": "Plan a smaller model or batch, or compile on a machine with more memory",
    "bench data": "Use a smaller --batch-size or fewer --workers",
    "bench prepare": _FEWER_WORKERS,
    "bench step": f"{_SMALLER_STEP}. `bert-jax plan` finds a setting that fits",
    "predict": "Lower --batch-size or --max-length",
}
_ELSEWHERE = "Use a machine with more memory"


def file_message(error: BaseException, verb: str, output: TextIO) -> str | None:
    """Return a message about a file that could not be read or written, or None for other errors.

    Args:
      error: the error that ended the command.
      verb: the command, such as "bench step". The advice depends on whether it can resume.
      output: the standard output of the process.
    """
    advice = _RESUMES if verb in _RESUMED else _AGAIN
    return unwritten_file(error, advice) or system_error(error, output)


def library_message(error: BaseException, verb: str) -> str | None:
    """Return a message about a memory shortage or a library panic, or None for other errors.

    Args:
      error: the error that ended the command.
      verb: the command, such as "bench step", which determines the advice.
    """
    advice = _ADVICE.get(verb, _ELSEWHERE)
    return memory_shortage(error, advice) or library_panic(error)
