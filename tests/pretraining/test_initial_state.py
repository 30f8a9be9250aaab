"""Test which differences between a run's encoder and the model it starts from are accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bert_jax.models.config import EncoderConfig, incompatible_fields
from bert_jax.models.variants import variant
from bert_jax.pretraining.initial_state import changed_angles, with_positions_of


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


@pytest.mark.parametrize(
    ("source", "encoder", "text"),
    [
        ({}, {}, ""),
        ({"rotary_theta": 1e4}, {}, "; rotary_theta 160,000 instead of 10,000"),
        ({}, {"local_rotary_theta": None}, "; local_rotary_theta 160,000 instead of 10,000"),
        ({"rotary_theta": 1e4, "local_rotary_theta": None}, {"rotary_theta": 1e4}, ""),
        (
            {"attention_window": None, "global_every": 1, "local_rotary_theta": None},
            {
                "attention_window": None,
                "global_every": 1,
                "local_rotary_theta": None,
                "rotary_theta": 2e6,
            },
            "; rotary_theta 2,000,000 instead of 160,000",
        ),
    ],
)
def test_changed_rotary_angles_are_described(source, encoder, text) -> None:
    base = variant("modernbert-base")
    assert changed_angles(replace(base, **source), replace(base, **encoder)) == text


def test_learned_positions_have_no_rotary_angles() -> None:
    base = variant("base")
    assert changed_angles(base, base) == ""
