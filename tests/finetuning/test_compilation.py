"""Test how many programs a run compiles, and that later runs reuse them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_jax.finetuning.hyperparameters import Hyperparameters
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.training import train
from bert_jax.recipes.load import load_config
from bert_jax.runs.locations import WorkDir
from bert_jax.training.distributed import StopRequest
from bert_jax.training.sharding import make_mesh

from ..conftest import Command


def test_runs_with_other_hyperparameters_share_the_programs_of_each_shape(toy, source, tmp_path):
    """Count the programs in the caches of the compiled steps."""
    overrides = ("max_shapes=2", "num_epochs=1", f"init_from={source}", f"work_dir={tmp_path}/one")
    words = [f"--config.{word}" for word in overrides]
    config = load_config(str(toy.root / "glue.py"), words, kind="finetune")
    run = FinetuneRun.open(config, make_mesh(config.mesh))
    assert len(run.row_lengths) == 2
    other = Hyperparameters(batch_size=16, learning_rate=1e-3, num_epochs=1, seed=5)
    for each in (run, run.with_hyperparameters(WorkDir.on_disk(tmp_path / "two"), other)):
        with StopRequest() as stop:
            assert train(each, stop)
        assert each.compiled.train_step._cache_size() == 2
        # An evaluation batch is as long as its longest row.
        assert 1 <= each.compiled.prediction_step._cache_size() <= 2


@pytest.mark.slow
def test_a_second_run_loads_its_steps_from_the_compilation_cache(toy, tmp_path):
    """Compare the files in JAX's compilation cache before and after a run with another seed."""
    # Cache all programs, including those that compile quickly.
    command = Command(tmp_path / "programs", seconds=0)
    # Count only the steps, since JAX also compiles other, smaller programs.
    steps = ("jit_train_step-", "jit_prediction_step-")

    def entries() -> set[str]:
        names = (path.name for path in Path(tmp_path / "programs").glob("*-cache"))
        return {name for name in names if name.startswith(steps)}

    output = command(*toy.words("glue", tmp_path / "one", "num_epochs=1")).output
    assert "programs   1 to train, 1 to predict; compiling took " in output
    first = entries()
    for name in steps:
        assert any(entry.startswith(name) for entry in first), first
    other = ("num_epochs=1", "seed=1", "optimizer.peak_learning_rate=1e-3")
    output = command(*toy.words("glue", tmp_path / "two", *other)).output
    assert "programs   1 to train, 1 to predict (2 of them from the cache); compiling" in output
    assert entries() == first
