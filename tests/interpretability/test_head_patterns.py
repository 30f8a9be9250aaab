"""Test that a head gets the maximum score if it follows an attention pattern perfectly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from bert_jax import Attention
from bert_jax.interpretability.head_patterns import head_patterns


@pytest.fixture(scope="module")
def trace(import_pair):
    return Attention(import_pair("Bert", "encoder")[1])("wet", "it")


def test_heads_that_follow_a_pattern_score_one(trace):
    length = len(trace.tokens)
    separators = [place for place, token in enumerate(trace.tokens) if token == "[SEP]"]
    previous, following, to_separator, broad = np.zeros((4, length, length), np.float32)
    previous[np.arange(1, length), np.arange(length - 1)] = previous[0, 0] = 1
    following[np.arange(length - 1), np.arange(1, length)] = following[-1, -1] = 1
    to_separator[:, separators] = 1 / len(separators)
    broad[:] = 1 / length
    heads = np.stack([previous, following, to_separator, broad])[None]
    patterns = head_patterns(dataclasses.replace(trace, attention=heads))
    np.testing.assert_allclose(patterns.previous[0, :2], [1, 0])
    np.testing.assert_allclose(patterns.next[0, :2], [0, 1])
    np.testing.assert_allclose(patterns.separator[0, 2], 1, rtol=1e-6)
    np.testing.assert_allclose(patterns.broad[0, [0, 3]], [0, 1], atol=1e-6)


def test_scores_are_between_zero_and_one(trace):
    for scores in head_patterns(trace):
        assert scores.shape == trace.attention.shape[:2]
        assert (scores >= 0).all() and (scores <= 1).all()
