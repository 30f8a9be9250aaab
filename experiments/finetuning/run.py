r"""Compare pretraining with training from scratch and with encoder-free baselines on seven tasks.

    python experiments/finetuning/run.py MODEL --data DATA --work runs/finetuning --output results

MODEL is a work directory written by `bert-jax pretrain` or `import`. DATA contains glue/, squad/,
squad_shifts/ and ner_wnut17/. For each task, a `bert-jax sweep` from MODEL is compared with
baselines, and with a sweep that starts from random parameters of the same sizes and has the same
learning rates and seeds. MRPC and WNUT-17 have test sets with public answers
(glue/MRPC/msr_paraphrase_test.txt, ner_wnut17/emerging.test.annotated). For these two tasks, models
are trained again with the learning rate and epoch that are best on the validation set, and then
scored on the test set. If the command is killed, repeat it to resume. The script prints the table,
and writes results.json and a plot per task to --output. The default output is this file's folder;
with --fast (a check that takes minutes), it is the --work folder.

Each task has its own number of epochs, batch size and learning rates (see tasks.py), which can be
overridden. The experiment can be run in parts. Earlier results for other tasks are kept if they are
for the same model. If only one side of a task is run, earlier results for the other side are kept,
provided that both sides were trained in the same way:

    run.py MODEL ... --tasks SQuAD --learning-rates 3e-4 --epochs 4
    run.py MODEL ... --tasks SQuAD --sides from_scratch

With --after-mnli, both sides are first trained on the part of MNLI in DATA/mnli/ (see mnli.py), and
the results are written to after-mnli/ in this file's folder.
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
# Make the modules in this folder and an uninstalled checkout importable.
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from baselines import baseline_scores, sizes  # noqa: E402
from mnli import learn_mnli, mnli_pairs  # noqa: E402
from model import describe  # noqa: E402
from report import SIDES, draw, table, test_table  # noqa: E402
from results_file import ResultsFile  # noqa: E402
from sides import made_of, on_test_set, side_of, swept  # noqa: E402
from tasks import MNLI_TOO, TASKS, Files, Task, after_mnli, files_of, test_files_of  # noqa: E402

from bert_jax.files import write_file  # noqa: E402
from bert_jax.labeled_data.files import has_file  # noqa: E402
from bert_jax.recipes.load import load_config  # noqa: E402

TASK_OPTIONS = ("epochs", "batch_size", "learning_rates")
FAST = {"seeds": 2, "epochs": 1, "learning_rates": [3e-4]}
SETTINGS = ("seeds", *TASK_OPTIONS, "max_length", "doc_stride", "dropout", "dtype")


def resolve(task: Task, args: argparse.Namespace, positions: int) -> argparse.Namespace:
    """Fill in the task's defaults for missing arguments; exit if MODEL has too few positions."""
    own = {name: getattr(task, name) for name in TASK_OPTIONS if getattr(args, name) is None}
    recipe = load_config(
        str(ROOT / f"configs/finetune/{task.recipe}.py"),
        [f"--config.init_from={args.model}"],
        kind="finetune",
    )
    own["max_length"] = min(recipe.max_length, args.max_length or recipe.max_length)
    # BERT's code (Devlin et al. 2019) uses windows of 384 tokens and a stride of a third of that,
    # 128 tokens.
    stride = recipe.spans.doc_stride if recipe.spans else 0
    own["doc_stride"] = min(stride, own["max_length"] // 3)
    if own["max_length"] > positions:
        raise SystemExit(
            f"{task.name} needs {own['max_length']} positions, but MODEL has {positions}. "
            f"Use --max-length {positions}, or a model that was also trained on longer rows"
        )
    return argparse.Namespace(**vars(args) | own)


def baselines(task: Task, sets: Sequence[Files], work: Path) -> dict:
    """Return the baselines' scores, reusing cached ones if the files and code are unchanged."""
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
    """Measure the requested sides and the baselines; `mnli` holds the scores of both MNLI runs."""
    result, settings = {}, {name: getattr(args, name) for name in SETTINGS}
    settings |= {"after_mnli": True} if args.after_mnli else {}
    sets = [files]
    if task.test:
        into = args.work / task.name / "test-data"
        sets += [test_files_of(task, files, args.data, into, fast=args.fast)]
    for side in args.sides:
        output = args.work / task.name / side
        results = swept(task, files, side, output, args)
        result[side] = side_of(results, output) | {"made_of": made_of(output, settings)}
        result[side] |= {"mnli": mnli[side]} if args.after_mnli else {}
        if task.test:
            result[side]["test"] = tested(task, sets[1], side, result[side], args)
    scores = baselines(task, sets, args.work)
    by_set = [
        {
            "data": scored.checksum(),
            "baselines": {name: by_place[place] for name, by_place in scores["scores"].items()},
            "examples": sizes(task, scored),
        }
        for place, scored in enumerate(sets)
    ]
    return {
        "metric": task.metric,
        "baselines_are": dict(task.baselines),
        "settings": settings,
        "versions_of_baselines": scores["versions"],
        **by_set[0],
        **result,
        **({"test": by_set[1]} if task.test else {}),
    }


def tested(task: Task, files: Files, side: str, chosen: dict, args: argparse.Namespace) -> dict:
    """Return one side's test-set scores, at the rate and epoch chosen on the validation set."""
    rates = argparse.Namespace(**vars(args) | {"learning_rates": [chosen["learning_rate"]]})
    output = args.work / task.name / f"{side}-test-{chosen['learning_rate']:g}"
    return on_test_set(swept(task, files, side, output, rates), output, chosen["epoch"])


def arguments() -> argparse.Namespace:
    """Parse the command line; the defaults of some options depend on the task and --fast."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="work directory with the pretrained model")
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for results and plots (default: this file's folder, or --work with --fast)",
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--seeds", type=int, help="number of seeds (default: 5, or 2 with --fast)")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--learning-rates", nargs="+", type=float)
    parser.add_argument(
        "--max-length",
        type=int,
        help="maximum length, for models with fewer positions than a recipe needs",
    )
    parser.add_argument(
        "--dropout", type=float, default=0.1, help="dropout rate in the encoder and head"
    )
    parser.add_argument("--dtype", default="auto", help="floating-point type for the computation")
    parser.add_argument(
        "--after-mnli", action="store_true", help="train both sides on MNLI before their task"
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="quick check with 400 examples and, by default, 2 seeds, 1 epoch and 1 learning rate",
    )
    args = parser.parse_args()
    for name, value in (FAST if args.fast else {"seeds": 5}).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    folder = HERE / "after-mnli" if args.after_mnli else HERE
    args.output = args.output or (args.work if args.fast else folder)
    for name in ("model", "data", "work", "output"):
        setattr(args, name, getattr(args, name).resolve())
    return args


def main() -> None:
    """Run everything that is missing, write the results and print the table."""
    args = arguments()
    model = describe(args.model)
    settings = {
        name: resolve(TASKS[name], args, model["encoder"]["max_positions"]) for name in args.tasks
    }
    for folder in (args.work, args.output):
        folder.mkdir(parents=True, exist_ok=True)
    results = ResultsFile(
        *(args.output / "results.json", args.work / "results.lock"),
        *(model, args.fast, args.after_mnli),
    )
    results.tasks()  # Reject results for another model now rather than after hours of work.
    for name in settings:
        if (test := TASKS[name].test) and not has_file(args.data / test):
            raise SystemExit(f"{args.data / test} does not exist, but {name} is also scored on it")
    mnli = {side: learn_mnli(side, args) for side in args.sides} if args.after_mnli else {}
    for name, of_task in settings.items():
        task = after_mnli(TASKS[name]) if args.after_mnli else TASKS[name]
        files = files_of(task, args.data, args.work / name / "data", fast=args.fast)
        measured = results.add(name, measure(task, files, of_task, mnli))
        draw(name, measured, args.output / f"{name}.png")
    print("\n".join([*table(results.tasks()), "", *test_table(results.tasks())]))


if __name__ == "__main__":
    main()
