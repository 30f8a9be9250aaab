r"""Compare BERT-family objectives and architectures at equal token counts and at equal FLOPs.

    python experiments/families/run.py --data DATA --work runs/families --dtype bfloat16

DATA contains corpus_small/ and glue/. Models with the same vocabulary and recipe are pretrained on
the same number of tokens. Models whose steps cost more or less are also pretrained with as many
FLOPs as the first model. All models are then fine-tuned on two tasks, as are randomly initialized
models. If the command is killed, repeat it to resume; each set of options needs its own --work
folder. The script prints the table, and writes results.json and comparison.png; with --fast (a
check that takes minutes), it writes both files to the --work folder. Results for other models are
kept, so several commands can measure different models at the same time:

    taskset -c 0 run.py ... --models bert bert_static & taskset -c 1 run.py ... --models bert_again
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Make this folder's modules, the shared modules and an uninstalled checkout importable.
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "finetuning"), str(ROOT)]

from commands import bert_jax, claim, claim_config, locked, write_config  # noqa: E402
from families import (  # noqa: E402
    FAMILIES,
    LENGTHS,
    REFERENCE,
    TOKENS_PER_STEP,
    VOCAB_SIZE,
    Family,
    config_of,
)
from probe import probe  # noqa: E402
from report import draw, table  # noqa: E402
from results import add_row, read_rows  # noqa: E402
from sweeps import at_the_end  # noqa: E402
from tasks import TASKS, Files, files_of, sample_of  # noqa: E402

from bert_jax.corpus.manifest import read_manifest  # noqa: E402
from bert_jax.finetuning.sweep_results import SweepResults, read_results  # noqa: E402
from bert_jax.models.compute_config import ComputeConfig  # noqa: E402
from bert_jax.models.model import define_model  # noqa: E402
from bert_jax.models.parameters import count  # noqa: E402
from bert_jax.pretraining.config import PretrainConfig  # noqa: E402
from bert_jax.recipes.load import load_config  # noqa: E402
from bert_jax.runs.default_checkpoint import default_checkpoint_step  # noqa: E402
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, read_model  # noqa: E402
from bert_jax.training.metrics_log import read_metrics  # noqa: E402

# The number of epochs for each task.
EPOCHS = {"SST-2": 1, "STS-B": 4}
# The size of the fixed sample of SST-2 training sentences.
SENTENCES = 16_000
# The fraction of documents to hold out. The text consists of only a few documents, and one of those
# held out is a whole book.
HELD_OUT = "0.07"
# For each of these models, a randomly initialized model of the same size is also fine-tuned.
NOT_PRETRAINED = ("bert", "student")
# The rows of the table.
ROWS = {f"{name}-tokens": family for name, family in FAMILIES.items()}
ROWS |= {f"{name}-flops": family for name, family in FAMILIES.items() if family.at_equal_flops}
ROWS |= {f"{name}-none": FAMILIES[name] for name in NOT_PRETRAINED}


@dataclass(frozen=True)
class Run:
    """A pretraining run; `budget` is "tokens" or "flops"."""

    family: Family
    budget: str
    num_steps: int
    work_dir: Path


def prepare(data: Path, work: Path) -> Path:
    """Prepare the corpora with a shared vocabulary; if another process is doing so, wait for it."""
    with locked(work / "corpora.lock"):
        return _prepared(data, work)


def _prepared(data: Path, work: Path) -> Path:
    sources = sorted((data / "corpus_small").glob("*.jsonl*"))
    if not sources:
        raise SystemExit(f"{data / 'corpus_small'} contains no .jsonl files")
    corpora, inputs = (
        work / "corpora",
        [word for file in sources for word in ("--input", str(file))],
    )
    tokenizer = corpora / "tokenizer"
    if not tokenizer.is_dir():
        words = ["--output", tokenizer, "--vocab-size", str(VOCAB_SIZE)]
        bert_jax("train-tokenizer", *inputs, *words)
    for length in LENGTHS:
        output = corpora / str(length)
        if not (output / "manifest.json").is_file():
            words = ["--tokenizer", tokenizer, "--output", output, "--held-out", HELD_OUT]
            bert_jax("prepare", *inputs, *words, "--max-length", str(length))
    return corpora


def flops_per_step(config: PretrainConfig) -> float:
    """Return the mean training FLOPs per step; a teacher's forward pass counts too."""
    device = jax.devices()[0]
    setup = config.step_setup(device).with_teacher(device, config.longest_sequence)
    total = 0
    for _, _, phase in config.ordered_phases():
        documents_per_row = read_manifest(Path(phase.corpus)).max_fragments
        total += setup.step_flops(phase, documents_per_row) * phase.num_steps
    return total / config.total_steps


def trained(name: str, args: argparse.Namespace) -> Path:
    """Return a model's work directory; raise SystemExit if its run is not finished."""
    work_dir = args.work / f"{name}-tokens/run"
    if (
        not (work_dir / CHECKPOINTS_NAME).is_dir()
        or default_checkpoint_step(work_dir) != args.steps
    ):
        raise SystemExit(f"{work_dir}: {name} has not been trained. Run with --models {name} first")
    return work_dir


def values_of(run: Run, corpora: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the run's config as nested dicts."""
    teacher = trained(run.family.teacher, args) if run.family.teacher else None
    return config_of(run.family, run.work_dir, corpora, run.num_steps, args.dtype, teacher)


def load(run: Run, corpora: Path, args: argparse.Namespace) -> PretrainConfig:
    """Return the run's config, loaded the way `bert-jax` loads it."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "config.py"
        write_config(values_of(run, corpora, args), file)
        return load_config(file, [], kind="pretrain")


def pretrain(family: Family, budget: str, corpora: Path, args: argparse.Namespace) -> dict:
    """Run or resume pretraining until it is finished, and return its results."""
    directory = args.work / f"{family.name}-{budget}"
    run = Run(family, budget, args.steps, directory / "run")
    config = load(run, corpora, args)
    if budget == "flops":
        reference = Run(REFERENCE, "tokens", args.steps, args.work / "bert-tokens/run")
        budget_flops = flops_per_step(load(reference, corpora, args)) * args.steps
        run = Run(family, budget, round(budget_flops / flops_per_step(config)), run.work_dir)
        config = load(run, corpora, args)
    claim_config(values_of(run, corpora, args), directory / "config.py")
    bert_jax("pretrain", "--config", directory / "config.py")
    entries = read_metrics(run.work_dir / "metrics.jsonl")
    held_out = [entry for entry in entries if entry["kind"] == "evaluation"]
    return {
        "title": family.title,
        "budget": budget,
        "steps": run.num_steps,
        "tokens": run.num_steps * TOKENS_PER_STEP,
        "flops": flops_per_step(config) * run.num_steps,
        "parameters": parameters(run.work_dir),
        "held_out": held_out[-1],
        "probe": probe(run.work_dir, corpora / str(LENGTHS[-1]), masking_rate=0.3),
        "curve": [[entry["step"], entry["mlm_loss"]] for entry in held_out],
        "tasks": {},
    }


def parameters(work_dir: Path) -> int:
    """Return the model's parameter count, including its pretraining heads."""
    compute = ComputeConfig(dtype="float32", attention="xla")
    return count(define_model(read_model(work_dir)[0], compute).shapes)


def finetune(
    name: str, model: Path, output: Path, args: argparse.Namespace, *, pretrained: bool = True
) -> tuple[dict, SweepResults]:
    """Fine-tune a model, or a randomly initialized one of the same size, with every seed.

    The results contain the scores at the learning rate that is best on average.
    """
    task = TASKS[name]
    files = task_files(name, args)
    words = ["--config", ROOT / f"configs/finetune/{task.recipe}.py", "--init", model]
    words += ["--output", output, "--keep", "none", "--seeds", str(args.seeds)]
    words += ["--batch-sizes", "32", "--learning-rates", *map(str, args.rates)]
    words += ["--epochs", str(1 if args.fast else EPOCHS[name]), *files.overrides(task)]
    words += [f"--config.compute.dtype={args.dtype}", f"--config.from_scratch={not pretrained}"]
    words += ["--config.dropout=0.0", "--config.head_dropout=0.0"]
    bert_jax("sweep", *words)
    sweep_results = read_results(output)
    scores: dict[float, list[float]] = {rate: [] for rate in args.rates}
    for run in sweep_results.runs:
        if not run.diverged:
            scores[run.hyperparameters.learning_rate].append(
                at_the_end(run, output)[sweep_results.metric]
            )
    best = max(scores, key=lambda rate: statistics.fmean(scores[rate] or [-1.0]))
    return {
        "metric": task.metric,
        "learning_rate": best,
        "scores": scores[best],
        "diverged": args.seeds - len(scores[best]),
        "chance": sweep_results.chance,
        "mean_by_rate": {str(r): statistics.fmean(s) if s else None for r, s in scores.items()},
    }, sweep_results


def task_files(name: str, args: argparse.Namespace) -> Files:
    """Return a task's files; SST-2 is reduced to a sample, which is enough to tell models apart."""
    task, work = TASKS[name], args.work / "data" / name
    with locked(args.work / "corpora.lock"):
        if name == "SST-2" and not args.fast:
            return sample_of(task, args.data, work, SENTENCES)
        return files_of(task, args.data, work, fast=args.fast)


def recipes(args: argparse.Namespace) -> dict[str, dict]:
    """Return the config for each row, with placeholders for all paths."""
    return {
        name: config_of(
            *(family, Path("run"), Path("corpora"), args.steps, args.dtype),
            Path(family.teacher) if family.teacher else None,
        )
        for name, family in ROWS.items()
    }


def settings(corpora: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings and corpora that all results must share."""
    names = ("steps", "seeds", "rates", "dtype")
    manifests = {str(length): read_manifest(corpora / str(length)) for length in LENGTHS}
    return {
        "settings": {name: getattr(args, name) for name in names}
        | {"epochs": EPOCHS, "sentences": SENTENCES},
        "corpora": {
            length: {"fingerprint": manifest.fingerprint, "tokens": manifest.train.num_tokens}
            for length, manifest in manifests.items()
        },
    }


def main() -> None:
    """Run everything that is missing, write the results and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument(
        "--steps", type=int, default=3_000, help="number of steps, each with 4,096 tokens"
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of fine-tuning seeds")
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        default=[1e-4, 3e-4],
        help="peak learning rates for fine-tuning",
    )
    parser.add_argument("--dtype", default="auto", help="floating-point type for the computation")
    parser.add_argument("--models", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument(
        "--fast", action="store_true", help="quick check: 40 steps, 2 seeds, 400 examples"
    )
    args = parser.parse_args()
    args.data, args.work = args.data.resolve(), args.work.resolve()
    if args.fast:
        args.steps, args.seeds, args.rates = 40, 2, [3e-4]
    names = ("steps", "seeds", "rates", "dtype", "fast")
    claim(args.work, {name: getattr(args, name) for name in names})
    corpora = prepare(args.data, args.work)
    output = args.work if args.fast else HERE
    file, measured_with = output / "results.json", settings(corpora, args)
    # Reject results with other settings now rather than after hours of work.
    read_rows(file, measured_with, recipes(args))
    for key, result, model, pretrained in measured(corpora, args):
        for task in EPOCHS:
            to = args.work / key / task
            result["tasks"][task], sweep_results = finetune(
                task, model, to, args, pretrained=pretrained
            )
        measured_on = vars(sweep_results.provenance)
        result |= {name: measured_on[name] for name in ("date", "hardware", "versions")}
        lock = args.work / "results.lock"
        runs = add_row(file, lock, (key, result), measured_with, recipes(args))
    draw(runs, output / "comparison.png")
    print("\n".join(table(runs)))


def measured(corpora: Path, args: argparse.Namespace) -> Iterator[tuple[str, dict, Path, bool]]:
    """Yield each row's name, pretraining results, model, and whether the model was pretrained."""
    for budget in ("tokens", "flops"):
        for family in map(FAMILIES.__getitem__, args.models):
            if budget == "tokens" or family.at_equal_flops:
                key = f"{family.name}-{budget}"
                yield key, pretrain(family, budget, corpora, args), args.work / key / "run", True
    for family in (FAMILIES[name] for name in NOT_PRETRAINED if name in args.models):
        model = trained(family.name, args)
        title = f"{family.title.split(',')[0].split(':')[0]}, not pretrained"
        result = {"title": title, "budget": "", "parameters": parameters(model), "tasks": {}}
        yield f"{family.name}-none", result, model, False


if __name__ == "__main__":
    main()
