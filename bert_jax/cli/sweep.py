"""Fine-tune over a grid of batch sizes, learning rates, epochs and seeds, and report.

    bert-jax sweep --config configs/finetune/cola.py --init runs/mine --output runs/sweep-cola

Every combination is trained with every seed (by default batch sizes and epochs of Devlin et al.
2019, appendix A.3, and the rates of its section 4.1: 120 runs), each in a directory of its own in
OUTPUT/runs with its own output in output.txt. The same command goes on where it was stopped.
OUTPUT/results.json holds every run, report.html and report.png the table and the picture. The best
run's directory is named at the end; `evaluate`, `predict` and `export` take it. It is one process,
on all its devices.

    bert-jax sweep --report-only runs/sweep-cola runs/sweep-rte --output runs/sweeps

makes a report, or one of several sweeps, from results.json.
"""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import get_args

from bert_jax.cli.arguments import add_config_argument, add_data_argument, add_override
from bert_jax.cli.output import console_report
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.sweep import sweep
from bert_jax.finetuning.sweep_directory import Keep, kept_before
from bert_jax.finetuning.sweep_report import aligned, table, verdict, write_report
from bert_jax.finetuning.sweep_results import Grid, read_results
from bert_jax.recipes.load import load_config
from bert_jax.runs.outputs import check_output
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.training.distributed import StopRequest

# Keys of the config that the sweep sets, and the option that does.
_SWEPT = {
    "work_dir": "--output",
    "batch_size": "--batch-sizes",
    "optimizer.peak_learning_rate": "--learning-rates",
    "num_epochs": "--epochs",
}
_GRID = Grid()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `sweep`."""
    add_config_argument(parser, required=False)
    parser.add_argument(
        "--init",
        metavar="DIR",
        help="the work directory of `pretrain`, `import` or `finetune` to start from "
        "(--config.init_from)",
    )
    add_data_argument(parser)
    parser.add_argument("--output", metavar="DIR", help="where runs, results and report go")
    _add_grid_arguments(parser)
    parser.add_argument(
        "--keep",
        choices=get_args(Keep),
        help="whose checkpoints stay: those of every run, of the best so far, or none "
        "(default: as this sweep was told before, else best)",
    )
    parser.add_argument(
        "--report-only",
        nargs="+",
        action="extend",
        metavar="DIR",
        help="train nothing: make the report of these outputs again, in --output or in the one DIR",
    )


def _add_grid_arguments(parser: argparse.ArgumentParser) -> None:
    for name, kind, default in (
        ("--batch-sizes", int, _GRID.batch_sizes),
        ("--learning-rates", float, _GRID.learning_rates),
        ("--epochs", int, _GRID.num_epochs),
    ):
        shown = " ".join(f"{value:g}" for value in default)
        parser.add_argument(
            name,
            nargs="+",
            action="extend",
            type=kind,
            metavar="X",
            help=f"default: {shown}",
        )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help=f"runs of each combination, from --config.seed on (default: {_GRID.num_seeds})",
    )


def run(args: argparse.Namespace) -> int:
    """Run a sweep, print its reports, and return the exit code; or only write a report."""
    if args.report_only:
        return _report(args)
    for name in ("config", "output"):
        if not getattr(args, name):
            raise ValueError(f"--{name} is missing: a sweep wants --config FILE.py --output DIR")
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
            raise ValueError(f"{word}: a sweep sets that by itself; use {_SWEPT[key]}")
    words = [f"--config.work_dir={args.output}", *args.config_overrides]
    if args.init:
        words = add_override(words, "init_from", args.init, "--init")
    config = load_config(args.config, words, kind="finetune")
    return config.with_file(args.data, "train") if args.data else config


def _grid(args: argparse.Namespace, first_seed: int) -> Grid:
    given = {
        "batch_sizes": args.batch_sizes and tuple(args.batch_sizes),
        "learning_rates": args.learning_rates and tuple(args.learning_rates),
        "num_epochs": args.epochs and tuple(args.epochs),
        "num_seeds": args.seeds,
    }
    grid = replace(_GRID, **{name: x for name, x in given.items() if x is not None})
    return replace(grid, first_seed=first_seed)


def _command(args: argparse.Namespace, grid: Grid, keep: Keep) -> str:
    """What makes the results again, defaults spelt out."""
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
    given = [name for name in others if getattr(args, name) is not None]
    if given or args.config_overrides:
        option = args.config_overrides[0] if not given else f"--{given[0].replace('_', '-')}"
        raise ValueError(f"--report-only trains nothing, so {option} means nothing to it")
    if len(args.report_only) > 1 and not args.output:
        raise ValueError("--report-only of several sweeps: --output says where the report goes")
    output = Path(args.output or args.report_only[0])
    own = [output.resolve()] == [Path(directory).resolve() for directory in args.report_only]
    check_output(output, "--output", may_be=["sweep"] if own else [])
    sweeps = [read_results(Path(directory)) for directory in args.report_only]
    for results in sweeps:
        print("\n".join([results.task, *aligned(table(results)), "", *verdict(results), ""]))
    files = write_report(sweeps, output)
    print("\n".join(f"report: {file}" for file in files))
    return 0
