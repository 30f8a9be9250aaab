"""Test looking up segment embeddings, and the gradients of the lookup."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.embeddings import select_segments


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 130)])
@pytest.mark.parametrize("segments", [1, 2, 3])
def test_segment_gradients_are_accumulated_in_float32(segments, shape, dtype) -> None:
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.normal(size=(segments, 5)), dtype)
    ids = rng.integers(0, segments, shape).astype(np.int32)
    value, pull = jax.vjp(lambda table: select_segments(table, ids), table)
    assert_array_equal(value, np.asarray(table)[ids])
    cotangent = jnp.asarray(rng.normal(size=(*shape, 5)), dtype)
    (gradient,) = pull(cotangent)
    exact = np.zeros((segments, 5))
    np.add.at(exact, ids, np.asarray(cotangent, np.float64))
    assert gradient.dtype == table.dtype
    # The result is rounded only once, at the end, to bfloat16's eight significant bits.
    rtol = 1e-5 if dtype == "float32" else 2**-8
    assert_allclose(np.asarray(gradient, np.float64), exact, rtol=rtol, atol=1e-5)


def test_an_accelerator_sums_segments_without_a_product() -> None:
    table, ids = jnp.ones((2, 4)), jnp.zeros((3, 5), jnp.int32)
    traced = jax.jit(jax.grad(lambda table: jnp.sum(select_segments(table, ids) ** 2))).trace(table)
    products = {
        platform: traced.lower(lowering_platforms=(platform,)).as_text().count("dot_general")
        for platform in ("cpu", "cuda", "tpu")
    }
    assert products == {"cpu": 1, "cuda": 0, "tpu": 0}
