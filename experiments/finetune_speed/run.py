r"""Compare how fast bert_jax and Hugging Face's Trainer fine-tune and predict.

    python experiments/finetune_speed/run.py tiny mini --data DATA
    python experiments/finetune_speed/run.py base --data DATA --device cuda --steps 200

DATA contains glue/SST-2, squad/{train-v1.1-prefix,dev-v1.1}.json.xz and vocab/bert-base-uncased. In
every round, each library runs once in a separate process on the same tokenized examples; bert_jax
runs first in one round and last in the next. On a CPU, each library runs in float32 and in bfloat16
(bf16=True), and the ratio for a round compares the faster mode of each library. On a GPU, both run
only in bfloat16. On a CPU, bert-jax configures malloc to keep freed buffers; --same-malloc does the
same for the Trainer. The first round compiles the programs, and later rounds load them from a
cache. The script writes results.json, or results_cuda.json on a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Make the modules in this folder and an uninstalled checkout importable.
sys.path[:0] = [str(HERE), str(ROOT)]

from prepared import SIZES, Work, write_examples, write_features, write_model  # noqa: E402

from bert_jax.processes import largest_block, memory_bytes  # noqa: E402

BATCHES = {"sst2": 32, "squad": 16}
MODES = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16",)}
SPEEDS = ("train_examples_s", "predict_examples_s")
# The malloc settings from bert_jax.processes, as environment variables for another program.
KEEPING = (
    f"glibc.malloc.mmap_threshold={largest_block(memory_bytes())}:glibc.malloc.arena_max=1:"
    "glibc.malloc.trim_threshold=1000000000000"
)


def last_json(*words: str | Path, **variables: str) -> dict:
    """Run a script with additional environment variables, and parse its last line of output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, *map(str, words)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def ours(directory: Path, args: argparse.Namespace) -> Iterator[tuple[str, dict]]:
    """Yield one bert_jax measurement per mode; the compilation cache is in `directory`."""
    programs = str(directory / "programs")
    for mode in MODES[args.device]:
        yield mode, last_json(HERE / "ours.py", directory, mode, JAX_COMPILATION_CACHE_DIR=programs)


def theirs(directory: Path, work: Work, args: argparse.Namespace) -> Iterator[tuple[str, dict]]:
    """Yield one Trainer measurement per mode."""
    words = [HERE / "theirs.py", directory, "--task", work.task, "--device", args.device]
    words += ["--batch", str(work.batch_size)]
    malloc = {"GLIBC_TUNABLES": KEEPING} if args.same_malloc else {}
    for mode in MODES[args.device]:
        yield mode, last_json(*words, *["--bf16"] * (mode == "bfloat16"), **malloc)


def measure(work: Work, directory: Path, number: int, args: argparse.Namespace) -> dict:
    """Measure every mode of both libraries once, and compute the ratios of the faster modes."""
    row: dict = {"task": work.task, "size": work.size, "round": number}
    # A load above the number of cores means that other programs are running.
    row["load"] = os.getloadavg()[0]
    if number % 2 == 0:
        row["ours"] = dict(ours(directory, args))
    row["theirs"] = dict(theirs(directory, work, args))
    if number % 2 == 1:
        row["ours"] = dict(ours(directory, args))
    for speed in SPEEDS:
        mine, peer = (fastest(row[side], speed) for side in ("ours", "theirs"))
        row[ratio_name(speed)] = row["ours"][mine][speed] / row["theirs"][peer][speed]
    return row


def fastest(modes: dict[str, dict], speed: str) -> str:
    """Return the fastest mode."""
    return max(modes, key=lambda mode: modes[mode][speed])


def ratio_name(speed: str) -> str:
    """Return the key under which a round's ratio is stored."""
    return speed.replace("examples_s", "ratio")


def processor() -> str:
    """Return the name of the processor, read from /proc on Linux."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def lines_of(rows: list[dict]) -> Iterator[str]:
    """Yield the table rows for one task and model size, with medians and the range of the ratio."""
    for speed in SPEEDS:
        measured = speed.removesuffix("_examples_s")
        ratios = [row[ratio_name(speed)] for row in rows]
        texts = []
        for side in ("ours", "theirs"):
            modes = {mode: [row[side][mode][speed] for row in rows] for mode in rows[0][side]}
            texts += [f"{mode} {statistics.median(found):,.1f}" for mode, found in modes.items()]
        half = len(texts) // 2
        yield (
            f"| {rows[0]['task']} | {rows[0]['size']} | {measured} | {', '.join(texts[:half])} | "
            f"{', '.join(texts[half:])} | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |"
        )


def compilation_line(rows: list[dict]) -> str:
    """Return a table row with the number of programs and their bfloat16 compilation times."""
    first, *others = [row["ours"]["bfloat16"] for row in rows]
    spent = ("train_compilation_s", "predict_compilation_s")
    cached = [f"{statistics.median(o[name] for o in others):.1f}" for name in spent if others]
    return (
        f"| {rows[0]['task']} | {rows[0]['size']} | {first['train_shapes']} | "
        f"{first[spent[0]]:.1f} + {first[spent[1]]:.1f} | {' + '.join(cached) or '-'} |"
    )


def measure_all(args: argparse.Namespace) -> list[dict]:
    """Measure every model size and task in all rounds."""
    rows = []
    for size in args.sizes:
        for task in args.tasks:
            batch = BATCHES[task]
            work = Work(task, size, batch, batch * args.steps, args.predict)
            with tempfile.TemporaryDirectory() as name:
                directory = Path(name)
                write_model(work, args.data, directory)
                write_examples(work, args.data, directory)
                write_features(directory)
                for number in range(args.rounds):
                    rows.append(measure(work, directory, number, args))
                    texts = [
                        f"{rows[-1][f'{measured}_ratio']:.2f}" for measured in ("train", "predict")
                    ]
                    print(f"{size} {task} round {number + 1}: {texts}", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Run all measurements, write the results and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+", choices=list(SIZES))
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--tasks", nargs="+", choices=list(BATCHES), default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="number of steps in the timed epoch")
    parser.add_argument("--predict", type=int, default=512, help="number of validation examples")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--same-malloc", action="store_true")
    args = parser.parse_args()
    if settings := [name for name in os.environ if name.startswith(("GLIBC_TUNABLES", "MALLOC_"))]:
        parser.error(f"unset {', '.join(settings)}, which would change malloc for both libraries")
    rows = measure_all(args)
    host = {
        "date": str(datetime.date.today()),
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": {name: version(name) for name in ("jax", "torch", "transformers")},
    }
    options = {name: getattr(args, name) for name in ("steps", "predict", "device", "same_malloc")}
    results = HERE / ("results.json" if args.device == "cpu" else "results_cuda.json")
    content = {**host, "options": options, "rows": rows}
    results.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    groups = [
        [row for row in rows if (row["size"], row["task"]) == (size, task)]
        for size in args.sizes
        for task in args.tasks
    ]
    load = statistics.median(row["load"] for row in rows)
    print(
        f"{host['date']}, {host['cores']} cores of {host['processor']}, {args.device}, median load "
        f"{load:.1f}: {', '.join(map(' '.join, host['versions'].items()))}\n"
    )
    print("| task | model | measured | bert_jax examples/s | Trainer examples/s | ratio |")
    print("|---|---|---|---|---|---|")
    print("\n".join(line for group in groups for line in lines_of(group)))
    print("\n| task | model | shapes | compilation, train + predict, s | with the cache, s |")
    print("|---|---|---|---|---|")
    print("\n".join(map(compilation_line, groups)))


if __name__ == "__main__":
    main()
