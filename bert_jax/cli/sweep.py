"""Fine-tune over a grid of batch sizes, learning rates, epochs and seeds, and write a report.

    bert-jax sweep --config configs/finetune/cola.py --init runs/mine --output runs/sweep-cola

Every combination is trained with every seed. The default is 120 runs, with the batch sizes and
epochs in appendix A.3 and the learning rates in section 4.1 of Devlin et al. 2019. --vary adds the
values of any other config key to the grid. Each run has its own directory in OUTPUT/runs, where
output.txt records its output. If the sweep is stopped, the same command resumes it.
OUTPUT/results.json contains the results of all runs, and report.html and report.png contain a table
and a chart. At the end, the best run's directory is printed, for `evaluate`, `predict` or `export`.
A sweep runs in one process, on all devices.

With --report-only, the command rewrites the report for one sweep from its results.json, or writes a
joint report for several sweeps:

    bert-jax sweep --report-only runs/sweep-cola runs/sweep-rte --output runs/sweeps
"""

import argparse
import sys
from typing import get_args

from bert_jax.argument_parser import ArgumentParser, free_text, option_name
from bert_jax.cli.arguments import add_config_argument, add_data_argument, add_init_argument
from bert_jax.cli.output import console_report
from bert_jax.finetuning.hyperparameters import Grid
from bert_jax.finetuning.sweep import sweep
from bert_jax.finetuning.sweep_directory import Keep, kept_before
from bert_jax.finetuning.sweep_report import combine_reports
from bert_jax.finetuning.sweep_tables import summary
from bert_jax.recipes.sweep_arguments import SweepArguments, check_report_only, grid_of
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.terminal import StatusLine
from bert_jax.training.distributed import StopRequest

_GRID = Grid()


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `sweep`."""
    add_config_argument(parser, required=False)
    add_init_argument(parser)
    add_data_argument(parser)
    parser.add_option("--output", "DIR", "directory for the runs, the results and the report")
    vary = "config key and the values to try, separated by commas: tuning.top_layers=-1,2,0"
    parser.add_list("--vary", "KEY=VALUES", vary, kind=free_text)
    _add_grid_arguments(parser)
    parser.add_choice(
        "--keep",
        get_args(Keep),
        "runs whose checkpoints are kept: all, the best so far, or none (default: the previous "
        "setting of this sweep, or best for a new sweep)",
    )
    parser.add_list(
        "--report-only",
        "DIR",
        "output directories of earlier sweeps whose report is rewritten without training. The "
        "report is written to --output, which defaults to DIR if there is only one",
    )


def _add_grid_arguments(parser: ArgumentParser) -> None:
    for name, kind, values in (
        ("batch_sizes", int, _GRID.batch_sizes),
        ("learning_rates", float, _GRID.learning_rates),
        ("epochs", int, _GRID.num_epochs),
    ):
        default = " ".join(f"{value:g}" for value in values)
        text = f"{name.replace('_', ' ')} to try (default: {default})"
        parser.add_list(option_name(name), "X", text, kind=kind)
    parser.add_number(
        "--seeds",
        "number of runs per combination, with consecutive seeds starting at --config.seed "
        f"(default: {_GRID.num_seeds})",
    )


def run(args: argparse.Namespace) -> int:
    """Run a sweep and print its reports, or only write a report; return the exit code."""
    if args.report_only:
        return _report(args)
    given = SweepArguments(
        args.config, args.config_overrides, args.init, args.data, args.output, args.vary or ()
    )
    config, vary = given.load()
    enable_compilation_cache()
    stop = StopRequest()
    with given.naming_options(), StatusLine(sys.stderr) as status:
        grid = grid_of(args.batch_sizes, args.learning_rates, args.epochs, args.seeds, config.seed)
        keep = args.keep or kept_before(args.output) or "best"
        result = sweep(
            config,
            args.output,
            batch_sizes=grid.batch_sizes,
            learning_rates=grid.learning_rates,
            num_epochs=grid.num_epochs,
            num_seeds=grid.num_seeds,
            vary=vary,
            keep=keep,
            command=given.command(grid, keep),
            on_report=status.cleared_before(console_report),
            on_progress=status.show,
            stop=stop,
        )
    return 0 if result.finished else stop.exit_code


def _report(args: argparse.Namespace) -> int:
    check_report_only(vars(args))
    sweeps, files = combine_reports(args.report_only, args.output or args.report_only[0])
    for results in sweeps:
        print("\n".join([results.task, *summary(results), ""]))
    print("\n".join(f"report: {file}" for file in files))
    return 0
