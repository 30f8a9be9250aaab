"""Test which programs have barriers, and that barriers change no values."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_array_equal

from bert_jax.models.barriers import gpu_barrier, recomputed
from bert_jax.models.dropout import dropout
from bert_jax.models.softmax_attention import softmax_attention

RATE, SHAPE = 0.25, (2, 3, 8, 8)


def drop(x: jax.Array, key: jax.Array) -> jax.Array:
    return dropout(x, RATE, key)


def attend(scores: jax.Array, key: jax.Array) -> jax.Array:
    return softmax_attention(scores, jnp.ones((2, 8, 3, 4)), key, RATE)


def lowered(function: Callable[..., jax.Array], platform: str) -> str:
    """Return the StableHLO text of a function of an array and a key."""
    traced = jax.jit(function).trace(jnp.ones(SHAPE), jax.random.key(0))
    return traced.lower(lowering_platforms=(platform,)).as_text()


def gate(x: jax.Array, key: jax.Array) -> jax.Array:
    return recomputed(lambda x: jnp.tanh(x) * x)(x)


@pytest.mark.parametrize("function", [drop, attend, gate])
@pytest.mark.parametrize(
    ("platform", "barriers"), [("cuda", 1), ("rocm", 1), ("cpu", 0), ("tpu", 0)]
)
def test_only_backward_passes_on_gpus_have_barriers(
    function: Callable[..., jax.Array], platform: str, barriers: int
) -> None:
    def gradient(x: jax.Array, key: jax.Array) -> jax.Array:
        return jax.grad(lambda x: function(x, key).sum())(x)

    assert lowered(function, platform).count("optimization_barrier") == 0
    assert lowered(gradient, platform).count("optimization_barrier") == barriers


def test_arrays_and_keys_pass_unchanged() -> None:
    arrays = {"x": jnp.arange(3.0), "key": jax.random.key(7), "none": None}
    result = jax.jit(gpu_barrier)(arrays)
    assert result.keys() == arrays.keys() and result["none"] is None
    assert_array_equal(result["x"], arrays["x"])
    assert_array_equal(*(jax.random.key_data(each["key"]) for each in (result, arrays)))


def test_only_the_arguments_of_a_recomputed_function_are_kept() -> None:
    x, y = jax.random.normal(jax.random.key(1), (2, 16))

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh(x) * jnp.exp(y)

    result, pull = jax.vjp(recomputed(function), x, y)
    expected, pull_expected = jax.vjp(function, x, y)
    assert_array_equal(result, expected)
    for each in zip(pull(jnp.cos(x)), pull_expected(jnp.cos(x)), strict=True):
        assert_array_equal(*each)
    kept = [leaf for leaf in jax.tree.leaves(pull) if jnp.ndim(leaf)]
    assert len(kept) == 2
