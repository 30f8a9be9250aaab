"""Test which sizes and parameters `pretrain --init DIR` takes from a work directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bert_jax.pretraining.initial_state import initial_state
from bert_jax.recipes.load import load_config
from bert_jax.training.checkpoint_state import load_state
from bert_jax.training.sharding import make_mesh
from bert_jax.training.state import abstract_state, init_state

from ..commands import Finished

Run = Callable[..., Finished]
OTHER_SIZES = ("hidden_dim=32", "num_layers=3", "ffn_dim=64", "max_positions=40")


@pytest.fixture
def source(tiny_config: Path, bert_jax_here: Run, tmp_path: Path) -> Path:
    """Return a work directory whose model has the sizes of `tiny_config`."""
    finished = bert_jax_here(*command(tiny_config, tmp_path / "source"))
    assert finished.code == 0, finished.errors
    return tmp_path / "source"


def settings(work_dir: Path) -> list[str]:
    words = [f"work_dir={work_dir}", "phases.phase2=None", "phases.phase1.num_steps=2"]
    words += ["optimizer.warmup_steps=1", "evaluation.every_steps=0", "checkpoint.keep_best=0"]
    return words


def command(config: Path, work_dir: Path) -> list[str | Path]:
    return ["pretrain", "--config", config, *(f"--config.{word}" for word in settings(work_dir))]


def test_sizes_and_parameters_come_from_the_source(
    tiny_config: Path, source: Path, bert_jax_here: Run, tmp_path: Path
) -> None:
    other = tmp_path / "other.py"  # The sizes in this config differ from the model's.
    text = tiny_config.read_text(encoding="utf-8")
    for size in OTHER_SIZES:
        name = size.partition("=")[0]
        old = next(word for word in text.replace(",", " ").split() if word.startswith(f"{name}="))
        text = text.replace(old, size)
    other.write_text(text, encoding="utf-8")
    plain = [*command(other, tmp_path / "run"), f"--config.init_from={source}"]
    refused = bert_jax_here(*plain)
    assert refused.code == 2 and "hidden_dim: 16 -> 32" in refused.errors

    words = [*command(other, tmp_path / "run"), "--init", source]
    dropout = "--config.model.hidden_dropout=0.0"
    finished = bert_jax_here(*words, dropout)
    assert finished.code == 0, finished.errors
    assert f"start      the parameters of {source}" in finished.output
    models = [
        json.loads((directory / "model.json").read_text(encoding="utf-8"))["model"]
        for directory in (source, tmp_path / "run")
    ]
    assert models[1]["encoder"] == models[0]["encoder"] | {"hidden_dropout": 0.0}

    both = bert_jax_here(*words, f"--config.init_from={source}")
    assert both.code == 2 and "set the same key" in both.errors
    overridden = bert_jax_here(*command(other, tmp_path / "b"), "--init", source,
                               "--config.model.num_layers=1")  # fmt: skip
    assert overridden.code == 2 and "num_layers: 2 -> 1" in overridden.errors

    shutil.rmtree(source)  # A run that has already started no longer needs its source.
    again = bert_jax_here(*words, dropout)
    assert again.code == 0 and "(finished: nothing to do)" in again.output, again.errors
    missing = bert_jax_here(*command(other, tmp_path / "c"), "--init", source)
    assert missing.code == 2 and "no model.json" in missing.errors


def test_the_optimizer_state_is_new(tiny_config: Path, source: Path, tmp_path: Path) -> None:
    """Check that a run takes only the parameters from the source's state."""
    words = [*settings(tmp_path / "run"), f"init_from={source}"]
    config = load_config(tiny_config, words, kind="pretrain")
    setup, mesh = config.step_setup(jax.devices()[0]), make_mesh(config.mesh)
    definition, transformation = setup.task.definition, setup.transformation
    state, _ = initial_state(setup, mesh, seed=config.seed, init_from=str(source))
    new = init_state(definition, transformation, mesh, config.seed)
    saved = load_state(source / "checkpoints", 2, abstract_state(definition, transformation, mesh))
    assert (int(state.step), int(saved.step)) == (0, 2)
    for name, value in state.params.items():
        assert_array_equal(value, saved.params[name])
    leaves = [jax.tree.leaves(each.opt_state) for each in (state, new, saved)]
    for leaf, fresh, _ in zip(*leaves, strict=True):
        assert_array_equal(leaf, fresh)
    # The source's moments are not zero, so the check above would fail if they were kept.
    assert any(
        np.ndim(old) and (np.asarray(leaf) != old).any()
        for leaf, _, old in zip(*leaves, strict=True)
    )
