"""Fine-tune over a grid of batch sizes, learning rates, epochs and seeds, and report.

    bert-jax sweep --config configs/finetune/cola.py --init runs/mine --output runs/sweep-cola

Every combination is trained with every seed (by default batch sizes and epochs of Devlin et al.
2019, appendix A.3, and the rates of its section 4.1: 120 runs), each in its own directory in
OUTPUT/runs with its printed lines in output.txt. The same command resumes after a stop.
OUTPUT/results.json has the results of all runs, report.html and report.png the table and the
picture. The best run's directory is printed at the end; `evaluate`, `predict` and `export` take it.
A sweep is one process, on all its devices.

    bert-jax sweep --report-only runs/sweep-cola runs/sweep-rte --output runs/sweeps

writes the report of one sweep again, or one report of several sweeps, from results.json.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import get_args

from bert_jax.argument_parser import ArgumentParser, option_name
from bert_jax.cli.arguments import add_config_argument, add_data_argument, add_init_argument
from bert_jax.cli.output import console_report
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.hyperparameters import Grid
from bert_jax.finetuning.sweep import sweep
from bert_jax.finetuning.sweep_directory import Keep, kept_before
from bert_jax.finetuning.sweep_report import combine_reports, summary
from bert_jax.recipes.command_line import finetune_config
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.training.distributed import StopRequest

# Keys of the config that the sweep sets, and the options that set them.
_SWEPT = {
    "work_dir": "--output",
    "batch_size": "--batch-sizes",
    "optimizer.peak_learning_rate": "--learning-rates",
    "num_epochs": "--epochs",
}
_GRID = Grid()


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `sweep`."""
    add_config_argument(parser, required=False)
    add_init_argument(parser)
    add_data_argument(parser)
    parser.add_option("--output", "DIR", "directory for the runs, the results and the report")
    _add_grid_arguments(parser)
    parser.add_choice(
        "--keep",
        get_args(Keep),
        "runs whose checkpoints are kept: all, the best so far, or none (default: as in earlier "
        "commands of this sweep, else best)",
    )
    parser.add_list(
        "--report-only",
        "DIR",
        "outputs of sweeps whose report to write again, without training, in --output or in the "
        "only DIR",
    )


def _add_grid_arguments(parser: ArgumentParser) -> None:
    for name, kind, values in (
        ("batch_sizes", int, _GRID.batch_sizes),
        ("learning_rates", float, _GRID.learning_rates),
        ("epochs", int, _GRID.num_epochs),
    ):
        default = " ".join(f"{value:g}" for value in values)
        text = f"{name.replace('_', ' ')} of the grid (default: {default})"
        parser.add_list(option_name(name), "X", text, kind=kind)
    parser.add_number(
        "--seeds",
        "runs of each combination, with seeds that count up from --config.seed (default: "
        f"{_GRID.num_seeds})",
    )


def run(args: argparse.Namespace) -> int:
    """Run a sweep, print its reports, and return the exit code; or only write a report."""
    if args.report_only:
        return _report(args)
    for name in ("config", "output"):
        if not getattr(args, name):
            raise ValueError(f"--{name} is missing: a sweep needs --config FILE.py --output DIR")
    config, output = _load(args), Path(args.output)
    grid = _grid(args, config.seed)
    enable_compilation_cache()
    keep = args.keep or kept_before(output) or "best"
    stop = StopRequest()
    result = sweep(
        config,
        output,
        batch_sizes=grid.batch_sizes,
        learning_rates=grid.learning_rates,
        num_epochs=grid.num_epochs,
        num_seeds=grid.num_seeds,
        keep=keep,
        command=_command(args, grid, keep),
        on_report=console_report,
        stop=stop,
    )
    return 0 if result.finished else stop.exit_code


def _load(args: argparse.Namespace) -> FinetuneConfig:
    for word in args.config_overrides:
        key = word.removeprefix("--config.").partition("=")[0]
        if key in _SWEPT:
            raise ValueError(f"{word}: a sweep sets this key itself. Use {_SWEPT[key]}")
    words = [f"--config.work_dir={args.output}", *args.config_overrides]
    return finetune_config(args.config, words, args.init, args.data)


def _grid(args: argparse.Namespace, first_seed: int) -> Grid:
    return Grid(
        batch_sizes=tuple(args.batch_sizes or _GRID.batch_sizes),
        learning_rates=tuple(args.learning_rates or _GRID.learning_rates),
        num_epochs=tuple(args.epochs or _GRID.num_epochs),
        num_seeds=_GRID.num_seeds if args.seeds is None else args.seeds,
        first_seed=first_seed,
    )


def _command(args: argparse.Namespace, grid: Grid, keep: Keep) -> str:
    """Return the command that repeats the sweep, with defaults written out."""
    words = ["bert-jax", "sweep", "--config", args.config]
    words += ["--init", args.init] if args.init else []
    words += ["--data", args.data] if args.data else []
    words += ["--output", args.output, *args.config_overrides]
    words += ["--batch-sizes", *map(str, grid.batch_sizes)]
    words += ["--learning-rates", *map(str, grid.learning_rates)]
    words += ["--epochs", *map(str, grid.num_epochs), "--seeds", str(grid.num_seeds)]
    words += ["--keep", keep]
    return shlex.join(words)


def _report(args: argparse.Namespace) -> int:
    others = ("config", "init", "data", "batch_sizes", "learning_rates", "epochs", "seeds", "keep")
    options = [option_name(other) for other in others if getattr(args, other) is not None]
    if words := [*options, *args.config_overrides]:
        raise ValueError(f"{words[0]}: --report-only does not train. Leave the option out")
    if len(args.report_only) > 1 and not args.output:
        raise ValueError("--output is missing: --report-only of several sweeps writes to it")
    sweeps, files = combine_reports(args.report_only, args.output or args.report_only[0])
    for results in sweeps:
        print("\n".join([results.task, *summary(results), ""]))
    print("\n".join(f"report: {file}" for file in files))
    return 0
