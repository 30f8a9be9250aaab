"""The model's products against plain einsum, differentiated by JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.products import affine_float32, matrix_product


def arrays(*shapes: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def test_a_matrix_product_is_the_dot_general_it_stands_for() -> None:
    x, kernel, cotangent = arrays((2, 3, 5), (5, 7), (2, 3, 7))
    numbers = (((2,), (0,)), ((), ()))

    def result(function: Any) -> Any:
        value, pull = jax.vjp(lambda x, kernel: function(x, kernel, numbers), x, kernel)
        return value, *pull(cotangent)

    found, expected = result(matrix_product), result(jax.lax.dot_general)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=0, atol=1e-5)
    assert matrix_product(x[0, 0], kernel, (((0,), (0,)), ((), ()))).shape == (7,)


def test_no_gradient_of_a_matrix_product_contracts_two_dims() -> None:
    x, kernel = arrays((2, 3, 5), (5, 7))

    def contracted(function: Any) -> list[int]:
        def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(function(x, kernel, (((2,), (0,)), ((), ())))))

        jaxpr = jax.make_jaxpr(jax.grad(loss, (0, 1)))(x, kernel).jaxpr
        dots = [one for one in jaxpr.eqns if one.primitive.name == "dot_general"]
        return [len(one.params["dimension_numbers"][0][0]) for one in dots]

    assert contracted(matrix_product) == [1, 1, 1]
    assert 2 in contracted(jax.lax.dot_general)  # what the function is there to avoid


def test_logits_and_their_gradients_are_those_of_the_formula() -> None:
    x, table, bias = arrays((6, 5), (11, 5), (11,))
    assert_allclose(affine_float32(x, table, bias), x @ table.T + bias, rtol=0, atol=1e-5)
    check_grads(affine_float32, (x, table, bias), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)

    def loss(function: Any) -> Any:
        return lambda *args: jnp.sum(jnp.sin(function(*args)))

    found = jax.grad(loss(affine_float32), (0, 1, 2))(x, table, bias)
    expected = jax.grad(loss(lambda x, t, b: x @ t.T + b), (0, 1, 2))(x, table, bias)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=0, atol=1e-5)


def test_bfloat16_logits_add_up_their_bias_gradient_in_float32() -> None:
    x, table, bias, cotangent = arrays((4096, 8), (3, 8), (3,), (4096, 3))
    _, pull = jax.vjp(affine_float32, x.astype(jnp.bfloat16), table.astype(jnp.bfloat16), bias)
    cotangent = jnp.abs(cotangent)
    to_x, to_table, to_bias = pull(cotangent)
    assert (to_x.dtype, to_table.dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert to_bias.dtype == jnp.float32
    rounded = np.asarray(cotangent.astype(jnp.bfloat16), np.float64)
    # Added up in bfloat16, 4,096 terms would stall at a few hundred.
    assert_allclose(to_bias, rounded.sum(axis=0), rtol=1e-5)
    assert_array_equal(jnp.isfinite(to_x), True)
