r"""Fine-tune a pretrained model on SST-2, WNUT-17 and SQuAD, and export the results in float16.

    python experiments/small_models/run.py runs/albert-mini --data DATA --work runs/small_models

For each task, a sweep over learning rates chooses the model by its score on the validation set.
`DATA` contains the data sets, as described in experiments/finetuning/README.md. Further options,
such as --config.compute.dtype=float32, are passed to `bert-jax sweep`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commands import bert_jax  # noqa: E402
from finetuning.tasks import TASKS, files_of  # noqa: E402

NAMES = {"SST-2": "mini-sentiment", "WNUT-17": "mini-ner", "SQuAD": "mini-qa"}
EPOCHS = {"SST-2": 3, "WNUT-17": 8, "SQuAD": 3}
BATCH = {"SST-2": 64, "WNUT-17": 16, "SQuAD": 16}


def train(
    task_name: str,
    init: Path,
    data: Path,
    work: Path,
    rates: Sequence[str],
    overrides: Sequence[str],
    *,
    fast: bool,
) -> None:
    """Fine-tune on one task with each learning rate, and export the best model."""
    task, name = TASKS[task_name], NAMES[task_name]
    files = files_of(task, data, work / f"{name}-data", fast=fast)
    sweep = work / name
    start = time.monotonic()
    bert_jax(
        *("sweep", "--config", f"configs/finetune/{task.recipe}.py"),
        *("--init", init, "--output", sweep, "--keep", "best"),
        *("--learning-rates", *rates, "--seeds", "1"),
        *("--batch-sizes", str(BATCH[task_name])),
        *("--epochs", "1" if fast else str(EPOCHS[task_name])),
        *files.overrides(task),
        "--config.evaluations_per_epoch=1",
        "--config.dropout=0.1",
        *overrides,
    )
    seconds = round(time.monotonic() - start)
    (best,) = {path.parent for path in sweep.glob("runs/*/checkpoints") if any(path.iterdir())}
    bert_jax(
        *("export", best, "--format", "huggingface", "--dtype", "float16"),
        *("--output", work / "exported" / name),
    )
    print(json.dumps({"task": task_name, "run": best.name, "seconds": seconds}), flush=True)


def main() -> None:
    """Fine-tune and export a model for every task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("init", type=Path, help="work directory of the pretrained model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=list(NAMES))
    parser.add_argument("--learning-rates", nargs="*", default=["1e-4", "3e-4"])
    parser.add_argument("--fast", action="store_true", help="use a few hundred examples per task")
    arguments, overrides = parser.parse_known_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    for name in arguments.tasks:
        train(
            name,
            arguments.init.resolve(),
            arguments.data.resolve(),
            work,
            arguments.learning_rates,
            overrides,
            fast=arguments.fast,
        )


if __name__ == "__main__":
    main()
