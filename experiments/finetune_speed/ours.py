"""Time a `bert-jax finetune` run and a prediction pass; print the results as a line of JSON.

The training time is the sum of the seconds in the run's log. Before the run, two steps are taken
for each shape. The first one compiles the program, so the difference between their times is
reported separately as the compilation time.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import jax
import numpy as np

from bert_jax.finetuning import training
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.labeled_data.features import Features
from bert_jax.processes import tune_malloc_for_training
from bert_jax.recipes.load import load_config
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.training.distributed import StopRequest
from bert_jax.training.sharding import local_rows, make_mesh, to_global
from bert_jax.training.state import TrainState, init_state
from bert_jax.training.step import StepInputs


def first_state(run: FinetuneRun) -> TrainState:
    """Return randomly initialized parameters and the initial optimizer state."""
    compiled = run.compiled
    definition, is_trainable = run.compiled.task.definition, compiled.tuning.is_trainable
    return init_state(definition, compiled.optimizer, run.mesh, 0, is_trainable)


def compile_train_step(run: FinetuneRun, features: Features) -> dict[int, float]:
    """Return the compilation time in seconds for each row length."""
    state, size = first_state(run), run.hyperparameters.batch_size
    rows, results = local_rows(run.mesh, size), {}
    for length in sorted({run.plan.planned_batch(step).length for step in range(run.total_steps)}):
        shorter = np.flatnonzero(features.lengths <= length)
        batch = features.batch(np.resize(shorter, size), length)
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            inputs = StepInputs(np.uint32(0), np.float32(1e-5))
            placed = to_global(batch, run.mesh, rows, size)
            state, metrics = run.compiled.train_step(state, placed, inputs)
            jax.block_until_ready((state, metrics))
            seconds.append(time.perf_counter() - start)
        results[length] = max(0.0, seconds[0] - seconds[1])
    return results


def train(run: FinetuneRun) -> float:
    """Return the time for one epoch in seconds, without evaluations and checkpoints."""
    if not training.train(run, StopRequest()):
        raise SystemExit("the run was stopped")
    log = (run.work_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [entry for entry in map(json.loads, log) if entry["kind"] == "train"]
    if sum(entry["steps"] for entry in entries) != run.total_steps:
        raise SystemExit(
            f"{run.work_dir} contains an older run that was resumed. Use an empty directory"
        )
    return sum(entry["seconds"] for entry in entries)


def predict(run: FinetuneRun, features: Features) -> tuple[float, float]:
    """Return how many seconds a prediction pass takes, and how much longer the first pass takes."""
    params, seconds = first_state(run).params, []
    for _ in range(2):
        start = time.perf_counter()
        run.scorer.logits(params, features)
        seconds.append(time.perf_counter() - start)
    return seconds[1], max(0.0, seconds[0] - seconds[1])


def main() -> None:
    """Measure the run that `config.py` in a directory describes, with the given dtype."""
    tune_malloc_for_training()  # `bert-jax` uses the same malloc settings for training.
    directory, dtype = Path(sys.argv[1]), sys.argv[2]
    config = load_config(
        str(directory / "config.py"), [f"--config.compute.dtype={dtype}"], kind="finetune"
    )
    enable_compilation_cache()
    shutil.rmtree(config.work_dir, ignore_errors=True)
    run = FinetuneRun.open(config, make_mesh(config.mesh))
    examples, predicted = run.data.train, run.data.validation["validation"].features
    assert examples is not None
    # Time the prediction pass before training, because the evaluations during training compile the
    # same programs.
    prediction_seconds, prediction_compilation = predict(run, predicted)
    compilation = compile_train_step(run, examples)
    seconds = train(run)
    results = {
        "device": jax.devices()[0].device_kind,
        "dtype": run.compute.dtype,
        "attention": run.compute.attention,
        "steps": run.total_steps,
        "train_examples_s": len(examples) / seconds,
        "predict_examples_s": len(predicted) / prediction_seconds,
        "train_shapes": len(compilation),
        "train_compilation_s": sum(compilation.values()),
        "predict_compilation_s": prediction_compilation,
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
