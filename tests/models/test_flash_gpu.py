"""Compare the interpreted attention kernels for GPUs with dense attention in float64."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.dropout import keep_mask, matrix_states
from bert_jax.models.flash_gpu import backward, forward, supported
from bert_jax.models.flash_types import Dropout, Segments

ROWS, HEADS = 3, 2
KEY = jax.random.key(7)
# JAX 0.12 needs to know the GPU for which it lowers a kernel.
H200 = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", 132, "gpu"))


def arrays(length: int, head_dim: int) -> list[jax.Array]:
    """Return a query, a key, a value and a cotangent."""
    rng = np.random.default_rng(length)
    shape = (ROWS, length, HEADS, head_dim)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(4)]


def segments_of(kind: str, length: int) -> Segments | None:
    """Return segments of a long row, a row of one token, and a row of only padding."""
    positions = np.arange(length)
    tokens = np.array([length - length // 8, 1, 0])[:, None]
    match kind:
        case "none":
            return None
        case "packed":
            ids = np.where(positions < tokens, 1 + positions // max(1, length // 3), 0)
            return jnp.asarray(ids, jnp.int32), jnp.asarray(ids, jnp.int32)
        case "one":
            keys = jnp.asarray(positions < tokens, jnp.int32)
            return jnp.ones_like(keys), keys
    raise AssertionError(kind)


def visible_keys(segments: Segments | None, length: int, window: int | None) -> np.ndarray:
    """Return the mask of the keys that each query sees [rows, 1, queries, keys]."""
    positions = np.arange(length)
    near = np.abs(positions[:, None] - positions) <= (length if window is None else window // 2)
    if segments is None:
        return np.broadcast_to(near, (ROWS, 1, length, length))
    query, key = (np.asarray(x) for x in segments)
    return (near & (query[:, :, None] == key[:, None, :]))[:, None]


def dense(operands: list[jax.Array], mask: np.ndarray, rate: float) -> list[np.ndarray]:
    """Return dense attention, its gradients, and the log-sum-exp of each query's scores in float64.

    In float32, sums over hundreds of queries have errors of about 1e-5.
    """
    kept = keep_mask(KEY, rate, (ROWS, HEADS, *mask.shape[-2:])) if rate else True
    with jax.enable_x64(True):
        results = _dense([x.astype(jnp.float64) for x in operands], mask, kept, rate)
        return [np.asarray(x) for x in results]


def _dense(
    operands: list[jax.Array], mask: np.ndarray, kept: jax.Array | bool, rate: float
) -> list[jax.Array]:
    *inputs, cotangent = operands

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        masked = jnp.where(mask, scores, -1e30)
        weights = jnp.where(mask, jax.nn.softmax(masked), 0.0)
        weights = jnp.where(kept, weights / (1 - rate), 0.0)
        total = jnp.where(mask.any(-1), jax.nn.logsumexp(masked, axis=-1), 0.0)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, value), total

    attended, pull, total = jax.vjp(attend, *inputs, has_aux=True)
    return [attended, *pull(cotangent), total]


def fused(
    operands: list[jax.Array],
    segments: Segments | None,
    rate: float,
    window: int | None,
    interpret: bool = True,
) -> list[jax.Array]:
    """Return the same results as `dense`, computed by the kernels."""
    *inputs, cotangent = operands
    dropout = None
    if rate:
        batch, _, num_heads, _ = cotangent.shape
        dropout = Dropout(rate, jnp.stack(matrix_states(KEY, (batch, num_heads)), axis=-1))
    options = segments, dropout, window
    attended, total = forward(*inputs, *options, interpret=interpret)
    gradients = backward(*inputs, *options, attended, total, cotangent, interpret=interpret)
    return [attended, *gradients, total]


@pytest.mark.parametrize(
    ("length", "head_dim", "kind", "rate", "window"),
    [
        (1, 64, "packed", 0.1, None),
        (5, 64, "one", 0.1, 3),
        (128, 64, "none", 0.0, None),
        (130, 128, "packed", 0.1, None),
        (200, 64, "packed", 0.1, 65),
        (200, 64, "one", 0.0, None),
        *(
            pytest.param(length, head_dim, kind, rate, window, marks=pytest.mark.slow)
            for length, window in ((200, None), (300, 129), (256, 3))
            for head_dim in (16, 64, 128)
            for kind in ("none", "packed", "one")
            for rate in (0.0, 0.1)
        ),
    ],
)
def test_results_and_gradients_match_masked_dense_attention(
    length: int, head_dim: int, kind: str, rate: float, window: int | None
) -> None:
    operands, segments = arrays(length, head_dim), segments_of(kind, length)
    mask = visible_keys(segments, length, window)
    found = jax.jit(partial(fused, rate=rate, window=window))(operands, segments)
    for result, exact in zip(found, dense(operands, mask, rate), strict=True):
        assert_allclose(result, exact, rtol=0, atol=1e-5)
    # If a query sees no key, its result, its gradient and its log-sum-exp are exactly 0.
    blind = ~np.broadcast_to(mask.any(-1), (ROWS, HEADS, length))
    assert blind.any() == (kind == "one")
    for result in (found[0], found[1]):
        assert_array_equal(np.asarray(result).swapaxes(1, 2)[blind], 0.0)
    assert_array_equal(np.asarray(found[4])[blind], 0.0)


def test_bfloat16_results_are_close_to_exact_results() -> None:
    length, rate, window = 200, 0.1, 65
    operands = [x.astype(jnp.bfloat16) for x in arrays(length, 64)]
    segments = segments_of("packed", length)
    found = jax.jit(partial(fused, rate=rate, window=window))(operands, segments)
    exact = dense(
        [x.astype(jnp.float32) for x in operands], visible_keys(segments, length, window), rate
    )
    assert [x.dtype for x in found] == [*[jnp.bfloat16] * 4, jnp.float32]
    for result, expected in zip(found, exact, strict=True):
        # Both the factors and the results are rounded to 8 bits.
        error = np.abs(np.asarray(result, np.float64) - expected)
        assert error.max() < 2**-7 * np.abs(expected).max()
        assert np.sqrt(np.mean(error**2)) < 2**-8 * np.std(expected)


def test_segments_need_not_increase() -> None:
    rng = np.random.default_rng(0)
    operands, ids = arrays(300, 16), jnp.asarray(rng.integers(0, 40, (ROWS, 300)), jnp.int32)
    ids = ids.at[:, 128:].add(40)  # Some blocks of queries and keys now have no segment in common.
    found = jax.jit(partial(fused, rate=0.0, window=None))(operands, (ids, ids))
    expected = dense(operands, visible_keys((ids, ids), 300, None), 0.0)
    for result, exact in zip(found, expected, strict=True):
        assert_allclose(result, exact, rtol=0, atol=1e-5)


def shapes(length: int, head_dim: int = 64, dtype: str = "bfloat16") -> tuple[Any, Any]:
    operand = jax.ShapeDtypeStruct((4, length, HEADS, head_dim), dtype)
    ids = jax.ShapeDtypeStruct((4, length), jnp.int32)
    return [operand] * 4, (ids, ids)


def costs(length: int, window: int | None) -> list[Any]:
    """Return the cost estimates of the three kernels."""
    call = partial(fused, rate=0.1, window=window, interpret=False)
    equations = jax.make_jaxpr(call)(*shapes(length)).eqns
    return [e.params["cost_estimate"] for e in equations if e.primitive.name == "pallas_call"]


def test_the_cost_counts_the_products_and_each_array_once() -> None:
    numbers = 4 * HEADS * 512  # This is the total number of queries.
    array, vector = numbers * 64 * 2, numbers * 4
    for cost, products, arrays_, vectors in zip(
        costs(512, None), (2, 3, 4), (4, 6, 6), (1, 2, 2), strict=True
    ):
        assert cost.flops == products * 2 * numbers * 512 * 64
        assert cost.transcendentals == numbers * 512
        least = arrays_ * array + vectors * vector
        assert least < cost.bytes_accessed < 1.05 * least


def test_the_cost_of_a_window_is_linear_in_the_length() -> None:
    for short, long in zip(costs(2048, 129), costs(8192, 129), strict=True):
        assert 3.9 < long.flops / short.flops < 4.2
    for short, long in zip(costs(2048, None), costs(8192, None), strict=True):
        assert long.flops == 16 * short.flops


# JAX 0.12 issues this warning.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize(
    ("length", "head_dim", "dtype", "window"),
    [
        (512, 64, "bfloat16", None),
        (1000, 128, "bfloat16", 129),
        (100, 64, "float32", None),
        (8192, 64, "bfloat16", 129),
    ],
)
def test_the_kernels_lower_for_a_gpu(
    length: int, head_dim: int, dtype: str, window: int | None
) -> None:
    call = partial(fused, rate=0.1, window=window, interpret=False)
    operands = shapes(length, head_dim, dtype)
    with jax.sharding.use_abstract_mesh(H200):
        text = jax.jit(call).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
    assert len(re.findall(r"custom_call @\S*triton", text)) == 3
    # Operands are neither padded nor transposed, and no array has an element per pair of tokens.
    assert not re.search(rf"stablehlo\.(pad|transpose).*x{head_dim}x", text)
    assert not re.search(rf"tensor<(\d+x)*{length}x{length}x", text)


def test_supported_and_unsupported_sizes() -> None:
    assert supported(1, 64, None) is None
    assert supported(8192, 128, 129) is None
    assert supported(512, 36, None) == "needs heads of size 16, 32, 64 or 128"
    assert supported(2**16, 64, None) == "needs rows of at most 65,535 tokens"
