"""Define, parse and check the command-line options."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from variants import TUNED, VARIANTS, tuned_variants

from bert_jax.corpus.inputs import MAX_LENGTH, MIN_LENGTH
from bert_jax.json_files import read_json_object

STEPS = ("prepare", "tune", "train", "score", "report")
# The options that determine the results; all runs in a --work folder share them.
SETTINGS = ("tokens", "lengths", "batch_tokens", "dtype", "fast")
# Runs with fewer batches are too short to be divided into phases and matched in FLOPs.
_MIN_BATCHES = 16
# Further options to store with the results. They may differ between commands with the same --work
# folder, except that `pairs` is fixed once BLiMP has been scored.
CHANGEABLE = ("finetuning_rates", "pairs", "seeds")
# The learning rates to try for each recipe that is tuned.
_LEARNING_RATES = {
    "bert": [5e-4, 1e-3, 2e-3],
    "rotary": [1e-3, 2e-3, 4e-3],
    "muon": [1e-3, 2e-3, 4e-3],
    "rotary_muon": [1e-3, 2e-3, 4e-3],
}
_FAST = {
    "tokens": 512 * 16,
    "batch_tokens": 512,
    "finetuning_rates": [3e-4],
    "pairs": 2,
    "seeds": 1,
}


def arguments(words: Sequence[str], description: str) -> argparse.Namespace:
    """Parse the command line; exit with a message if an option is wrong."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--data", type=Path, required=True, help="folder with the data sets (see the README)")
    option("--work", type=Path, required=True, help="folder for the runs and the results")
    corpora = "folder with the prepared corpora (default: corpora in --work)"
    option("--corpora", type=Path, help=corpora)
    published = "results.json whose runs and learning rates are used instead of new ones"
    option("--extend", type=Path, metavar="FILE", help=published)
    steps = "steps of the experiment to perform (default: all)"
    option("--steps", nargs="+", choices=STEPS, default=list(STEPS), help=steps)
    variants = "variants to include (default: all)"
    names = list(VARIANTS)
    option("--variants", nargs="+", choices=names, default=names, help=variants)
    default = " (default: %(default)s)"
    tokens = "number of training tokens for BERT's recipe, which sets the FLOPs of all variants"
    option("--tokens", type=whole_number, default=40_000_000, help=tokens + default)
    seeds = "number of seeds for every variant"
    option("--seeds", type=whole_number, default=2, help=seeds + default)
    lengths = "row length in tokens, or one row length for each of two phases (default: 32 128)"
    option("--lengths", nargs="+", type=whole_number, default=[32, 128], help=lengths)
    batch = "number of tokens in a batch"
    option("--batch-tokens", type=whole_number, default=8_192, help=batch + default)
    option(
        "--learning-rates",
        nargs="+",
        type=grid,
        default=[],
        metavar="RECIPE=RATE,RATE",
        help=f"learning rates to try for the recipes that are tuned ({', '.join(TUNED)}); rates "
        "for recipes that the chosen --variants do not use are ignored; default: "
        + " ".join(f"{name}={_listed(rates, ',')}" for name, rates in _LEARNING_RATES.items()),
    )
    rates = [3e-5, 1e-4, 3e-4, 1e-3, 3e-3]
    tried = f"learning rates to try for fine-tuning (default: {_listed(rates, ' ')})"
    option("--finetuning-rates", nargs="+", type=learning_rate, default=rates, help=tried)
    pairs = "number of minimal pairs per paradigm"
    option("--pairs", type=whole_number, default=100, help=pairs + default)
    dtype = "floating-point type for the computation"
    option("--dtype", choices=("float32", "bfloat16"), default="float32", help=dtype + default)
    workers = "number of processes that make batches for a run; 0 makes them in a thread"
    option("--loader-workers", type=int, default=0, help=workers + default)
    parallel = "number of processes that train or score at the same time"
    option("--parallel", type=whole_number, default=1, help=parallel + default)
    option(
        "--fast",
        action="store_true",
        help="quick check of the experiment with a tiny model and little data",
    )
    args = parser.parse_args(words)
    if args.fast:
        parser.set_defaults(**_FAST)
        args = parser.parse_args(words)
    check(args, parser)
    args.published = _published(args, parser) if args.extend else {}
    args.learning_rates = _learning_rates(args, parser)
    args.data, args.work = args.data.resolve(), args.work.resolve()
    return args


def _listed(rates: Sequence[float], separator: str) -> str:
    return separator.join(f"{rate:g}" for rate in rates)


def whole_number(word: str) -> int:
    """Convert an option to a positive whole number."""
    try:
        value = int(word)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{word}: not a positive whole number. Use 1 or more")
    return value


def learning_rate(word: str) -> float:
    """Convert an option to a learning rate."""
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{word}: not a learning rate. Use a positive number")
    return value


def grid(word: str) -> tuple[str, list[float]]:
    """Convert an option to the name of a tuned recipe and the learning rates to try for it."""
    name, _, rates = word.partition("=")
    if name not in TUNED:
        raise argparse.ArgumentTypeError(
            f"{word}: {name!r} is not a recipe that is tuned. Use {', '.join(TUNED)}"
        )
    return name, [learning_rate(rate) for rate in rates.split(",")]


def check(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit with a message if options contradict each other or a file is missing."""
    lengths = " ".join(map(str, args.lengths))
    if len(args.lengths) > 2:
        parser.error(f"--lengths={lengths}: more than two phases. Give one length or two")
    if len(args.lengths) == 2 and args.lengths[0] >= args.lengths[1]:
        parser.error(f"--lengths={lengths}: not increasing. Give the smaller length first")
    if not all(MIN_LENGTH <= length <= MAX_LENGTH for length in args.lengths):
        parser.error(
            f"--lengths={lengths}: expected {MIN_LENGTH} to {MAX_LENGTH} tokens. Use other lengths"
        )
    if args.batch_tokens % (multiple := math.lcm(*args.lengths)):
        parser.error(
            f"--batch-tokens={args.batch_tokens}: not a multiple of each length in --lengths. Use "
            f"a multiple of {multiple}"
        )

    if args.tokens < (fewest := _MIN_BATCHES * args.batch_tokens):
        parser.error(
            f"--tokens={args.tokens}: fewer than {_MIN_BATCHES} batches. Use at least {fewest}"
        )

    grids = [(f"--learning-rates {name}={_listed(x, ',')}", x) for name, x in args.learning_rates]
    tried = args.finetuning_rates
    for words, rates in (*grids, (f"--finetuning-rates {_listed(tried, ' ')}", tried)):
        if len(set(rates)) < len(rates):
            parser.error(f"{words}: contains the same rate twice. Give each rate once")
    if len({name for name, _ in args.learning_rates}) < len(grids):
        parser.error("--learning-rates: contains the same recipe twice. Give each recipe once")
    if args.work.exists() and not args.work.is_dir():
        parser.error(f"--work={args.work}: is not a folder. Use another path")
    if args.loader_workers < 0:
        parser.error(f"--loader-workers={args.loader_workers}: is negative. Use 0 or more")
    needed = {
        "prepare": ("corpus_small/*.jsonl*", "corpus_large/*.jsonl*"),
        "score": (
            "glue/SST-2/train.tsv",
            "glue/SST-2/dev.tsv",
            "glue/STS-B/train.tsv",
            "glue/STS-B/dev.tsv",
            "blimp/*.jsonl*",
        ),
    }
    if args.corpora:
        if args.steps == ["prepare"]:
            parser.error(
                f"--corpora={args.corpora}: already contains prepared corpora. Omit --corpora, or "
                "add further steps"
            )
        needed.pop("prepare")
    for step, patterns in needed.items():
        for pattern in patterns if step in args.steps else ():
            if not any(any(args.data.glob(name)) for name in (pattern, f"{pattern}.xz")):
                parser.error(f"--data={args.data}: contains no {pattern}. Correct --data")
    if args.extend and not args.extend.is_file():
        parser.error(f"--extend={args.extend}: is not a file. Give the path of a results.json")


def _published(args: argparse.Namespace, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the published results to extend.

    Exit if their settings or variants differ, or if a run is incomplete.
    """

    def refuse(problem: str, fix: str) -> NoReturn:
        parser.error(f"--extend={args.extend}: {problem}. {fix}")

    try:
        content = read_json_object(args.extend)
    except ValueError:
        refuse("contains no results", "Give a results.json")
    parts = ("settings", "corpora", "learning_rates", "tuning", "variants")
    if not all(isinstance(content.get(part), dict) for part in parts):
        refuse("contains no results", "Give a results.json")
    for name in SETTINGS:
        published, value = content["settings"].get(name), getattr(args, name)
        if published != value:
            option = name.replace("_", "-")
            refuse(
                f"was measured with --{option} {published}, not {value}", "Use the same settings"
            )
    names = content["variants"].keys() | content["learning_rates"].keys()
    if unknown := names - VARIANTS.keys():
        refuse(
            f"unknown variant {min(unknown)!r}", "Use the version of the code that wrote this file"
        )
    for name, variant in content["variants"].items():
        runs = variant.get("runs") if isinstance(variant, dict) else None
        if not isinstance(runs, dict) or not all(map(_is_run, runs.values())):
            refuse(f"the runs of {name!r} are incomplete", "Use a file that has not been edited")
    return content


def _is_run(run: object) -> bool:
    """Return whether a run in a results file has the parts that are needed to adopt it."""
    return (
        isinstance(run, dict)
        and isinstance(run.get("scores"), dict)
        and isinstance(run.get("recipes"), dict)
        and "diverged" in run
        and {"pretrained", *run["scores"]} <= run["recipes"].keys()
    )


def _learning_rates(
    args: argparse.Namespace, parser: argparse.ArgumentParser
) -> dict[str, list[float]]:
    """Return the learning rates to try for each recipe that is tuned.

    They are the rates on the command line, else the best rate in the published results, else the
    default. Exit unless there are equally many rates for all recipes that the variants need, except
    those with a published rate.
    """
    given = dict(args.learning_rates)
    tuned = {name: [rate] for name, rate in args.published.get("learning_rates", {}).items()}
    tuned = {name: rates for name, rates in tuned.items() if name not in given}
    defaults = {name: [1e-3, 2e-3] for name in TUNED} if args.fast else _LEARNING_RATES
    rates = defaults | given | tuned
    numbers = {
        name: len(rates[name]) for name in tuned_variants(args.variants) if name not in tuned
    }
    if len(set(numbers.values())) > 1:
        most, fewest = (extreme(numbers, key=numbers.__getitem__) for extreme in (max, min))
        parser.error(
            f"--learning-rates: {numbers[most]} rates for {most}, but {numbers[fewest]} for "
            f"{fewest}. Try the same number of rates for {', '.join(numbers)}"
        )
    return rates
