"""Test which differences between a run's encoder and the model it starts from are accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bert_jax.models.config import EncoderConfig, incompatible_fields
from bert_jax.models.variants import variant
from bert_jax.pretraining.initial_state import with_positions_of


@pytest.mark.parametrize(
    ("changes", "differing"),
    [
        ({"max_positions": 16_384, "rotary_theta": 1e6, "local_rotary_theta": 5e4}, []),
        ({"max_positions": 4_096}, ["max_positions"]),
        ({"attention_window": 257, "rotary_theta": 1e6}, ["attention_window", "rotary_theta"]),
        ({"activation": "silu"}, ["activation"]),
    ],
)
def test_a_longer_context_may_have_different_rotary_angles(changes, differing) -> None:
    source = variant("modernbert-base")
    encoder = with_positions_of(replace(source, **changes), source)
    assert isinstance(encoder, EncoderConfig)
    lines = incompatible_fields(source, encoder)
    assert [line.partition(":")[0] for line in lines] == differing
