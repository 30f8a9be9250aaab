"""Test pretraining with every objective that a config can select, using the command line."""

from __future__ import annotations

import pytest

from bert_jax import NextSentence
from bert_jax.training.metrics_log import read_metrics

LOSSES: dict[str, set[str]] = {
    "next_sentence": {"nsp_loss"},
    "sentence_order": {"sop_loss"},
    "none": set(),
}
MASKINGS = {
    "none": [
        "masking.unit=span",
        "masking.num_maskings=2",
        "join_documents=true",
        "model.embedding_dim=8",
        "model.sharing=ffn",
        "model.num_segments=1",
        "model.position_offset=2",
    ],
    "next_sentence": ["masking.unit=word", "masking.rate=0.3", "masking.final_rate=0.2"],
    "sentence_order": ["masking.unit=ngram"],
}


SHORT = """
import importlib.util


def get_config():
    spec = importlib.util.spec_from_file_location("tiny", "{0}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    del config.phases.phase2
    return config
"""


@pytest.mark.parametrize("pairs", LOSSES)
def test_objectives_are_trained_and_evaluated(tiny_config, bert_jax_here, tmp_path, pairs):
    work_dir, short = tmp_path / "run", tmp_path / "short.py"
    short.write_text(SHORT.format(tiny_config))
    words = [f"work_dir={work_dir}", f"sentence_pairs={pairs}", *MASKINGS[pairs]]
    words += [] if "model.sharing=ffn" in words else ["model.num_layers=1"]
    overrides = [f"--config.{word}" for word in words]
    finished = bert_jax_here("pretrain", "--config", short, *overrides)
    assert finished.code == 0, finished.errors
    entries = read_metrics(work_dir / "metrics.jsonl")
    evaluations = [entry for entry in entries if entry["kind"] == "evaluation"]
    for entry in evaluations:
        assert entry.keys() & {"nsp_loss", "sop_loss"} == LOSSES[pairs]
    assert evaluations[-1]["mlm_loss"] < evaluations[0]["mlm_loss"]
    if pairs == "next_sentence":
        NextSentence(work_dir)
    else:
        problem = "in order" if pairs == "sentence_order" else "not predict whether one sentence"
        with pytest.raises(ValueError, match=problem):
            NextSentence(work_dir)


def test_unknown_objectives_are_rejected(tiny_config, bert_jax_here, tmp_path):
    words = (f"work_dir={tmp_path}/run", "sentence_pairs=nsp")
    finished = bert_jax_here(
        "pretrain", "--config", tiny_config, *(f"--config.{word}" for word in words)
    )
    assert finished.code == 2
    assert "'nsp' is not one of 'none', 'next_sentence', 'sentence_order'" in finished.errors


def test_sentence_order_needs_documents_of_several_sentences(tiny_config, bert_jax_here, tmp_path):
    text = "\n\n".join(
        f"Number {number} is the only sentence of its document" for number in range(400)
    )
    (tmp_path / "text.txt").write_text(text)
    words = ("--tokenizer", tiny_config.parent / "tokenizer", "--max-length", "32")
    prepared = bert_jax_here(
        "prepare", "--input", tmp_path / "text.txt", "--output", tmp_path / "c", *words,
        "--held-out", "0.1", "--workers", "1",
    )  # fmt: skip
    assert prepared.code == 0, prepared.errors
    overrides = (
        f"work_dir={tmp_path}/run", f"phases.phase1.corpus={tmp_path}/c",
        "sentence_pairs=sentence_order", "vocabulary=byte_bpe",
    )  # fmt: skip
    refused = bert_jax_here(
        "pretrain", "--config", tiny_config, *(f"--config.{word}" for word in overrides)
    )
    assert refused.code == 2 and not (tmp_path / "run").exists()
    assert "sentence_order splits documents between sentences" in refused.errors
    assert refused.errors.count("has a 'wordpiece' vocabulary") == 2
