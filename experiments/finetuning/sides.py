"""Run one side of a task's comparison: a sweep from the pretrained model or from random parameters.

With --after-mnli, the sweep instead starts from a model that was fine-tuned on MNLI.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
from pathlib import Path

from commands import ROOT, bert_jax
from mnli import mnli_run
from sweeps import after_epochs
from tasks import Files, Task

from bert_jax.finetuning.sweep_directory import IDENTITY_NAME
from bert_jax.finetuning.sweep_results import SweepResults, read_results


def swept(
    task: Task, files: Files, side: str, output: Path, args: argparse.Namespace
) -> SweepResults:
    """Run or resume a sweep until it is finished, and return its results."""
    words = ["--config", ROOT / f"configs/finetune/{task.recipe}.py", *_start(side, args)]
    words += ["--output", output, "--keep", "none", "--seeds", str(args.seeds)]
    words += ["--batch-sizes", str(args.batch_size), "--epochs", str(args.epochs)]
    words += ["--learning-rates", *map(str, args.learning_rates), *files.overrides(task)]
    words += [f"--config.max_length={args.max_length}"]
    words += [f"--config.spans.doc_stride={args.doc_stride}"] if args.doc_stride else []
    parts = (
        ("dropout",) if task.name == "SQuAD" else ("dropout", "head_dropout")
    )  # SQuAD's head has no dropout.
    words += [f"--config.{part}={args.dropout}" for part in parts]
    words += [f"--config.compute.dtype={args.dtype}", "--config.evaluations_per_epoch=1"]
    bert_jax("sweep", *words)
    return read_results(output)


def _start(side: str, args: argparse.Namespace) -> list[str | Path]:
    if args.after_mnli:
        return ["--init", mnli_run(args.work, side)]
    scratch = ["--config.from_scratch=true"] if side == "from_scratch" else []
    return ["--init", args.model, *scratch]


def side_of(results: SweepResults, output: Path) -> dict:
    """Return all seeds' scores at the learning rate and epoch that are best on average.

    A learning rate at which any seed diverged is avoided: it is chosen only if every rate has at
    least one seed that diverged. `bert_jax.finetuning.sweep_results.summarize` has the same rule.
    """
    metric, learned = results.metric, {}
    for run in results.runs:
        of_rate = learned.setdefault(run.hyperparameters.learning_rate, [])
        of_rate += [] if run.diverged else [after_epochs(run, output)]
    means = {
        rate: [statistics.fmean(seed[metric] for seed in epoch) for epoch in zip(*runs)]  # noqa: B905
        for rate, runs in learned.items()
    }
    diverged = {
        rate: sum(
            bool(run.diverged) for run in results.runs if run.hyperparameters.learning_rate == rate
        )
        for rate in learned
    }
    places = [(rate, epoch) for rate, of_rate in means.items() for epoch in range(len(of_rate))]
    if not places:
        raise SystemExit(f"{output}: all runs diverged. Use lower --learning-rates")
    best, epoch = max(places, key=lambda at: (not diverged[at[0]], means[at[0]][at[1]]))
    scores = [run[epoch] for run in learned[best]]
    made = {name: getattr(results.provenance, name) for name in ("date", "hardware", "versions")}
    return {
        "metric": metric,
        "learning_rate": best,
        "epoch": epoch + 1,
        "scores": {name: [seed[name] for seed in scores] for name in scores[0]},
        "mean_by_rate_and_epoch": {str(rate): of_rate for rate, of_rate in means.items()},
        "chance": results.chance,
        "at_chance": sum(seed[metric] <= results.chance for seed in scores),
        "diverged": diverged[best],
        "seconds": sum(
            run.seconds for run in results.runs if run.hyperparameters.learning_rate == best
        ),
    } | made


def on_test_set(results: SweepResults, output: Path, epoch: int) -> dict:
    """Return the seeds' scores after the given epoch of a sweep that evaluates on the test set.

    The sweep has a single learning rate. Parameters depend on the seed and the rate, but not on the
    evaluated set, so these are the models whose rate and epoch were chosen on the validation set.
    Diverged runs have no scores.
    """
    after = [after_epochs(run, output)[epoch - 1] for run in results.runs if not run.diverged]
    return {
        "metric": results.metric,
        "scores": {name: [seed[name] for seed in after] for name in after[0]},
        "chance": results.chance,
    }


def made_of(output: Path, settings: dict) -> str:
    """Return a checksum of everything that two sides must share in order to be comparable.

    This includes the recipe, examples, vocabulary, precision, learning rates and seeds.
    """
    identity = json.loads((output / IDENTITY_NAME).read_text(encoding="utf-8"))
    for name in ("parameters of init_from", "keep"):
        identity.pop(name, None)
    config = identity["config"]
    for name in ("init_from", "from_scratch"):
        del config[name]
    # Leave out the files' locations, since the sweep's identity already contains their checksums.
    for section in ("glue", "spans", "tags"):
        for name in ("directory", "files"):
            (config[section] or {}).pop(name, None)
    content = json.dumps({"sweep": identity, "settings": settings}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
