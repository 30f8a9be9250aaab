"""Test which epochs each phase of a run uses, and which values identify the run."""

from __future__ import annotations

from pathlib import Path

from bert_jax.pretraining.phases import open_corpora, phases_identity
from bert_jax.recipes.load import load_config


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
    assert phases_identity(corpora)["phase2"]["first_epoch"] == corpora[1].first_epoch


def test_the_version_of_pairs_is_part_of_the_identity(tiny_config):
    assert "pairs" in opened(tiny_config)[0].identity()
    assert "pairs" not in opened(tiny_config, "sentence_pairs=none")[0].identity()


def test_the_number_of_steps_is_part_of_the_identity_if_the_masking_rate_changes(tiny_config):
    steady, changing = (
        opened(tiny_config, *words)[0].identity() for words in ((), ("masking.final_rate=0.2",))
    )
    assert "total_steps" not in steady and changing["total_steps"] == 32
