r"""Fine-tune a pretrained model on SST-2 and WNUT-17, and export the results in float16.

    bert-jax import experiments/finetuning/bert-mini --output models/mini
    python experiments/small_models/run.py models/mini --data DATA --work runs/small_models

The checkpoint with the best score on the validation set is exported. `DATA` contains the data sets,
as described in experiments/finetuning/README.md. Further options, such as
--config.compute.dtype=bfloat16, are passed to `bert-jax finetune`.
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

NAMES = {"SST-2": "mini-sentiment", "WNUT-17": "mini-ner"}
# The best learning rates for this model, according to experiments/finetuning.
LEARNING_RATES = {"SST-2": 3e-4, "WNUT-17": 1e-4}


def train(
    task_name: str, init: Path, data: Path, work: Path, overrides: Sequence[str], *, fast: bool
) -> None:
    """Fine-tune on one task, and export the model."""
    task, name = TASKS[task_name], NAMES[task_name]
    files = files_of(task, data, work / f"{name}-data", fast=fast)
    start = time.monotonic()
    bert_jax(
        *("finetune", "--config", f"configs/finetune/{task.recipe}.py"),
        *("--init", init, f"--config.work_dir={work / name}"),
        f"--config.optimizer.peak_learning_rate={LEARNING_RATES[task_name]}",
        f"--config.batch_size={task.batch_size}",
        f"--config.num_epochs={task.epochs}",
        *files.overrides(task),
        "--config.dropout=0",
        *overrides,
    )
    seconds = round(time.monotonic() - start)
    bert_jax(
        *("export", work / name, "--format", "huggingface", "--dtype", "float16"),
        *("--output", work / "exported" / name),
    )
    print(json.dumps({"task": task_name, "seconds": seconds}), flush=True)


def main() -> None:
    """Fine-tune and export a model for every task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("init", type=Path, help="work directory of the pretrained model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tasks", nargs="*", default=list(NAMES))
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
            overrides,
            fast=arguments.fast,
        )


if __name__ == "__main__":
    main()
