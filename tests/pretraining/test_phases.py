"""Test which epochs each phase of a run uses, and which values identify the run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from bert_jax.pretraining.phase_config import Stage
from bert_jax.pretraining.phases import (
    PhaseBatches,
    open_corpora,
    phases_identity,
    training_batches,
)
from bert_jax.pretraining.run import pretrain
from bert_jax.recipes.load import load_config
from bert_jax.training.sharding import make_mesh


def opened(tiny_config: Path, *words: str):
    config = load_config(
        tiny_config, [f"--config.{word}" for word in ("work_dir=x", *words)], kind="pretrain"
    )
    return config, open_corpora(config.ordered_phases(), config.evaluation_batch_size)


def test_phases_with_the_same_corpus_use_different_epochs(tiny_config):
    _, different = opened(tiny_config)
    assert [corpus.first_epoch for corpus in different] == [0, 0]
    same = f"phases.phase2.corpus={tiny_config.parent}/32"
    config, corpora = opened(tiny_config, same, "phases.phase2.sequence_length=32")
    sequences = 20 * 16
    assert corpora[1].first_epoch == -(-sequences // len(corpora[0].train)) > 0
    identity = phases_identity(corpora, config.model)
    assert identity["phase2"]["first_epoch"] == corpora[1].first_epoch


WARMUP = ("phases.phase1.warmup_batch_sizes=(4,8)", "phases.phase1.warmup_batch_steps=3")


def test_a_batch_size_warm_up_uses_the_same_examples_in_the_same_order(tiny_config):
    config, (first, second) = opened(tiny_config, *WARMUP)
    phase = first.config
    assert [(stage.first_step, stage.num_steps, stage.batch_size) for stage in phase.stages] == [
        (0, 3, 4),
        (3, 3, 8),
        (6, 14, 16),
    ]
    assert phase.num_sequences == 3 * 4 + 3 * 8 + 14 * 16 and second.first_step == 20
    assert [phase.stage_at(step).batch_size for step in (0, 2, 3, 5, 6, 19)] == [4, 4, 8, 8, 16, 16]
    batches = [
        source[step]["token_ids"]
        for stage in phase.stages
        for source in [
            training_batches(
                first, config.examples, stage, config.total_steps, np.arange(stage.batch_size)
            )
        ]
        for step in range(len(source))
    ]
    assert [len(batch) for batch in batches] == [4] * 3 + [8] * 3 + [16] * 14
    constant = training_batches(
        first, config.examples, Stage(0, 65, 4, 0), config.total_steps, np.arange(4)
    )
    rows = [constant[step]["token_ids"] for step in range(65)]
    np.testing.assert_array_equal(np.concatenate(batches), np.concatenate(rows))
    mesh = make_mesh(config.mesh)
    settings = (config.examples, config.loader, config.evaluation, config.total_steps, mesh)
    # A batch of 4 sequences cannot be split over 8 devices.
    with pytest.raises(ValueError, match="not divisible"):
        PhaseBatches(*settings).phases(first, None, None, 1600, lambda: None)
    identity = phases_identity([first, second], config.model)
    assert identity["phase1"]["warmup_batch_sizes"] == [4, 8]
    constant_sizes = phases_identity(opened(tiny_config)[1], config.model)
    assert identity["phase2"].keys() == constant_sizes["phase2"].keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["warmup_batch_sizes=(8,)"], "warmup_batch_steps=0: a batch-size warm-up needs both"),
        (["warmup_batch_steps=2"], "warmup_batch_sizes=() with warmup_batch_steps=2"),
        (
            ["warmup_batch_sizes=(8,4)", "warmup_batch_steps=2"],
            "ascending sizes below batch_size=16",
        ),
        (["warmup_batch_sizes=(8,16)", "warmup_batch_steps=2"], "ascending sizes below"),
        (["warmup_batch_sizes=(0,8)", "warmup_batch_steps=2"], "expected positive"),
        (["warmup_batch_sizes=(4,8)", "warmup_batch_steps=10"], "the warm-up takes 20 steps, but"),
    ],
)
def test_an_impossible_warm_up_is_refused(tiny_config, words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        opened(tiny_config, *(f"phases.phase1.{word}" for word in words))


def test_warm_up_sizes_must_be_divisible_by_the_mesh_and_accumulation(tiny_config):
    words = ["phases.phase1.warmup_batch_sizes=(8,12)", "phases.phase1.warmup_batch_steps=2"]
    config, _ = opened(tiny_config, *words, "accumulation_steps=2")
    with pytest.raises(ValueError) as refused:
        pretrain(config)
    sizes = "phase phase1: warmup_batch_sizes=(8, 12)"
    for size in (8, 12):
        problem = f"{sizes}: {size} is not divisible by 16 (8 parts of the mesh x"
        assert problem in str(refused.value)


def test_held_out_text_can_be_masked_at_a_fixed_rate(tiny_config):
    def held_out(*words: str) -> list[dict[str, np.ndarray]]:
        config, corpora = opened(tiny_config, *words)
        mesh = make_mesh(config.mesh)
        settings = (config.examples, config.loader, config.evaluation, config.total_steps, mesh)
        (phase,) = PhaseBatches(*settings).phases(corpora[0], None, None, 0, lambda: None)
        return list(phase.evaluate.batches())

    falling = ("masking.rate=0.4", "masking.later_rates=(0.2,)")
    for words, same in (
        ((*falling, "evaluation.masking_rate=0.1"), "masking.rate=0.1"),
        (falling, "masking.rate=0.2"),
    ):
        for batch, expected in zip(held_out(*words), held_out(same), strict=True):
            np.testing.assert_array_equal(batch["token_ids"], expected["token_ids"])
    with pytest.raises(ValueError, match="evaluation.masking_rate=1.5: must be above 0"):
        opened(tiny_config, "evaluation.masking_rate=1.5")


def test_the_version_of_pairs_is_part_of_the_identity(tiny_config):
    assert "pairs" in opened(tiny_config)[0].identity()
    assert "pairs" not in opened(tiny_config, "sentence_pairs=none")[0].identity()


def test_the_number_of_steps_is_part_of_the_identity_if_the_masking_rate_changes(tiny_config):
    words = ((), ("masking.final_rate=0.2",), ("masking.later_rates=(0.1,0.05)",))
    steady, linear, steps = (opened(tiny_config, *each)[0].identity() for each in words)
    assert "total_steps" not in steady and "later_rates" not in steady["masking"]
    assert linear["total_steps"] == steps["total_steps"] == 32
    assert steps["masking"]["later_rates"] == (0.1, 0.05)
