"""Measure how much longer a train step takes if the divergence guard is switched on.

    python experiments/guard_cost/run.py tiny mini --output experiments/guard_cost

The same step is compiled with and without the guard. The two programs run alternately, and both
read the metrics of every step, as the training loop does. The result is the median, over all pairs
of steps, of the ratio of their times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.pretraining.step_timing import random_batch
from bert_jax.processes import tune_malloc_for_training
from bert_jax.recipes.load import load_config
from bert_jax.training.divergence import NO_CHECKS, DivergenceConfig
from bert_jax.training.evaluation import ReportWindow
from bert_jax.training.sharding import MeshConfig, local_rows, make_mesh, to_global
from bert_jax.training.state import init_state
from bert_jax.training.step import StepInputs, make_train_step

CONFIGS = Path(__file__).resolve().parents[2] / "configs/pretrain"
GUARD = DivergenceConfig(window_steps=128, max_rollbacks=3)


class Stepper:
    """A compiled train step with its state, which takes one step at a time."""

    def __init__(self, setup: Any, batch: Any, mesh: Any) -> None:
        self.state = init_state(setup.task.definition, setup.transformation, mesh, 0)
        self._batch, self._step = batch, 0
        rate = np.float32(setup.optimizer.peak_learning_rate)
        self._inputs = StepInputs(np.uint32(0), rate)
        step = make_train_step(setup.task, setup.transformation, mesh)
        self._compiled = step.lower(self.state, batch, self._inputs).compile()

    def __call__(self) -> tuple[float, float]:
        """Take a step, and return its wall-clock time and processor time in seconds."""
        wall, processor = time.perf_counter(), time.process_time()
        self.state, metrics = self._compiled(self.state, self._batch, self._inputs)
        self._step += 1
        window = ReportWindow(self._step - 1, began=wall)
        window.dispatched(self._step, metrics, 0.0, 0)
        window.collect()
        jax.block_until_ready(self.state)
        return time.perf_counter() - wall, time.process_time() - processor


def measure(name: str, steps: int, rows: int | None) -> dict[str, Any]:
    """Time a recipe's first phase with and without the guard."""
    config = load_config(str(CONFIGS / f"{name}.py"), {})
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    phase = config.phases[config.ordered_phases()[0][0]]
    if rows is not None:
        phase = replace(phase, batch_size=rows)
    setup = config.step_setup(jax.devices()[0]).for_phase(phase)
    local = random_batch(
        phase.sequence_length,
        1,
        phase.batch_size,
        vocab_size=setup.model.vocab_size,
        predictions=setup.max_predictions(phase),
    )
    placed = local_rows(mesh, phase.batch_size)
    batch = to_global(local, mesh, placed, phase.batch_size)
    plain = Stepper(replace(setup, divergence=NO_CHECKS), batch, mesh)
    guarded = Stepper(replace(setup, divergence=GUARD), batch, mesh)
    times = []
    for number in range(steps + 3):
        pair = {"plain": plain, "guarded": guarded}
        # Alternate which of the two programs is timed first.
        order = sorted(pair, reverse=number % 2 == 0)
        taken = {each: pair[each]() for each in order}
        if number >= 3:
            times.append(taken)
    result = {"model": name, "rows": phase.batch_size, "steps": steps}
    for index, clock in enumerate(("wall", "processor")):
        ratios = [each["guarded"][index] / each["plain"][index] for each in times]
        quartiles = statistics.quantiles(ratios, n=4)
        result[clock] = {
            "plain_ms": 1e3 * statistics.median(each["plain"][index] for each in times),
            "guarded_ms": 1e3 * statistics.median(each["guarded"][index] for each in times),
            "ratio": quartiles[1],
            "quartiles": [quartiles[0], quartiles[2]],
        }
    print(json.dumps(result), flush=True)
    return result


def main() -> None:
    """Measure the given recipes, and add their results to results.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", help="names of recipes in configs/pretrain")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40, help="pairs of steps (default: 40)")
    parser.add_argument("--rows", type=int, help="rows per batch (default: those of the recipe)")
    args = parser.parse_args()
    tune_malloc_for_training()
    path = args.output / "results.json"
    results = json.loads(path.read_text()) if path.exists() else []
    for name in args.models:
        results = [each for each in results if each["model"] != name]
        results.append(measure(name, args.steps, args.rows))
        path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
