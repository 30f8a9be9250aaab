"""Measure how many steps Muon needs to reach the final loss of BERT's recipe."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from variants import SHORTER

# The variants with Muon, which differ only in their number of steps.
_MUON = ("muon", *(variant.name for variant in SHORTER))


def held_out_loss(run: Mapping[str, Any], length: int) -> float | None:
    """Return a run's final loss on held-out rows of a given length; None if it is not scored."""
    loss: float | None = run["scores"].get("held-out", {}).get(str(length), {}).get("mlm_loss")
    return loss


def step_reduction(variants: Mapping[str, Any], length: int) -> dict[str, Any] | None:
    """Return how many steps Muon needs to reach the final loss of BERT's recipe.

    The loss of Muon's runs is interpolated linearly between the numbers of steps that were trained;
    each of these runs has its own complete schedule. All losses are means over the seeds.

    Args:
      variants: the results of each variant, keyed by its name.
      length: the length of the held-out rows.

    Returns:
      The loss of BERT's recipe, the number of steps and the loss of Muon's runs, and the number of
      steps at which Muon reaches the loss of BERT's recipe. These steps are also given as a
      fraction of the steps of BERT's recipe, and their FLOPs, including Muon's matrix products, as
      a fraction of its FLOPs. `bound` is "at most" if even the shortest runs are better than BERT's
      recipe, and "more than" if not even the longest ones are. None if a loss is missing.
    """
    bert, *with_muon = (_means(variants.get(name), length) for name in ("bert", *_MUON))
    runs = sorted((each for each in with_muon if each), key=lambda each: each.steps)
    if bert is None or not runs:
        return None
    reached, bound = runs[-1].steps, "more than"
    for before, run in zip([None, *runs], runs, strict=False):
        if run.loss <= bert.loss:
            reached, bound = run.steps, "at most"
            if before is not None:
                part = (before.loss - bert.loss) / (before.loss - run.loss)
                reached, bound = round(before.steps + part * (run.steps - before.steps)), ""
            break
    return {
        "bert_loss": bert.loss,
        "muon_losses": {run.steps: run.loss for run in runs},
        "bound": bound,
        "steps": reached,
        "share": reached / bert.steps,
        "share_of_flops": reached / runs[-1].steps * runs[-1].flops / bert.flops,
    }


def reduction_lines(reductions: Mapping[str, dict[str, Any] | None]) -> Iterator[str]:
    """Yield a sentence on Muon's step reduction for each length of rows."""
    for length, reduction in reductions.items():
        if reduction is None:
            continue
        steps, share, share_of_flops = (
            f"{reduction['bound']} {number}".strip()
            for number in (
                f"{reduction['steps']:,}",
                f"{reduction['share']:.0%}",
                f"{reduction['share_of_flops']:.0%}",
            )
        )
        yield ""
        yield (
            f"On rows of {length} tokens, Muon needs {steps} steps to reach the loss of BERT's "
            f"recipe ({reduction['bert_loss']:.3f}). This is {share} of that recipe's steps and, "
            f"counting Muon's matrix products, {share_of_flops} of its FLOPs."
        )


class _Means(NamedTuple):
    """The mean final loss of a variant's runs, the steps of a run, and all FLOPs of a run."""

    loss: float
    steps: int
    flops: int


def _means(variant: Mapping[str, Any] | None, length: int) -> _Means | None:
    """Return the means over a variant's runs; None if one of them is not scored."""
    runs = list(variant["runs"].values()) if variant else []
    losses = [loss for run in runs if (loss := held_out_loss(run, length)) is not None]
    if not runs or len(losses) < len(runs):
        return None
    flops = runs[0]["flops"] + runs[0]["muon_flops"]
    return _Means(statistics.fmean(losses), runs[0]["steps"], flops)
