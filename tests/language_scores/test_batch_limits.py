"""Test that batches of long rows stay small, and that no row is longer than the model allows."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from pathlib import Path
from typing import Any

import jax
import pytest

from bert_jax.language_scores import batch_limits
from bert_jax.language_scores.batch_limits import BatchLimits
from bert_jax.language_scores.evaluation_set import LanguageMetrics, read_evaluation_set
from bert_jax.language_scores.pseudo_likelihood import PseudoLikelihood, SentenceScorer
from bert_jax.language_scores.text_rows import read_text_rows
from bert_jax.language_scores.text_scores import text_metrics
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.text.sources import SourceOptions
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.sharding import MeshConfig, make_mesh

POSITIONS = 517  # This number is above 512 and is not a multiple of 8.


def test_batches_of_long_rows_have_fewer_tokens() -> None:
    for heads, length, rows in ((16, 512, 128), (12, 512, 128), (12, 4096, 2), (12, 8192, 1)):
        assert BatchLimits(8192, heads).num_rows(length, 65_536, 10_000) == rows
        assert BatchLimits(8192, heads, 4).num_rows(length, 65_536, 10_000) == 4 * rows
    assert BatchLimits(8192, 12, 4).num_rows(8192, 65_536, 1) == 4
    assert BatchLimits(8192, 12).num_rows(512, 65_536, 3) == 4


def test_attention_scores_stay_below_the_limit(
    masked_lm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PseudoLikelihood(masked_lm("Bert").ours)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("abcdefghij"[start:] * 5 for start in range(8)), encoding="utf-8")
    rows = read_text_rows(
        *(text, model.tokenizer, 40),
        max_sentences=None,
        seed=0,
        language="en",
        sources=SourceOptions(),
    )
    shapes: list[tuple[int, int]] = []
    threads: set[int] = set()

    def recorded(score: Any) -> Any:
        def record(batch: Any) -> Any:
            shapes.append(batch["token_ids"].shape)
            threads.add(threading.get_ident())
            return score(batch)

        return record

    own = model.masked_lm
    recording = dataclasses.replace(
        own,
        loss_sums=recorded(own.loss_sums),
        log_probabilities=recorded(own.log_probabilities),
        num_threads=4,
    )
    expected = text_metrics(own, model.tokenizer, rows, seed=0)
    heads = own.limits.num_heads
    limit = 2 * heads * 40**2 * 4  # This limit allows two rows of 40 tokens.
    monkeypatch.setattr(batch_limits, "MAX_ATTENTION_BYTES", limit)
    assert text_metrics(recording, model.tokenizer, rows, seed=0) == pytest.approx(expected)
    assert len(shapes) > 8
    assert all(count * heads * length**2 * 4 <= limit for count, length in shapes)
    threads.clear()
    shapes.clear()
    SentenceScorer(recording, model.tokenizer)([max(rows.sentences, key=lambda x: len(x[0]))])
    # Two batches at the same time would exceed the limit.
    assert max(shapes) == (2, 40) and len(threads) == 1


@pytest.mark.parametrize("data", ["text", "pairs"])
def test_rows_are_not_longer_than_the_number_of_positions(
    data: str, masked_lm: Any, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(masked_lm("Bert").theirs)
    words = " ".join("abcdefgh"[number % 8] for number in range(POSITIONS - 2))
    text, pairs = tmp_path / "text.txt", tmp_path / "pairs.jsonl"
    text.write_text(words, encoding="utf-8")
    pair = {"sentence_good": words, "sentence_bad": f"h{words[1:]}"}
    pair |= {"UID": "x", "linguistics_term": "x"}
    pairs.write_text(json.dumps(pair) + "\n", encoding="utf-8")
    evaluation_set = read_evaluation_set(
        [str(text)] if data == "text" else [],
        str(pairs) if data == "pairs" else "",
        tokenizer,
        text_length=POSITIONS,
        max_sentences=0,
        max_pairs=0,
        max_positions=POSITIONS,
    )
    encoder = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_dim=8,
        num_layers=1,
        num_heads=1,
        ffn_dim=8,
        max_positions=POSITIONS,
    )
    compute = ComputeConfig(dtype="float32", attention="xla")
    definition = define_model(ModelConfig(encoder, "masked_lm"), compute)
    parameters = definition.init(jax.random.key(0))
    metrics = LanguageMetrics(evaluation_set, definition, encoder, make_mesh(MeshConfig()))
    scores = metrics(parameters, lambda: None)
    assert scores and all(map(math.isfinite, scores.values()))
