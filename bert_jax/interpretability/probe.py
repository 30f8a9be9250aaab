"""Run the requested kind of probe on a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, assert_never, get_args

from bert_jax.interpretability.emergence import Emergence, probe_checkpoints
from bert_jax.interpretability.head_probe import MIN_COUNT, HeadProbe, OnProgress, probe_heads
from bert_jax.interpretability.layer_probe import probe_layers
from bert_jax.labeled_data.treebank import find_treebank, read_treebank
from bert_jax.validation import check_choice

Target = Literal["heads", "tags", "relations"]


class Saved(Protocol):
    """A probe result that can be saved to a file."""

    def save(self, path: str | Path) -> None:
        """Write the result to a JSON file."""


class Probed(NamedTuple):
    """The result of a probe, along with the lines of a table that shows it."""

    result: Saved
    lines: Sequence[str]


def probe(
    model: str | Path,
    treebank: str | Path,
    target: Target,
    *,
    step: int | None = None,
    every_checkpoint: bool = False,
    plot: str | Path | None = None,
    min_count: int | None = None,
    on_progress: OnProgress | None = None,
) -> Probed:
    """Probe the attention heads or the layers of a model.

    Args:
      model: the work directory of a run or of `bert-jax import`.
      treebank: a CoNLL-U file, or a directory with the files of a treebank.
      target: "heads" for `probe_heads`; "tags" or "relations" for `probe_layers`.
      step: the step of the checkpoint; if None, the best one of a fine-tuning run, or the newest
        one of any other model.
      every_checkpoint: whether to probe the heads at every checkpoint of a run.
      plot: where to save a PNG plot of the accuracies at every checkpoint; None for no plot.
      min_count: the minimum number of times that a relation must occur to be listed (100 by
        default); used only for "heads".
      on_progress: called with each progress message, a line of text.

    Raises:
      ValueError: the arguments contradict each other, a file is missing or malformed, or the probe
        fails.
    """
    check_choice("target", target, get_args(Target))
    if every_checkpoint and (target != "heads" or step is not None):
        raise ValueError(
            "every_checkpoint=True: this probes heads at every checkpoint. Omit target and step."
        )
    if plot is not None and not every_checkpoint:
        raise ValueError(
            f"plot={plot}: applies only with every_checkpoint. Set every_checkpoint, or omit plot."
        )
    if min_count is not None and target != "heads":
        raise ValueError(f"min_count={min_count}: applies only to target='heads'. Omit it.")
    test = read_treebank(find_treebank(treebank, "test"))
    match target:
        case "heads":
            heads: HeadProbe | Emergence
            listed = MIN_COUNT if min_count is None else min_count
            if every_checkpoint:
                heads = probe_checkpoints(model, test, on_progress=on_progress)
                if plot is not None:
                    heads.plot(plot, listed)
            else:
                heads = probe_heads(model, test, step=step, on_progress=on_progress)
            return Probed(heads, [*heads.lines(listed), *test.notes])
        case "tags" | "relations":
            train = read_treebank(find_treebank(treebank, "train"))
            layers = probe_layers(
                model, train, test, target=target, step=step, on_progress=on_progress
            )
            return Probed(layers, [*layers.lines(), *test.notes])
        case _:
            assert_never(target)
