r"""Compare the loss curves of pretraining with products in FP8 and in bfloat16.

    python experiments/fp8/run.py --data DATA --work runs/fp8

DATA contains the folder corpus_small. The script trains a vocabulary of 4,000 tokens on it and
prepares a corpus with records of 128 tokens. It then pretrains a small BERT with each kind of
products and with each seed. This allows comparing the difference between the two kinds with the
difference between two seeds. Products in FP8 are emulated: the operands are rounded to FP8 and
multiplied in bfloat16. GPUs with FP8 units compute the same products, except for the rounding of
sums. If the command is killed, repeat it to resume. It prints a table, and writes results.json and
fp8.png to its own folder. With --check, it trains for a few steps only, and writes both files to
--work.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Make the shared modules and an uninstalled checkout importable.
sys.path[:0] = [str(HERE.parent), str(ROOT)]

from commands import bert_jax, claim, claim_config  # noqa: E402

from bert_jax.files import write_file  # noqa: E402
from bert_jax.plots import png_of  # noqa: E402
from bert_jax.runs.runtime import hardware  # noqa: E402
from bert_jax.training.metrics_log import read_metrics  # noqa: E402
from bert_jax.training.sharding import MeshConfig, make_mesh  # noqa: E402

VOCABULARY, LENGTH, BATCH = 4_000, 128, 16
KINDS = {"dtype": "bfloat16", "fp8_emulated": "FP8"}
# The curves lie on top of each other, so those in the background are wider.
LINES = {
    "dtype": {"color": "tab:blue", "linewidth": 5, "alpha": 0.4},
    "fp8_emulated": {"color": "black", "linewidth": 1.2},
}


def prepare(data: Path, work: Path) -> None:
    """Train the vocabulary and prepare the corpus, unless that has been done."""
    text = str(data / "corpus_small/*.jsonl.xz")
    if not (work / "vocabulary/vocab.txt").is_file():
        words = ["--vocab-size", str(VOCABULARY), "--output", work / "vocabulary"]
        bert_jax("train-tokenizer", "--input", text, *words)
    if not (work / "corpus/manifest.json").is_file():
        words = ["--tokenizer", work / "vocabulary", "--max-length", str(LENGTH)]
        words += ["--held-out", "0.05", "--output", work / "corpus"]
        bert_jax("prepare", "--input", text, *words)


def pretrain(work: Path, kind: str, seed: int, steps: int) -> Path:
    """Pretrain a model, unless that has been done, and return its work directory."""
    run = work / f"{kind}-{seed}"
    model = {"vocab_size": VOCABULARY, "hidden_dim": 128, "num_layers": 2, "num_heads": 2}
    phase = {"corpus": str(work / "corpus"), "sequence_length": LENGTH}
    values = {
        "work_dir": str(run),
        "seed": seed,
        "sentence_pairs": "none",
        "model": {**model, "ffn_dim": 512, "max_positions": LENGTH},
        "phases": {"only": {**phase, "batch_size": BATCH, "num_steps": steps}},
        "optimizer": {"peak_learning_rate": 1e-3, "warmup_steps": steps // 10},
        "evaluation": {"every_steps": steps // 6},
        "checkpoint": {"every_steps": steps // 6},
        "reporting": {"every_steps": max(1, steps // 60), "tensorboard": False},
        "compute": {"dtype": "bfloat16", "products": kind},
    }
    config = work / "configs" / f"{run.name}.py"
    claim_config(values, config)
    bert_jax("pretrain", "--config", config)
    return run


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the training and held-out masked-LM losses of a run, each with its step."""
    entries = read_metrics(run / "metrics.jsonl")
    return {
        name: [(entry["step"], entry["mlm_loss"]) for entry in entries if entry["kind"] == kind]
        for name, kind in (("training", "train"), ("held out", "evaluation"))
    }


def draw(results: dict) -> Figure:
    """Draw the curves of all runs."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(
        figure.subplots(1, 2, sharey=True), ("training", "held out"), strict=True
    ):
        for run in results["runs"]:
            steps, losses = zip(*run[name], strict=True)
            dashes = "-" if run["seed"] == 0 else "--"
            label = f"{KINDS[run['products']]}, seed {run['seed']}"
            axes.plot(steps, losses, dashes, label=label, **LINES[run["products"]])
        axes.set(title=f"masked-LM loss, {name}", xlabel="step")
        axes.grid(alpha=0.3)
    axes.legend()
    return figure


def table(results: dict) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    seeds = sorted({run["seed"] for run in results["runs"]})
    yield "| held-out masked-LM loss, nats | " + " | ".join(f"seed {seed}" for seed in seeds) + " |"
    yield "|---|" + "---|" * len(seeds)
    final = {
        kind: np.array([held_out(results["runs"], kind, seed) for seed in seeds]) for kind in KINDS
    }
    for kind, losses in final.items():
        yield f"| {KINDS[kind]} | " + " | ".join(f"{loss:.4f}" for loss in losses) + " |"
    difference = final["fp8_emulated"] - final["dtype"]
    yield "| FP8 - bfloat16 | " + " | ".join(f"{each:+.4f}" for each in difference) + " |"


def held_out(runs: Sequence[dict], kind: str, seed: int) -> float:
    """Return a run's last held-out loss."""
    run = next(run for run in runs if (run["products"], run["seed"]) == (kind, seed))
    return float(run["held out"][-1][1])


def main() -> None:
    """Train all models, and print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--steps", type=int, default=1_200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--check", action="store_true", help="quick check: 12 steps, 1 seed")
    args = parser.parse_args()
    args.work = args.work.resolve()
    if args.check:
        args.steps, args.seeds = 12, 1
    claim(args.work, {"steps": args.steps})
    prepare(args.data.resolve(), args.work)
    runs = [
        {"products": kind, "seed": seed, **curves(pretrain(args.work, kind, seed, args.steps))}
        for seed in range(args.seeds)
        for kind in KINDS
    ]
    results = {
        "date": str(datetime.date.today()),
        "hardware": hardware(make_mesh(MeshConfig(), jax.devices())),
        "jax": version("jax"),
        "steps": args.steps,
        "runs": runs,
    }
    folder = args.work if args.check else HERE
    write_file(folder / "results.json", json.dumps(results) + "\n")
    write_file(folder / "fp8.png", png_of(draw(results)))
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
