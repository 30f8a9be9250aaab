"""How many programs runs compile, and how few the ones after them."""

from __future__ import annotations

from pathlib import Path

from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.training import train
from bert_jax.recipes.load import load_config
from bert_jax.training.distributed import StopRequest
from bert_jax.training.sharding import make_mesh

from ..conftest import Command


def test_a_program_a_shape_and_none_for_other_dials(toy, source, tmp_path):
    """Counted in the caches of the compiled steps themselves."""
    overrides = ("max_shapes=2", "num_epochs=1", f"init_from={source}", f"work_dir={tmp_path}/one")
    words = [f"--config.{word}" for word in overrides]
    config = load_config(str(toy.root / "glue.py"), words, kind="finetune")
    run = FinetuneRun.open(config, make_mesh(config.mesh))
    assert len(run.row_lengths) == 2
    for turned in (
        run,
        run.turned(f"{tmp_path}/two", seed=5, batch_size=16, learning_rate=1e-3, num_epochs=1),
    ):
        with StopRequest() as stop:
            assert train(turned, stop)
        assert turned.compiled.train_step._cache_size() == 2
        # With targets and, of the test set, without; a batch has the length of its longest row.
        assert 1 <= turned.compiled.prediction_step._cache_size() <= 2


def test_a_second_run_takes_the_steps_from_the_cache(toy, tmp_path):
    """The entries of JAX's compilation cache on disk, before and after a run of another seed."""
    # All programs, however quick their compilation was on this machine.
    command = Command(tmp_path / "programs", seconds=0)
    # The steps alone are counted: what else JAX compiles apart is its own affair.
    steps = ("jit_train_step-", "jit_prediction_step-")

    def entries() -> set[str]:
        names = (path.name for path in Path(tmp_path / "programs").glob("*-cache"))
        return {name for name in names if name.startswith(steps)}

    told = command(*toy.words("glue", tmp_path / "one", "num_epochs=1")).output
    assert "programs   1 to train, 1 to predict; compiling took " in told
    first = entries()
    for name in steps:
        assert any(entry.startswith(name) for entry in first), first
    other = ("num_epochs=1", "seed=1", "optimizer.peak_learning_rate=1e-3")
    told = command(*toy.words("glue", tmp_path / "two", *other)).output
    assert "programs   1 to train, 1 to predict (2 of them from the cache); compiling" in told
    assert entries() == first
