"""Test that computed parameter counts match real models and published counts."""

from __future__ import annotations

import dataclasses

import pytest

from bert_jax.analysis.counts import parameter_counts
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model, head_names
from bert_jax.models.parameters import count
from bert_jax.models.variants import variant

PLAIN = EncoderConfig(
    vocab_size=50, hidden_dim=8, num_layers=4, num_heads=2, ffn_dim=24, max_positions=16
)
ENCODERS = {
    "bert": PLAIN,
    "pre-norm, fixed positions": dataclasses.replace(PLAIN, norm="pre", positions="sinusoidal"),
    "roberta": dataclasses.replace(PLAIN, num_segments=1, position_offset=2),
    "distilbert": dataclasses.replace(PLAIN, num_segments=0),
    "albert": dataclasses.replace(PLAIN, embedding_dim=6, sharing="all", num_groups=2),
    "electra": dataclasses.replace(PLAIN, embedding_dim=6, pooler_activation="gelu"),
    "shared attention": dataclasses.replace(PLAIN, sharing="attention", num_groups=2),
    "shared ffn": dataclasses.replace(PLAIN, sharing="ffn"),
}


@pytest.mark.parametrize("head", head_names())
@pytest.mark.parametrize("encoder", ENCODERS)
def test_counts_match_the_parameters_of_models(encoder: str, head: str) -> None:
    labels = ("a", "b", "c") if head in ("classification", "tagging") else ()
    model = ModelConfig(ENCODERS[encoder], head, labels)
    shapes = define_model(model, ComputeConfig(dtype="float32", attention="xla")).shapes
    counts = parameter_counts(model)
    assert counts.total == count(shapes)
    tables = {n: x for n, x in shapes.items() if n.startswith("encoder.embeddings.")}
    layers = {n: x for n, x in shapes.items() if n.startswith("encoder.layers.")}
    assert (counts.embeddings, counts.layers) == (count(tables), count(layers))


@pytest.mark.parametrize(
    ("name", "published"),
    [("base", 109_482_240), ("large", 335_141_888), ("albert-base-v2", 11_683_584)],
)
def test_counts_match_published_encoders(name: str, published: int) -> None:
    # These are the parameter counts of transformers' BertModel and AlbertModel with a pooler.
    assert parameter_counts(ModelConfig(variant(name), "encoder")).total == published


def test_huge_sizes_are_counted_immediately() -> None:
    encoder = dataclasses.replace(PLAIN, num_layers=2_000, ffn_dim=10**9)
    assert parameter_counts(ModelConfig(encoder)).layers > 2_000 * 2 * 8 * 10**9
