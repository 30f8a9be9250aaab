r"""What pretraining is worth on seven tasks, beside no pretraining and beside no encoder at all.

    python experiments/finetuning/run.py MODEL --data DATA --work runs/finetuning

MODEL is the work directory of `bert-jax pretrain` or `import`. DATA holds glue/, squad/,
squad_shifts/ and ner_wnut17/. Each task is a `bert-jax sweep` from MODEL and one from random
parameters of the same sizes, over the same rates and seeds, and baselines. Killed at any moment,
the same command goes on where it was. Writes results.json and a picture a task into --output,
which is the folder of this file or, with --fast for a check in minutes, --work; prints the table.
Epochs, batch sizes and rates are each task's own (tasks.py) unless given; tasks that are not named
keep their results of the same model. What is learned from scratch depends on a model's sizes and
vocabulary, the data and these settings alone: what the results beside this file have of that is
kept for another one that has the same:

    run.py MODEL ... --tasks SQuAD --learning-rates 3e-4 --epochs 4
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The modules beside this one are imported, and the package by a checkout that is not installed.
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from baselines import baseline_scores, sizes  # noqa: E402
from commands import bert_jax  # noqa: E402
from model import described  # noqa: E402
from report import SIDES, draw, table  # noqa: E402
from sweeps import after_epochs  # noqa: E402
from tasks import TASKS, Files, Task, files_of  # noqa: E402

from bert_jax.data.files import write_file  # noqa: E402
from bert_jax.finetuning.sweep_results import SweepResults, read_results  # noqa: E402

OF_TASK = ("epochs", "batch_size", "learning_rates")
SETTINGS = ("seeds", *OF_TASK, "max_length", "dropout", "dtype")


def settled(task: Task, args: argparse.Namespace) -> argparse.Namespace:
    """The arguments, with the task's own where none is given."""
    own = {name: getattr(task, name) for name in OF_TASK if getattr(args, name) is None}
    return argparse.Namespace(**vars(args) | own)


def sweep(task: Task, files: Files, output: Path, args: argparse.Namespace) -> SweepResults:
    """Runs a sweep to its end, which it may have reached before."""
    words = ["--config", ROOT / f"configs/finetune/{task.recipe}.py", "--init", args.model]
    words += ["--output", output, "--keep", "none", "--seeds", str(args.seeds)]
    words += ["--batch-sizes", str(args.batch_size), "--epochs", str(args.epochs)]
    words += ["--learning-rates", *map(str, args.learning_rates), *files.overrides(task)]
    words += [f"--config.max_length={args.max_length}"] if args.max_length else []
    parts = ("dropout",) if task.name == "SQuAD" else ("dropout", "head_dropout")  # its head: none
    words += [f"--config.{part}={args.dropout}" for part in parts]
    words += [f"--config.compute.dtype={args.dtype}", "--config.evaluations_per_epoch=1"]
    words += ["--config.from_scratch=true"] if output.name == "from_scratch" else []
    bert_jax("sweep", *words)
    return read_results(output)


def side_of(results: SweepResults, output: Path) -> dict:
    """All seeds at the rate, and after the epoch, that are best on average."""
    metric, learned = results.metric, {}
    for run in results.runs:
        of_rate = learned.setdefault(run.dials.learning_rate, [])
        of_rate += [] if run.diverged else [after_epochs(run, output)]
    means = {
        rate: [statistics.fmean(seed[metric] for seed in epoch) for epoch in zip(*runs)]  # noqa: B905
        for rate, runs in learned.items()
    }
    best, epoch = max(
        ((rate, epoch) for rate, of_rate in means.items() for epoch in range(len(of_rate))),
        key=lambda place: means[place[0]][place[1]],
    )
    scores = [run[epoch] for run in learned[best]]
    runs = [run for run in results.runs if run.dials.learning_rate == best]
    return {
        "metric": metric,
        "learning_rate": best,
        "epoch": epoch + 1,
        "scores": {name: [seed[name] for seed in scores] for name in scores[0]},
        "mean_by_rate_and_epoch": {str(rate): of_rate for rate, of_rate in means.items()},
        "at_chance": sum(seed[metric] <= results.chance for seed in scores),
        "diverged": sum(bool(run.diverged) for run in runs),
        "seconds": sum(run.seconds for run in runs),
    }


def baselines(task: Task, files: Files, work: Path) -> dict[str, float]:
    """The baselines' scores, computed once for these files and this code."""
    file, code = work / task.name / "baselines.json", (HERE / "baselines.py").read_bytes()
    made_of = [dict(task.baselines), files.checksum(), hashlib.sha256(code).hexdigest()]
    kept = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if kept.get("made_of") != made_of:
        kept = {"made_of": made_of, "scores": baseline_scores(task, files)}
        write_file(file, json.dumps(kept))
    scores: dict[str, float] = kept["scores"]
    return scores


def measure(task: Task, files: Files, args: argparse.Namespace, scratch: dict | None) -> dict:
    """Everything about one task. scratch: what was learned from scratch before; None if unknown."""
    result: dict = {"metric": task.metric}
    result["baselines_are"] = dict(task.baselines)
    result["settings"] = {name: getattr(args, name) for name in SETTINGS}
    result["data"] = files.checksum()
    result["baselines"] = baselines(task, files, args.work)
    for side in SIDES:
        if side == "from_scratch" and scratch is not None:
            result[side] = scratch
            continue
        output = args.work / task.name / side
        swept = sweep(task, files, output, args)
        made = {name: getattr(swept.provenance, name) for name in ("date", "hardware", "versions")}
        result[side] = side_of(swept, output) | made
        result["chance"] = swept.chance
    result["versions_of_baselines"] = {"scikit-learn": version("scikit-learn")}
    return result | {"examples": sizes(task, files)}


def known(file: Path, model: dict) -> dict[str, dict]:
    """The results that `file` has of this model."""
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    return content["tasks"] if content["model"] == model else {}


def scratch_before(
    file: Path, model: dict, name: str, files: Files, args: argparse.Namespace
) -> dict | None:
    """What `file` has of a task learned from scratch by a model of these sizes and this vocabulary,
    from the same data with the same settings; None if that is nothing."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"tasks": {}}
    result = content["tasks"].get(name)
    wanted = json.loads(json.dumps({each: getattr(args, each) for each in SETTINGS}))
    if result is None or result["settings"] != wanted or result.get("data") != files.checksum():
        return None
    same = all(content["model"][part] == model[part] for part in ("encoder", "tokenizer"))
    return result["from_scratch"] if same else None


def main() -> None:
    """Run what is missing, write the results, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the pretrained work directory")
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--work", type=Path, required=True, help="where the runs go")
    parser.add_argument(
        "--output",
        type=Path,
        help="where results and pictures go (default: beside this file; with --fast into --work)",
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--learning-rates", nargs="+", type=float)
    parser.add_argument(
        "--max-length", type=int, help="of every task, for a model of fewer positions than a recipe"
    )
    parser.add_argument("--dropout", type=float, default=0.1, help="of encoder and head")
    parser.add_argument("--dtype", default="auto", help="of the computation")
    parser.add_argument("--fast", action="store_true", help="2 seeds and 1 epoch of 400 examples")
    args = parser.parse_args()
    args.model, args.data, args.work = (x.resolve() for x in (args.model, args.data, args.work))
    if args.fast:
        args.seeds, args.epochs, args.learning_rates = 2, 1, [3e-4]
    output = (args.output or (args.work if args.fast else HERE)).resolve()
    for folder in (args.work, output):
        folder.mkdir(parents=True, exist_ok=True)
    file, model = output / "results.json", described(args.model)
    # May be written over with the first task's results: what was there is looked at from a copy.
    before = args.work / "results-before.json"
    if (HERE / "results.json").is_file() and not before.is_file():
        shutil.copyfile(HERE / "results.json", before)
    for name in args.tasks:
        settings, task = settled(TASKS[name], args), TASKS[name]
        files = files_of(task, args.data, args.work / name / "data", fast=args.fast)
        scratch = scratch_before(before, model, name, files, settings)
        measured = measure(task, files, settings, scratch)
        draw(name, measured, output / f"{name}.png")
        found = known(file, model) | {name: measured}  # read anew: another task may have ended
        results = {task: found[task] for task in TASKS if task in found}
        write_file(file, json.dumps({"model": model, "tasks": results}, indent=1) + "\n")
    print("\n".join(table(known(file, model))))


if __name__ == "__main__":
    main()
