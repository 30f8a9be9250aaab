"""Determine which scores a command requests, and check its options before any work is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.language_scores.minimal_pairs import MinimalPairScores, score_minimal_pairs
from bert_jax.language_scores.progress import OnProgress
from bert_jax.language_scores.text_scores import MAX_SENTENCES, TextScores, score_text
from bert_jax.text.sources import SourceOptions

# A dict from each kind of evaluation, named after its input, to the options that apply only to it.
_KINDS = {
    "--minimal-pairs": ("whole_words", "max_pairs", "plot"),
    "--text": ("text_field", "max_length", "max_sentences"),
    "a fine-tuned model": ("config", "data", "unlabelled", "predictions", "distributed"),
}


def check_options(options: Mapping[str, Any]) -> None:
    """Check that all given options of `evaluate` apply to the same kind of evaluation.

    Args:
      options: the values of the command's options, keyed by the option's name with underscores.

    Raises:
      ValueError: both --text and --minimal-pairs are given, or an option applies only to another
        kind of evaluation.
    """
    if options["text"] and options["minimal_pairs"]:
        raise ValueError("--text and --minimal-pairs: choose one of the two.")
    kind = "a fine-tuned model"
    if options["minimal_pairs"]:
        kind = "--minimal-pairs"
    elif options["text"]:
        kind = "--text"
    for other, names in _KINDS.items():
        wrong = [name for name in names if options[name]] if other != kind else []
        if wrong:
            option = f"--{wrong[0].replace('_', '-')}"
            raise ValueError(f"{option}: applies only to {other}. {_fix(kind, other, option)}")


def _fix(kind: str, other: str, option: str) -> str:
    if kind == "a fine-tuned model":
        return f"Add {other}, or omit {option}."
    return f"Omit {option} or {kind}."


def score_pretrained(
    work_dir: str,
    text: Sequence[str] | None,
    minimal_pairs: str | None,
    *,
    text_field: str | None = None,
    max_length: int | None = None,
    max_sentences: int | None = None,
    whole_words: bool = False,
    max_pairs: int | None = None,
    step: int | None = None,
    on_progress: OnProgress | None = None,
) -> TextScores | MinimalPairScores:
    """Score a pretrained model on text or on minimal pairs.

    Args:
      work_dir: the model's work directory.
      text: the inputs for `score_text`; None to use `minimal_pairs`.
      minimal_pairs: the data for `score_minimal_pairs`.
      text_field: the field that contains the text; None for the default.
      max_length: the maximum number of tokens in a row, for `score_text`.
      max_sentences: the maximum number of sentences in the sample, for `score_text`; None for the
        default.
      whole_words: whether to mask the rest of a word along with each token, for
        `score_minimal_pairs`.
      max_pairs: the maximum number of pairs from each paradigm, for `score_minimal_pairs`.
      step: the step of the checkpoint; if None, the best or newest one.
      on_progress: called with progress messages.
    """
    if text:
        return score_text(
            work_dir,
            text,
            max_length=max_length,
            max_sentences=MAX_SENTENCES if max_sentences is None else max_sentences,
            step=step,
            sources=SourceOptions(text_field=text_field) if text_field else None,
            on_progress=on_progress,
        )
    assert minimal_pairs is not None
    return score_minimal_pairs(
        work_dir,
        minimal_pairs,
        whole_words=whole_words,
        max_pairs=max_pairs,
        step=step,
        on_progress=on_progress,
    )
