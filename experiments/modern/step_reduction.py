"""Measure how many steps a recipe needs with Muon to reach its final loss with AdamW."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from variants import VARIANTS, WITH_MUON


def held_out_loss(run: Mapping[str, Any], length: int) -> float | None:
    """Return a run's final loss on held-out rows of a given length; None if it is not scored."""
    loss: float | None = run["scores"].get("held-out", {}).get(str(length), {}).get("mlm_loss")
    return loss


def step_reduction(variants: Mapping[str, Any], base: str, length: int) -> dict[str, Any] | None:
    """Return how many steps a recipe needs with Muon to reach its final loss with AdamW.

    The loss of Muon's runs is interpolated linearly between the numbers of steps that were trained;
    each of these runs has its own complete schedule. Since the loss falls more slowly the longer
    the runs are, the interpolation tends to overestimate the steps. Only seeds with which all
    of these variants are scored are included. Variants without any score are left out.

    Args:
      variants: the results of each variant, keyed by its name.
      base: the name of the variant with AdamW, a key of `WITH_MUON`.
      length: the length of the held-out rows.

    Returns:
      The loss with AdamW, the number of steps and the loss of Muon's runs, and the number of steps
      at which Muon reaches the loss of AdamW, all for the mean losses of the seeds; `by_seed`
      contains the same for each seed. These steps are also given as a fraction of the steps with
      AdamW, and their FLOPs, including Muon's matrix products, as a fraction of the FLOPs with
      AdamW. `bound` is "at most" if even the shortest runs reach the loss of AdamW, "more than" if
      even the longest runs do not reach it, and empty otherwise. None if the variant with AdamW is
      not scored, if no shorter variant with Muon is, or if the scored variants have no seed in
      common.
    """
    scored = {
        name: runs
        for name in (base, *(variant.name for variant in WITH_MUON[base]))
        if (runs := _scored_runs(variants.get(name), length))
    }
    if base not in scored or all(VARIANTS[name].budget == 1 for name in scored):
        return None
    seeds = sorted(set.intersection(*map(set, scored.values())))
    if not seeds:
        return None

    def reduction(seeds: Sequence[str]) -> dict[str, Any]:
        means = {name: _means(runs, seeds, length) for name, runs in scored.items()}
        return _reduction(means.pop(base), means.values())

    return reduction(seeds) | {"by_seed": {seed: reduction([seed]) for seed in seeds}}


def _reduction(adamw: _Means, muon: Iterable[_Means]) -> dict[str, Any]:
    """Compare runs with Muon that have different numbers of steps with runs with AdamW."""
    runs = sorted(muon, key=lambda each: each.steps)
    reached, bound = runs[-1].steps, "more than"
    for before, run in zip([None, *runs], runs, strict=False):
        if run.loss <= adamw.loss:
            reached, bound = run.steps, "at most"
            if before is not None:
                part = (before.loss - adamw.loss) / (before.loss - run.loss)
                reached, bound = round(before.steps + part * (run.steps - before.steps)), ""
            break
    return {
        "adamw_loss": adamw.loss,
        "muon_losses": {run.steps: run.loss for run in runs},
        "bound": bound,
        "steps": reached,
        "share": reached / adamw.steps,
        "share_of_flops": reached / runs[-1].steps * runs[-1].flops / adamw.flops,
    }


def reduction_lines(
    reductions: Mapping[str, Mapping[str, dict[str, Any] | None]],
) -> Iterator[str]:
    """Yield a sentence on Muon's step reduction for each recipe and row length."""
    for base, by_length in reductions.items():
        for length, reduction in by_length.items():
            if reduction is not None:
                yield ""
                yield _sentence(base, length, reduction)


def _sentence(base: str, length: str, reduction: Mapping[str, Any]) -> str:
    steps = _bounded(reduction, f"{reduction['steps']:,}")
    share = _bounded(reduction, f"{reduction['share']:.0%}")
    share_of_flops = _bounded(reduction, f"{reduction['share_of_flops']:.0%}")
    by_seed = ", ".join(
        _bounded(each, f"{each['share']:.0%} with seed {seed}")
        for seed, each in reduction["by_seed"].items()
    )
    adamw, muon = VARIANTS[base].title, WITH_MUON[base][0].title
    return (
        f'On rows of {length} tokens, "{muon}" needs {steps} steps to reach the loss of "{adamw}" '
        f"({reduction['adamw_loss']:.3f}). This is {share} of its steps ({by_seed}) and, with "
        f"Muon's matrix products included, {share_of_flops} of its FLOPs."
    )


def _bounded(reduction: Mapping[str, Any], number: str) -> str:
    return f"{reduction['bound']} {number}".strip()


class _Means(NamedTuple):
    """The mean final loss of a variant's runs, and the steps and total FLOPs of each run."""

    loss: float
    steps: int
    flops: int


def _scored_runs(variant: Mapping[str, Any] | None, length: int) -> dict[str, Any]:
    """Return a variant's runs that are scored on held-out rows of a given length, by seed."""
    runs = variant["runs"] if variant else {}
    return {seed: run for seed, run in runs.items() if held_out_loss(run, length) is not None}


def _means(runs: Mapping[str, Any], seeds: Iterable[str], length: int) -> _Means:
    """Return the means over a variant's runs with the given seeds."""
    chosen = [runs[seed] for seed in seeds]
    loss = statistics.fmean(run["scores"]["held-out"][str(length)]["mlm_loss"] for run in chosen)
    return _Means(loss, chosen[0]["steps"], chosen[0]["flops"] + chosen[0]["muon_flops"])
