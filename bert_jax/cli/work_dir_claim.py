"""Whether a run may write into a directory that is there."""

from __future__ import annotations

from pathlib import Path

from bert_jax.cli.config import RESOLVED_NAME
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.inference.work_dir import MODEL_NAME, TOKENIZER_NAME


def check_claimable(work_dir: Path, tokenizer: Tokenizer, *, begun: bool) -> None:
    """Refuses a directory that has what no run wrote in the places of a run's own.

    tokenizer: the run's, which may lie there already. begun: whether a checkpoint does.

    Raises:
      ValueError: it has a config or another tokenizer of somebody else's.
    """
    if begun or (work_dir / MODEL_NAME).is_file():  # which a run writes first
        return
    if (work_dir / RESOLVED_NAME).is_file():
        raise ValueError(
            f"work_dir={work_dir} has a {RESOLVED_NAME}, which no run wrote (there is no "
            f"{MODEL_NAME}), and would lose it: choose another directory"
        )
    if (work_dir / TOKENIZER_NAME).exists() and not holds(work_dir, tokenizer):
        raise ValueError(
            f"work_dir={work_dir} has another tokenizer in it than the run's, and would lose it: "
            "choose another directory"
        )


def holds(work_dir: Path, tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer in a directory is this one."""
    try:
        return Tokenizer.load(work_dir / TOKENIZER_NAME).fingerprint == tokenizer.fingerprint
    except ValueError:
        return False
