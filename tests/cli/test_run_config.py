"""The config tree of a pretraining run, and the recipes that fill it in."""

from pathlib import Path

import pytest

from bert_jax.cli.config import load_config
from bert_jax.cli.run_config import PhaseConfig, PretrainConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.training.checkpoint import CheckpointConfig

RECIPES = sorted(Path(__file__).parents[2].glob("configs/pretrain/*.py"))


def config(**changes: object) -> PretrainConfig:
    values: dict = dict(
        work_dir="run", model=EncoderConfig(), phases={"phase1": PhaseConfig("corpus", 10)}
    )
    return PretrainConfig(**(values | changes))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(recipe: Path) -> None:
    loaded = load_config(PretrainConfig, str(recipe))
    assert all(p.sequence_length <= loaded.model.max_positions for p in loaded.phases.values())


@pytest.mark.parametrize(
    ("name", "variant"),
    [("bert_base", "base"), ("bert_large", "large"), ("tiny", "tiny"), ("mini", "mini")],
)
def test_recipes_have_the_published_sizes(name: str, variant: str) -> None:
    recipe = next(path for path in RECIPES if path.stem == name)
    assert load_config(PretrainConfig, str(recipe)).model == EncoderConfig.variant(variant)


@pytest.mark.parametrize("name", ["bert_base", "bert_large"])
def test_the_original_recipe_is_a_million_steps_in_two_phases(name: str) -> None:
    recipe = next(path for path in RECIPES if path.stem == name)
    loaded = load_config(PretrainConfig, str(recipe))
    (_, first, short), (_, second, long) = loaded.ordered_phases()
    assert (first, short.num_steps, short.sequence_length, short.batch_size) == (
        0, 900_000, 128, 256,
    )  # fmt: skip
    assert (second, long.num_steps, long.sequence_length, long.batch_size) == (
        900_000, 100_000, 512, 256,
    )  # fmt: skip
    optimizer = loaded.optimizer
    assert (optimizer.name, optimizer.peak_learning_rate, optimizer.warmup_steps) == (
        "adamw", 1e-4, 10_000,
    )  # fmt: skip
    assert (optimizer.schedule, optimizer.weight_decay) == ("linear", 0.01)


def test_phases_run_in_the_order_of_their_numbers() -> None:
    phases = {f"phase{n}": PhaseConfig("corpus", n) for n in (10, 2, 1)}
    ordered = [(name, first) for name, first, _ in config(phases=phases).ordered_phases()]
    assert ordered == [("phase1", 0), ("phase2", 1), ("phase10", 3)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phases": {}}, "phases is empty"),
        ({"work_dir": ""}, "work_dir is empty"),
        ({"seed": -1}, "seed=-1: expected 0 up to"),
        ({"seed": 1 << 32}, "expected 0 up to 2\\^32 - 1"),
        (
            {"next_sentence": False, "checkpoint": CheckpointConfig(best_metric="nsp_loss")},
            "best_metric='nsp_loss' is no held-out metric.* mlm_loss, mlm_accuracy, mlm_perplexity",
        ),
        ({"accumulation_steps": 0}, "accumulation_steps=0: must be at least 1"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)
