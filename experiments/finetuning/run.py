r"""What pretraining is worth on seven tasks, beside no pretraining and beside no encoder at all.

    python experiments/finetuning/run.py MODEL --data DATA --work runs/finetuning --output results

MODEL is the work directory of `bert-jax pretrain` or `import`. DATA holds glue/, squad/,
squad_shifts/ and ner_wnut17/. MRPC and WNUT-17 have test sets whose answers are public
(glue/MRPC/msr_paraphrase_test.txt, ner_wnut17/emerging.test.annotated): the rate and epoch that the
validation set chose are learned once more and judged on them. Each task is a `bert-jax sweep` from
MODEL and one from random parameters of the same sizes, over the same rates and seeds, and
baselines. Killed at any moment, the same command goes on where it was. Writes results.json and a
picture a task into --output, which is the folder of this file or, with --fast for a check in
minutes, --work; prints the table.
Epochs, batch sizes and rates are each task's own (tasks.py) unless given. It may be measured in
parts: tasks and sides that are not named keep what the results have of them, if it is of the same
model, and a side only if the other one was learned in the same way:

    run.py MODEL ... --tasks SQuAD --learning-rates 3e-4 --epochs 4
    run.py MODEL ... --tasks SQuAD --sides from_scratch

With --after-mnli both sides first learn MNLI, of which DATA/mnli/ holds a part (mnli.py), and the
results go into after-mnli/ beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The modules beside this one are imported, and the package by a checkout that is not installed.
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from baselines import baseline_scores, sizes  # noqa: E402
from mnli import learn_mnli, mnli_pairs  # noqa: E402
from model import described  # noqa: E402
from report import SIDES, draw, table, test_table  # noqa: E402
from results_file import ResultsFile  # noqa: E402
from sides import made_of, on_test_set, side_of, swept  # noqa: E402
from tasks import MNLI_TOO, TASKS, Files, Task, after_mnli, files_of, test_files_of  # noqa: E402

from bert_jax.files import write_file  # noqa: E402
from bert_jax.labeled_data.files import has_file  # noqa: E402
from bert_jax.recipes.load import load_config  # noqa: E402

OF_TASK = ("epochs", "batch_size", "learning_rates")
FAST = {"seeds": 2, "epochs": 1, "learning_rates": [3e-4]}
SETTINGS = ("seeds", *OF_TASK, "max_length", "doc_stride", "dropout", "dtype")


def settled(task: Task, args: argparse.Namespace, positions: int) -> argparse.Namespace:
    """The arguments, with the task's own where none is given, for a model of so many positions."""
    own = {name: getattr(task, name) for name in OF_TASK if getattr(args, name) is None}
    recipe = load_config(
        str(ROOT / f"configs/finetune/{task.recipe}.py"),
        [f"--config.init_from={args.model}"],
        kind="finetune",
    )
    own["max_length"] = min(recipe.max_length, args.max_length or recipe.max_length)
    # BERT's windows of 384 move on by 128 (Devlin et al. 2019's code); shorter ones as much less.
    stride = recipe.spans.doc_stride if recipe.spans else 0
    own["doc_stride"] = min(stride, own["max_length"] // 3)
    if own["max_length"] > positions:
        raise SystemExit(
            f"{task.name} wants {own['max_length']} positions and MODEL has {positions}: "
            f"give --max-length {positions}, or a model that went on with longer rows"
        )
    return argparse.Namespace(**vars(args) | own)


def baselines(task: Task, sets: Sequence[Files], work: Path) -> dict:
    """The baselines' scores on the sets and what computed them, once for these and this code."""
    mnli = mnli_pairs(work) if MNLI_TOO in task.baselines else []
    file, code = work / task.name / "baselines.json", (HERE / "baselines.py").read_bytes()
    versions = {"scikit-learn": version("scikit-learn")}
    made = [dict(task.baselines), *(files.checksum() for files in sets)]
    made += [hashlib.sha256(code).hexdigest(), versions]
    made += [hashlib.sha256(json.dumps(mnli).encode()).hexdigest()] if mnli else []
    kept: dict = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if kept.get("made_of") != made:
        kept = {"made_of": made, "scores": baseline_scores(task, sets, mnli), "versions": versions}
        write_file(file, json.dumps(kept))
    return kept


def measure(task: Task, files: Files, args: argparse.Namespace, mnli: dict[str, dict]) -> dict:
    """The sides asked for, and what they are held against. mnli: what each learned before."""
    found, settings = {}, {name: getattr(args, name) for name in SETTINGS}
    settings |= {"after_mnli": True} if args.after_mnli else {}
    sets = [files]
    if task.test:
        into = args.work / task.name / "test-data"
        sets += [test_files_of(task, files, args.data, into, fast=args.fast)]
    for side in args.sides:
        output = args.work / task.name / side
        results = swept(task, files, side, output, args)
        found[side] = side_of(results, output) | {"made_of": made_of(output, settings)}
        found[side] |= {"mnli": mnli[side]} if args.after_mnli else {}
        if task.test:
            found[side]["test"] = tested(task, sets[1], side, found[side], args)
    scores = baselines(task, sets, args.work)
    by_set = [
        {
            "data": judged.checksum(),
            "baselines": {name: of_sets[place] for name, of_sets in scores["scores"].items()},
            "examples": sizes(task, judged),
        }
        for place, judged in enumerate(sets)
    ]
    return {
        "metric": task.metric,
        "baselines_are": dict(task.baselines),
        "settings": settings,
        "versions_of_baselines": scores["versions"],
        **by_set[0],
        **found,
        **({"test": by_set[1]} if task.test else {}),
    }


def tested(task: Task, files: Files, side: str, chosen: dict, args: argparse.Namespace) -> dict:
    """The seeds of a side on the test set, at the rate and after the epoch chosen without it."""
    rates = argparse.Namespace(**vars(args) | {"learning_rates": [chosen["learning_rate"]]})
    output = args.work / task.name / f"{side}-test-{chosen['learning_rate']:g}"
    return on_test_set(swept(task, files, side, output, rates), output, chosen["epoch"])


def arguments() -> argparse.Namespace:
    """Of the command, those that it gives no value left to the task and to --fast."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="the pretrained work directory")
    parser.add_argument("--data", type=Path, required=True, help="the folder of data sets")
    parser.add_argument("--work", type=Path, required=True, help="where the runs go")
    parser.add_argument(
        "--output",
        type=Path,
        help="where results and pictures go (default: beside this file; with --fast into --work)",
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--seeds", type=int, help="default: 5, with --fast 2")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--learning-rates", nargs="+", type=float)
    parser.add_argument(
        "--max-length", type=int, help="at most, for a model of fewer positions than a recipe"
    )
    parser.add_argument("--dropout", type=float, default=0.1, help="of encoder and head")
    parser.add_argument("--dtype", default="auto", help="of the computation")
    parser.add_argument(
        "--after-mnli", action="store_true", help="both sides learn MNLI before their task"
    )
    parser.add_argument(
        "--fast", action="store_true", help="400 examples; 2 seeds, 1 epoch, 1 rate if none given"
    )
    args = parser.parse_args()
    for name, value in (FAST if args.fast else {"seeds": 5}).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    beside = HERE / "after-mnli" if args.after_mnli else HERE
    args.output = args.output or (args.work if args.fast else beside)
    for name in ("model", "data", "work", "output"):
        setattr(args, name, getattr(args, name).resolve())
    return args


def main() -> None:
    """Run what is missing, write the results, print the table."""
    args = arguments()
    model = described(args.model)
    settings = {
        name: settled(TASKS[name], args, model["encoder"]["max_positions"]) for name in args.tasks
    }
    for folder in (args.work, args.output):
        folder.mkdir(parents=True, exist_ok=True)
    results = ResultsFile(
        *(args.output / "results.json", args.work / "results.lock"),
        *(model, args.fast, args.after_mnli),
    )
    results.tasks()  # another model's are refused before hours of work
    for name in settings:
        if (test := TASKS[name].test) and not has_file(args.data / test):
            raise SystemExit(f"{args.data / test}: no such file; {name} is judged on it as well")
    mnli = {side: learn_mnli(side, args) for side in args.sides} if args.after_mnli else {}
    for name, of_task in settings.items():
        task = after_mnli(TASKS[name]) if args.after_mnli else TASKS[name]
        files = files_of(task, args.data, args.work / name / "data", fast=args.fast)
        measured = results.add(name, measure(task, files, of_task, mnli))
        draw(name, measured, args.output / f"{name}.png")
    print("\n".join([*table(results.tasks()), "", *test_table(results.tasks())]))


if __name__ == "__main__":
    main()
