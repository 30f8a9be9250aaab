r"""Probe the attention heads at every checkpoint of pretraining runs, and plot how they develop.

    python experiments/emergence/run.py runs/emergence/seed0 runs/emergence/seed1 \
        --treebank UD_English-EWT/en_ewt-ud-test.conllu --output runs/emergence

The checkpoints are probed by multiple processes on the CPU. The script writes results.json and
emergence.png to the output directory.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Make an uninstalled checkout importable.
sys.path.insert(0, str(ROOT))
# Set this before JAX is imported, in this process and in the worker processes.
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import PercentFormatter  # noqa: E402

from bert_jax.interpretability.attention import Attention  # noqa: E402
from bert_jax.interpretability.emergence import held_out_losses  # noqa: E402
from bert_jax.interpretability.head_patterns import HeadPatterns, head_patterns  # noqa: E402
from bert_jax.interpretability.head_probe import ALL, probe_heads  # noqa: E402
from bert_jax.labeled_data.treebank import read_treebank  # noqa: E402
from bert_jax.training.checkpoint_files import steps_in  # noqa: E402

MIN_COUNT = 100
NUM_PATTERN_SENTENCES = 200
RELATIONS = ("det", "case", "nmod:poss", "aux", "amod", "obj", "nsubj", "conj")
PATTERNS = {"previous": "previous token", "next": "next token", "separator": "[SEP]"}


def measure(run: Path, step: int, treebank_path: Path) -> dict[str, Any]:
    """Return the accuracies and the pattern scores of all heads at one checkpoint."""
    treebank = read_treebank(treebank_path)
    probe = probe_heads(run, treebank, step=step, dtype="float32")
    attention = Attention(run, step=step)
    separator = attention.tokenizer.specials.sep
    sentences = treebank.sentences[:NUM_PATTERN_SENTENCES]
    scores = [head_patterns(attention(sentence.words), separator) for sentence in sentences]
    means = HeadPatterns(*(np.mean(values, axis=0) for values in zip(*scores, strict=True)))
    probed = probe.to_json()
    probed["relations"] = {
        name: values
        for name, values in probed["relations"].items()
        if values["count"] >= MIN_COUNT and name not in ("root", "punct")
    }
    return {
        **probed,
        "patterns": {name: value.round(4).tolist() for name, value in means._asdict().items()},
    }


def measure_runs(runs: Sequence[Path], treebank: Path, processes: int) -> dict[str, Any]:
    """Return the measurements at all checkpoints of all runs, with the held-out losses."""
    jobs = [(run, step) for run in runs for step in sorted(steps_in(run / "checkpoints"))]
    results: dict[str, Any] = {
        run.name: {"losses": held_out_losses(run), "steps": {}} for run in runs
    }
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [(job, pool.submit(measure, *job, treebank)) for job in jobs]
        for number, ((run, step), future) in enumerate(futures, 1):
            results[run.name]["steps"][step] = future.result()
            print(f"{number} of {len(jobs)}: {run.name}, step {step:,}", flush=True)
    return results


def best_histories(steps: dict[str, Any]) -> dict[str, tuple[str, np.ndarray, float]]:
    """Return each relation's best head, its score at every step, and the best offset's score.

    The best head and the best offset are chosen at the last step.
    """
    last = steps[max(steps, key=int)]["relations"]
    histories = {}
    for relation, values in last.items():
        directions = [name for name in values if name not in ("count", "offsets")]
        scores = np.array([values[name] for name in directions])
        direction, layer, head = np.unravel_index(scores.argmax(), scores.shape)
        history = np.array(
            [
                at_step["relations"][relation][directions[direction]][layer][head]
                for at_step in steps.values()
            ]
        )
        offset = max(values["offsets"].values())
        histories[relation] = (f"{layer + 1}-{head + 1}", history, offset)
    return histories


def plot(results: dict[str, Any], path: Path) -> None:
    """Plot the relations, the patterns and the loss of every run, one column per run."""
    figure = Figure(figsize=(6.2 * len(results), 8.5), dpi=110, layout="constrained")
    axes = figure.subplots(
        3, len(results), squeeze=False, sharex=True, sharey="row", height_ratios=(4, 2, 2)
    )
    for column, (name, run) in enumerate(results.items()):
        steps = np.array([int(step) for step in run["steps"]])
        top, middle, bottom = axes[:, column]
        top.set_title(name)
        _plot_relations(top, steps, best_histories(run["steps"]))
        for pattern, label in PATTERNS.items():
            best = [np.max(at_step["patterns"][pattern]) for at_step in run["steps"].values()]
            middle.plot(steps, best, marker="o", markersize=3, label=label)
        middle.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        middle.legend(frameon=False, fontsize=9)
        bottom.plot([int(step) for step in run["losses"]], list(run["losses"].values()), "k")
        bottom.set_xlabel("step")
    axes[0, 0].set_ylabel("accuracy of the relation's best head\n(dotted: best fixed offset)")
    axes[1, 0].set_ylabel("attention of the\nstrongest head to")
    axes[2, 0].set_ylabel("held-out\nmasked-LM loss")
    figure.savefig(path)


def _plot_relations(
    axis: Axes, steps: np.ndarray, histories: dict[str, tuple[str, np.ndarray, float]]
) -> None:
    for relation in RELATIONS:
        if relation not in histories:
            continue
        name, history, offset = histories[relation]
        (line,) = axis.plot(steps, history, marker="o", markersize=3, label=f"{relation} ({name})")
        axis.axhline(offset, color=line.get_color(), linestyle=":", linewidth=0.8)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.legend(frameon=False, fontsize=9, ncols=2)


def table(results: dict[str, Any]) -> list[str]:
    """Tabulate when each relation's best head first beats the best offset in each run."""
    lines = ["| relation | best offset | " + " | ".join(results) + " |"]
    lines.append("|---|---|" + "---|" * len(results))
    histories = {name: best_histories(run["steps"]) for name, run in results.items()}
    first = next(iter(histories.values()))
    for relation, (_, _, offset) in first.items():
        if relation == ALL:
            continue
        cells = []
        for name, run in results.items():
            head, history, baseline = histories[name][relation]
            ahead = [
                step for step, value in zip(run["steps"], history, strict=True) if value > baseline
            ]
            since = f"from step {int(ahead[0]):,}" if ahead else "never ahead"
            cells.append(f"{history[-1]:.1%} by {head}, {since}")
        lines.append(f"| {relation} | {offset:.1%} | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    """Probe the runs, and write the results and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="work directories of pretraining runs")
    parser.add_argument("--treebank", type=Path, required=True, help="CoNLL-U file")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, required=True, help="directory for the results")
    arguments = parser.parse_args()
    names = [run.name for run in arguments.runs]
    if len(set(names)) < len(names):
        parser.error(f"{', '.join(names)}: the last parts of the runs' paths must differ")
    measured = measure_runs(arguments.runs, arguments.treebank, arguments.processes)
    # Convert all keys to strings, so that the results are the same as those in the JSON file.
    results = json.loads(json.dumps(measured))
    arguments.output.mkdir(parents=True, exist_ok=True)
    content = {
        "treebank": arguments.treebank.name,
        "treebank_sha256": hashlib.sha256(arguments.treebank.read_bytes()).hexdigest(),
        "jax": jax.__version__,
        "date": datetime.date.today().isoformat(),
        "runs": results,
    }
    (arguments.output / "results.json").write_text(json.dumps(content) + "\n")
    plot(results, arguments.output / "emergence.png")
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
