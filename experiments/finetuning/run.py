r"""What pretraining is worth on seven tasks, beside no pretraining and beside no encoder at all.

    python experiments/finetuning/run.py MODEL --data DATA --work runs/finetuning

MODEL is the work directory of `bert-jax pretrain` or `import`. DATA holds glue/, squad/,
squad_shifts/ and ner_wnut17/. Each task is a `bert-jax sweep` from MODEL and one from random
parameters of the same sizes, over the same rates and seeds, and a baseline. Killed at any moment,
the same command goes on where it was. Writes results.json and a picture a task, and
prints the table; with --fast, for a check in minutes, into the folder --work. Tasks that are not
named keep their results of the same model, so that a slow one may be given fewer rates:

    run.py MODEL ... --tasks SQuAD --learning-rates 3e-4 --epochs 2
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The modules beside this one are imported, and the package by a checkout that is not installed.
sys.path[:0] = [str(HERE), str(ROOT)]

from baselines import baseline_scores  # noqa: E402
from report import SIDES, draw, table  # noqa: E402
from tasks import TASKS, Files, Task, files_of  # noqa: E402

from bert_jax.finetuning.sweep_results import SweepResults, read_results  # noqa: E402
from bert_jax.inference.work_dir import chosen_step, read_model  # noqa: E402

SETTINGS = ("seeds", "epochs", "batch_size", "learning_rates", "max_length", "dropout", "dtype")


def sweep(task: Task, files: Files, side: str, args: argparse.Namespace) -> SweepResults:
    """Runs a sweep to its end, which it may have reached before."""
    output = args.work / task.name / side
    words = [sys.executable, "-m", "bert_jax.cli.main", "sweep", "--init", str(args.model)]
    words += ["--config", str(ROOT / f"configs/finetune/{task.recipe}.py"), "--keep", "none"]
    words += ["--output", str(output), "--seeds", str(args.seeds), *files.overrides(task)]
    words += ["--batch-sizes", str(args.batch_size), "--epochs", str(args.epochs)]
    words += ["--learning-rates", *map(str, args.learning_rates)]
    words += [f"--config.max_length={args.max_length}"] if args.max_length else []
    words += [f"--config.compute.dtype={args.dtype}", f"--config.dropout={args.dropout}"]
    words += ["--config.from_scratch=true"] if side == "from_scratch" else []
    ended = subprocess.run(words, cwd=ROOT)
    if ended.returncode:
        raise SystemExit(f"the sweep of {task.name} ended early: the same command goes on")
    return read_results(output)


def side_of(results: SweepResults) -> dict:
    """The seeds at the rate that is best on average."""
    best = results.summaries[0].combination
    runs = [run for run in results.runs if run.dials.combination == best]
    return {
        "learning_rate": best.learning_rate,
        "scores": [run.scores[results.metric] for run in runs if not run.diverged],
        "degenerate": sum(run.degenerate for run in runs),
        "seconds": sum(run.seconds for run in runs),
    }


def baselines(task: Task, files: Files, work: Path) -> dict[str, float]:
    """The baselines' scores, computed once."""
    file = work / task.name / "baselines.json"
    if not file.is_file():
        file.write_text(json.dumps(baseline_scores(task, files)), encoding="utf-8")
    scores: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return scores


def measure(task: Task, args: argparse.Namespace) -> dict:
    """Everything about one task."""
    files = files_of(task, args.data, args.work / task.name / "data", fast=args.fast)
    result: dict = {"metric": task.metric}
    result["baselines_are"] = {"plain": task.baseline, "paired": task.paired}
    result["settings"] = {name: getattr(args, name) for name in SETTINGS}
    result["baselines"] = baselines(task, files, args.work)
    sweeps = {side: sweep(task, files, side, args) for side in SIDES}
    provenance = sweeps["pretrained"].provenance
    result |= {side: side_of(results) for side, results in sweeps.items()}
    return result | {
        "chance": sweeps["pretrained"].chance,
        "examples": sweeps["pretrained"].num_examples,
        "date": provenance.date,
        "hardware": provenance.hardware,
        "versions": provenance.versions,
    }


def corpora_of(model: Path) -> dict[str, str]:
    """The checksum of the manifest of each phase's corpus; none of a model that was imported."""
    manifests = sorted(model.glob("manifest-*.json"))
    return {file.stem: hashlib.sha256(file.read_bytes()).hexdigest() for file in manifests}


def known(file: Path, model: dict) -> dict[str, dict]:
    """The results that `file` has of a model of these sizes, steps and corpora."""
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    return content["tasks"] if content["model"] == model else {}


def main() -> None:
    """Run what is missing, write the results, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the pretrained work directory")
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--work", type=Path, required=True, help="where the runs go")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rates", nargs="+", type=float, default=[1e-4, 3e-4])
    parser.add_argument(
        "--max-length", type=int, help="of every task, for a model of fewer positions than a recipe"
    )
    parser.add_argument("--dropout", type=float, default=0.1, help="of the encoder")
    parser.add_argument("--dtype", default="auto", help="of the computation")
    parser.add_argument("--fast", action="store_true", help="2 seeds and 1 epoch of 400 examples")
    args = parser.parse_args()
    args.model, args.data, args.work = (x.resolve() for x in (args.model, args.data, args.work))
    if args.fast:
        args.seeds, args.epochs, args.learning_rates = 2, 1, [3e-4]
    output = args.work if args.fast else HERE
    model = {
        "encoder": asdict(read_model(args.model)[0].encoder),
        "step": chosen_step(args.model),
        "corpora": corpora_of(args.model),
    }
    results = known(output / "results.json", model)
    for name in args.tasks:
        results[name] = measure(TASKS[name], args)
        draw(name, results[name], output / f"{name}.png")
        results = {task: results[task] for task in TASKS if task in results}
        content = {"model": model, "tasks": results}
        (output / "results.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
