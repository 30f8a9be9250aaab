r"""Compare the accuracy that bert_jax and Hugging Face's Trainer reach with dropout.

    python experiments/dropout_agreement/run.py MODEL --data DATA --work runs/agreement

MODEL is a work directory written by `bert-jax pretrain` or `import`. DATA contains glue/SST-2. Both
libraries start from MODEL's weights and train on the same sentences with the same hyperparameters
and seeds 0, 1, ... Each library uses its own tokenizer, classifiers, dropout and example order. A
run's result is its accuracy and loss on the development set after the last epoch. There are two
more variants. In one of them, the Trainer uses bert_jax's batches, so only the classifiers, the
dropout and the code differ from bert_jax's. In the other one, bert_jax runs without dropout, which
shows how large an effect dropout has on the results. If the command is killed, repeat it to resume;
each model and each set of options needs its own --work folder. The script prints the table and
writes results.json to its own folder. With --check, it uses fewer sentences and seeds, and writes
results.json to --work instead.
"""

from __future__ import annotations

import argparse
import datetime
import json
import lzma
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from scipy.stats import ttest_ind

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Make the shared modules and an uninstalled checkout importable.
sys.path[:0] = [str(HERE.parent), str(ROOT)]

from commands import bert_jax, claim, run_words, write_config  # noqa: E402
from sweeps import at_the_end  # noqa: E402

from bert_jax.files import write_file  # noqa: E402
from bert_jax.finetuning.sweep_results import read_results  # noqa: E402
from bert_jax.runs.default_checkpoint import default_checkpoint_step  # noqa: E402

BATCH, EPOCHS, LENGTH, DROPOUT = 32, 3, 64, 0.1
MEASURED = ("accuracy", "loss")
OURS, THEIRS, ON_OURS = "bert_jax", "Trainer", "Trainer on our batches"
# The scores for every seed, keyed by metric.
Scores = Mapping[str, Sequence[float]]


def difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Return the difference between the means, with its 95% interval (Welch's t-test)."""
    found = ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    return statistics.mean(one) - statistics.mean(other), float(found.low), float(found.high)


def write_sentences(data: Path, count: int, work: Path) -> None:
    """Write a sample of SST-2's training set, and the whole development set."""
    with lzma.open(data / "glue/SST-2/train.tsv.xz", "rt", encoding="utf-8") as stream:
        header, *lines = stream.read().splitlines()
    chosen = random.Random(0).sample(lines, count)
    (work / "train.tsv").write_text("\n".join([header, *chosen]) + "\n", encoding="utf-8")
    validation = (data / "glue/SST-2/dev.tsv").read_text(encoding="utf-8")
    (work / "validation.tsv").write_text(validation, encoding="utf-8")


def ours(args: argparse.Namespace, rate: float, dropout: float) -> Scores:
    """Return bert_jax's scores for each seed."""
    files = {split: str(args.work / f"{split}.tsv") for split in ("train", "validation")}
    table = {"first": "sentence", "label": "label", "labels": ("0", "1")}
    values = {
        "init_from": str(args.model),
        "sentences": {"files": files | table},
        "max_length": LENGTH,
        "evaluations_per_epoch": 1,
        "best_metric": "accuracy",
        "compute": {"dtype": "float32"},
        "dropout": dropout,
        "head_dropout": dropout,
    }
    output = args.work / f"ours-{dropout}"
    config = args.work / f"{output.name}.py"
    write_config(values, config)
    words = ["sweep", "--config", config, "--init", args.model]
    words += ["--output", output, "--seeds", str(args.seeds), "--keep", "none"]
    words += ["--batch-sizes", str(BATCH), "--epochs", str(EPOCHS), "--learning-rates", str(rate)]
    bert_jax(*words)
    ends = [at_the_end(run, output) for run in read_results(output).runs]
    return {name: [end[name] for end in ends] for name in MEASURED}


def theirs(args: argparse.Namespace, rate: float, *, our_batches: bool) -> Scores:
    """Return the Trainer's scores for each seed."""
    kind = "on-our-batches" if our_batches else "theirs"
    exported = args.work / "exported"
    if not exported.is_dir():
        words = ["export", args.model, "--format", "huggingface"]
        bert_jax(*words, "--head", "encoder", "--output", exported)
    found = []
    for seed in range(args.seeds):
        result = args.work / f"{kind}-{seed}.json"
        if not result.is_file():
            words = [HERE / "theirs.py", exported, args.work, "--seed", str(seed)]
            words += ["--batch", str(BATCH), "--epochs", str(EPOCHS), "--length", str(LENGTH)]
            words += ["--our-batches"] if our_batches else []
            run_words(*words, "--rate", str(rate), "--output", result)
        found.append(json.loads(result.read_text(encoding="utf-8")))
    return {name: [each[name][-1] for each in found] for name in MEASURED}


def main() -> None:
    """Measure all variants, and print and write their scores and differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sentences", type=int, default=6000)
    parser.add_argument("--rate", type=float, default=1e-4, help="peak learning rate")
    parser.add_argument("--check", action="store_true", help="quick check: 300 sentences, 2 seeds")
    args = parser.parse_args()
    args.model, args.work = args.model.resolve(), args.work.resolve()
    if args.check:
        args.sentences, args.seeds = 300, 2
    settings = {
        **{name: getattr(args, name) for name in ("sentences", "rate")},
        **{"model": str(args.model), "step": default_checkpoint_step(args.model)},
        **{"batch": BATCH, "epochs": EPOCHS, "length": LENGTH},
    }
    claim(args.work, settings)
    write_sentences(args.data, args.sentences, args.work)
    scores = {
        OURS: ours(args, args.rate, DROPOUT),
        THEIRS: theirs(args, args.rate, our_batches=False),
        ON_OURS: theirs(args, args.rate, our_batches=True),
        f"{OURS} without dropout": ours(args, args.rate, 0.0),
    }
    results = {
        "date": str(datetime.date.today()),
        "hardware": read_results(args.work / f"ours-{DROPOUT}").provenance.hardware,
        "versions": {name: version(name) for name in ("jax", "torch", "transformers")},
        "settings": {name: value for name, value in settings.items() if name != "model"},
        "scores": scores,
        "apart": {
            side: {name: compared(scores[OURS][name], scores[side][name]) for name in MEASURED}
            for side in scores
            if side != OURS
        },
    }
    file = (args.work if args.check else HERE) / "results.json"
    write_file(file, json.dumps(results, indent=1) + "\n")
    print("\n".join(table(results)))


def compared(*sides: Sequence[float]) -> dict[str, float]:
    """Return the difference between two means, its 95% interval, and the pooled deviation.

    The pooled deviation is the standard deviation of a run's score around its variant's mean.
    """
    apart, low, high = difference(*sides)
    pooled = statistics.mean(statistics.variance(side) for side in sides) ** 0.5
    return {"means": apart, "low": low, "high": high, "standard_deviation": pooled}


def table(results: dict) -> Iterator[str]:
    """Yield the lines of the Markdown tables."""
    yield "| trained by | accuracies | mean ± standard deviation | loss |"
    yield "|---|---|---|---|"
    for side, found in results["scores"].items():
        each = ", ".join(f"{100 * one:.1f}" for one in found["accuracy"])
        accuracy = [100 * one for one in found["accuracy"]]
        yield f"| {side} | {each} | {spread(accuracy, 2)} | {spread(found['loss'], 3)} |"
    yield ""
    yield "| bert_jax minus | difference | 95% interval | standard deviation of one run |"
    yield "|---|---|---|---|"
    for side, measured in results["apart"].items():
        for name, apart in measured.items():
            between = f"{apart['low']:+.4f} to {apart['high']:+.4f}"
            means, deviation = f"{apart['means']:+.4f}", f"{apart['standard_deviation']:.4f}"
            yield f"| {side} | {name} {means} | {between} | {deviation} |"


def spread(found: Sequence[float], digits: int) -> str:
    """Format the mean and standard deviation as "mean ± deviation"."""
    return f"{statistics.mean(found):.{digits}f} ± {statistics.stdev(found):.{digits}f}"


if __name__ == "__main__":
    main()
