"""Phases of a run and what they see of their corpora."""

from __future__ import annotations

from pathlib import Path

from bert_jax.pretraining.phases import open_corpora, phases_identity
from bert_jax.recipes.load import load_config


def opened(tiny_config: Path, *words: str):
    config = load_config(
        tiny_config, [f"--config.{word}" for word in ("work_dir=x", *words)], kind="pretrain"
    )
    return config, open_corpora(config.ordered_phases(), config.evaluation_batch_size)


def test_phases_of_one_corpus_see_epochs_of_their_own(tiny_config):
    _, apart = opened(tiny_config)
    assert [corpus.first_epoch for corpus in apart] == [0, 0]
    same = f"phases.phase2.corpus={tiny_config.parent}/32"
    config, corpora = opened(tiny_config, same, "phases.phase2.sequence_length=32")
    seen = 20 * 16
    assert corpora[1].first_epoch == -(-seen // len(corpora[0].train)) > 0
    assert phases_identity(corpora)["phase2"]["first_epoch"] == corpora[1].first_epoch


def test_a_run_with_pairs_drawn_or_weighed_as_before_does_not_go_on(tiny_config):
    assert "pairs" in opened(tiny_config)[0].identity()
    assert "pairs" not in opened(tiny_config, "sentence_pairs=none")[0].identity()


def test_a_rate_that_changes_binds_a_run_to_its_length(tiny_config):
    steady, changing = (
        opened(tiny_config, *words)[0].identity() for words in ((), ("masking.final_rate=0.2",))
    )
    assert "total_steps" not in steady and changing["total_steps"] == 32
