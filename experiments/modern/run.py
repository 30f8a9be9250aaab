r"""Compare BERT's recipe with newer choices, separately and combined, at equal FLOPs.

    python experiments/modern/run.py --data DATA --work runs/modern

DATA contains corpus_small/, corpus_large/, glue/ and blimp/. The command prepares the text, tunes
the learning rates, pretrains every variant with every seed, and scores the models on held-out text,
minimal pairs and two tasks. It then prints the tables, and writes results.json,
table.md and comparison.png to the --work folder. If it is stopped, repeat it to resume. With
--steps, it performs only some of these steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Make this folder's modules, the shared modules and an uninstalled checkout importable.
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "finetuning"), str(ROOT)]

from commands import claim, locked  # noqa: E402
from corpus import description_of, opened, prepare  # noqa: E402
from extension import adopt_published, forget_if_incomplete  # noqa: E402
from jobs import Job, in_parallel, required, run_all, run_available  # noqa: E402
from options import CHANGEABLE, SETTINGS, arguments  # noqa: E402
from pretraining import Laboratory  # noqa: E402
from report import draw, table, tuning_table  # noqa: E402
from scores import EPOCHS, Scorer  # noqa: E402
from step_reduction import reduction_lines, step_reduction  # noqa: E402
from variants import VARIANTS, WITH_MUON, Settings, tuned_variants, tuned_with  # noqa: E402

from bert_jax.files import write_file  # noqa: E402
from bert_jax.processes import tune_malloc_for_training  # noqa: E402
from bert_jax.runs.runtime import enable_compilation_cache  # noqa: E402


def corpora_of(args: argparse.Namespace) -> Path:
    """Return the folder with the prepared corpora."""
    return args.corpora.resolve() if args.corpora else args.work / "corpora"


def laboratory(args: argparse.Namespace) -> Laboratory:
    """Return the inputs and settings that all pretraining runs share."""
    corpora = corpora_of(args)
    lengths = tuple(args.lengths)
    return Laboratory(
        args.work,
        corpora,
        opened(corpora, lengths),
        Settings(args.tokens, lengths, args.batch_tokens, args.dtype, args.fast),
        args.learning_rates,
        args.loader_workers,
    )


def scorer(args: argparse.Namespace) -> Scorer:
    """Return the scorer for the pretrained models."""
    rates = args.finetuning_rates
    corpora = [corpora_of(args) / str(length) for length in args.lengths]
    return Scorer(args.data, args.work, corpora, args.pairs, rates, args.dtype, args.fast)


def scoring_jobs(pretrained: Job, name: str, args: argparse.Namespace) -> dict[str, Job]:
    """Return the jobs that score a variant's model, keyed by the name of the score."""
    jobs = scorer(args).jobs(pretrained, everything=VARIANTS[name].budget == 1)
    return {job.output.stem: job for job in jobs}


def run_jobs(args: argparse.Namespace) -> None:
    """Tune, train and score, or do only the requested steps."""
    lab = laboratory(args)
    tune_malloc_for_training()
    enable_compilation_cache()
    if "tune" in args.steps:
        names = tuned_variants(args.variants)
        for optimizer in ("adamw", "muon"):
            tuned = [name for name in names if VARIANTS[name].optimizer == optimizer]
            run_all([job for name in tuned for job in lab.trials(name).values()])
    if not {"train", "score"} & set(args.steps):
        return
    # Train all variants with one seed before the next one, so that later seeds can reuse the
    # compiled programs.
    runs: list[tuple[Job, dict[str, Job]]] = []
    for seed in range(args.seeds):
        for name in args.variants:
            pretrained = lab.training_job(name, seed)
            scoring = scoring_jobs(pretrained, name, args)
            forget_if_incomplete(pretrained, scoring)
            runs.append((pretrained, scoring))
    train_and_score(runs, args.steps)


def train_and_score(runs: Sequence[tuple[Job, dict[str, Job]]], steps: Sequence[str]) -> None:
    """Train all models, score them, or do both; `steps` contains "train", "score" or both."""
    training = [pretrained for pretrained, _ in runs]
    if {"train", "score"} <= set(steps):
        run_available(training)
        # While other processes are still training, score the models that are finished.
        run_available(scoring_of_finished(runs))
    if "train" in steps:
        run_all(training)
    if "score" in steps:
        for pretrained in training:
            required(pretrained)
        run_all(scoring_of_finished(runs))


def scoring_of_finished(runs: Sequence[tuple[Job, dict[str, Job]]]) -> list[Job]:
    """Return the scoring jobs of all finished models that did not diverge."""
    return [
        job
        for pretrained, scoring in runs
        if (result := pretrained.result()) and not result["diverged"]
        for job in scoring.values()
    ]


def results(args: argparse.Namespace) -> dict[str, Any]:
    """Collect the results of all finished runs."""
    lab = laboratory(args)
    tuned = [name for name in tuned_variants(args.variants) if lab.is_tuned(name)]
    variants: dict[str, Any] = {}
    for variant in map(VARIANTS.__getitem__, args.variants):
        seeds = range(args.seeds if tuned_with(variant) in tuned else 0)
        jobs = {seed: lab.training_job(variant.name, seed) for seed in seeds}
        runs = {
            str(seed): run_results(job, variant.name, args)
            for seed, job in jobs.items()
            if job.result()
        }
        if runs:
            described = {"title": variant.title, "changes": variant.changes}
            described |= {"budget": variant.budget}
            variants[variant.name] = described | {"runs": runs}
    return {
        "date": datetime.date.today().isoformat(),
        "settings": {name: getattr(args, name) for name in (*SETTINGS, *CHANGEABLE)},
        "corpora": description_of(lab.manifests),
        "learning_rates": {name: lab.tuned_rate(name) for name in tuned},
        "tuning": {name: losses for name in tuned if (losses := tuning_of(name, lab, args))},
        "variants": variants,
        "step_reductions": {
            base: {str(length): step_reduction(variants, base, length) for length in args.lengths}
            for base in WITH_MUON
        },
    }


def tuning_of(name: str, lab: Laboratory, args: argparse.Namespace) -> dict[str, float | None]:
    """Return the final loss of each trial of a variant, which may be published."""
    if lab.trials(name):
        return {f"{rate:g}": loss for rate, loss in lab.trial_losses(name).items()}
    losses: dict[str, float | None] = {}
    if args.published and has_published_rates(name, args):
        losses = args.published["tuning"].get(name, {})
    return losses


def run_results(pretrained: Job, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the results of a pretraining run, with the scores that exist so far."""
    jobs = scoring_jobs(pretrained, name, args)
    scores = {score: result for score, job in jobs.items() if (result := job.result())}
    for task in EPOCHS:
        # The best score is reported, so leave out a task until it is scored at all rates.
        rates = [score for score in jobs if score.startswith(f"{task}-")]
        if not scores.keys() >= set(rates):
            scores = {score: result for score, result in scores.items() if score not in rates}
    finished = {pretrained.output.stem: pretrained} | {score: jobs[score] for score in scores}
    hashes = {stem: job.recipe_hash for stem, job in finished.items()}
    return required(pretrained) | {"scores": scores, "recipes": hashes}


def has_published_rates(name: str, args: argparse.Namespace) -> bool:
    """Return whether a variant uses the learning rates of the published results."""
    variant, rates = VARIANTS[name], args.published["learning_rates"]
    return all(
        args.learning_rates[tuned] == [rates.get(tuned)]
        for tuned in (variant.base, tuned_with(variant))
    )


def check_corpora(args: argparse.Namespace) -> None:
    """Exit if a corpus is unusable, or if the published results have other corpora."""
    manifests = opened(corpora_of(args), args.lengths)
    if not args.extend:
        return
    published = args.published["corpora"]
    # The names of the source files may differ, for example if they are compressed.
    if {length: corpus["fingerprint"] for length, corpus in published.items()} != {
        str(length): manifest.fingerprint for length, manifest in manifests.items()
    }:
        raise SystemExit(
            f"--extend={args.extend}: was measured with different corpora. Use the same data and "
            "the version of the code with which they were prepared"
        )


def extend(args: argparse.Namespace) -> None:
    """Adopt the published runs of the chosen variants and seeds, and all of their scores.

    Runs for which --learning-rates contains other rates are not adopted.
    """
    check_corpora(args)
    lab, content = laboratory(args), args.published
    for name in args.variants:
        runs = content["variants"].get(name, {"runs": {}})["runs"]
        if not has_published_rates(name, args):
            if runs:
                print(
                    f"{name}: the published runs are not used, since --learning-rates contains "
                    "other rates",
                    flush=True,
                )
            continue
        for seed, run in runs.items():
            if int(seed) < args.seeds:
                pretrained = lab.training_job(name, int(seed))
                adopt_published(run, pretrained, scoring_jobs(pretrained, name, args))


def write_report(args: argparse.Namespace) -> None:
    """Write the results, the tables and the plot, and print the tables."""
    content = results(args)
    if not content["variants"]:
        raise SystemExit(
            f"--work={args.work}: contains no finished pretraining run at a tuned learning "
            "rate. Run the same command without --steps"
        )
    lines = [*tuning_table(content["tuning"]), ""] if content["tuning"] else []
    lines += table(content["variants"], args.lengths)
    lines += reduction_lines(content["step_reductions"])
    write_file(args.work / "results.json", json.dumps(content, indent=1) + "\n")
    write_file(args.work / "table.md", "\n".join(lines) + "\n")
    draw(content["variants"], args.work / "comparison.png")
    print("\n".join(lines))


def main(words: Sequence[str]) -> None:
    """Perform the requested steps."""
    args = arguments(words, __doc__)
    if args.corpora or "prepare" not in args.steps:
        check_corpora(args)
    claim(args.work, {name: getattr(args, name) for name in SETTINGS})
    if "prepare" in args.steps and not args.corpora:
        with locked(args.work / "corpora.lock"):
            prepare(args.data, args.work, args.lengths, fast=args.fast)
    steps = [step for step in ("tune", "train", "score") if step in args.steps]
    if args.extend:
        extend(args)
    if steps and args.parallel > 1:
        share = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / args.parallel:.3f}")
        in_parallel(
            args.parallel,
            [str(HERE / "run.py"), *words, "--parallel", "1", "--steps", *steps],
            {"XLA_PYTHON_CLIENT_MEM_FRACTION": share},
        )
    elif steps:
        run_jobs(args)
    if "report" in args.steps:
        write_report(args)


if __name__ == "__main__":
    main(sys.argv[1:])
