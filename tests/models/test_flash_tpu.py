"""Compare the interpreted attention kernel for TPUs with PyTorch's dense attention."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.dropout import keep_mask, matrix_states
from bert_jax.models.flash_tpu import backward, forward, supported
from bert_jax.models.flash_types import Dropout, Segments
from bert_jax.models.layout import on_every_device
from bert_jax.training.sharding import MeshConfig, layout, make_mesh

ROWS = 3
DROPOUT_KEY = jax.random.key(7)
Results = list[np.ndarray]  # These are the output and the three gradients.


def operands_of(length: int, num_heads: int, head_dim: int) -> list[np.ndarray]:
    """Return a scaled query, a key, a value and the gradient for the output, in float32."""
    rng = np.random.default_rng(length + head_dim)
    shape = (ROWS, length, num_heads, head_dim)
    query, key, value, cotangent = rng.normal(size=(4, *shape)).astype(np.float32)
    # The dot products of queries with keys, and of values with the gradient, have unit variance.
    scale = np.float32(head_dim**-0.5)
    return [query * scale, key, value, cotangent * scale]


def segments_of(kind: str, length: int) -> Segments | None:
    """Return the segment ids of rows of documents of different lengths."""
    positions = np.arange(length)
    tokens = np.array([length // 4 + 1, length - length // 8, length])[:, None]
    match kind:
        case "none":
            return None
        case "packed":
            documents = 1 + positions // max(1, length // 3)
            ids = np.where(positions < tokens, documents, 0).astype(np.int32)
            return ids, ids
        case "one":  # Padding sees the tokens, and the first row contains only padding.
            keys = (positions < np.array([[0], [1], [length - length // 8]])).astype(np.int32)
            return np.ones_like(keys), keys
    raise AssertionError(kind)


def seen_by(segments: Segments) -> np.ndarray:
    """Return the mask of the keys that each query sees [rows, 1, queries, keys]."""
    queries, keys = segments
    return queries[:, None, :, None] == keys[:, None, None]


def dropout_of(rate: float, num_heads: int) -> Dropout | None:
    if not rate:
        return None
    return Dropout(rate, jnp.stack(matrix_states(DROPOUT_KEY, (ROWS, num_heads)), axis=-1))


def dense(operands: list[np.ndarray], segments: Segments | None, rate: float) -> Results:
    """Return the results of PyTorch in float64, with the dropout mask of `keep_mask`."""
    length, num_heads = operands[0].shape[1:3]
    *inputs, cotangent = (torch.from_numpy(x).double().transpose(1, 2) for x in operands)
    inputs = [x.requires_grad_() for x in inputs]
    query, key, value = inputs
    scores = query @ key.transpose(-1, -2)
    seen = torch.ones(ROWS, 1, length, length, dtype=torch.bool)
    if segments is not None:
        seen = torch.from_numpy(seen_by(segments))
    lowest = torch.finfo(torch.float64).min
    weights = torch.softmax(torch.where(seen, scores, lowest), dim=-1) * seen
    if rate:
        shape = (ROWS, num_heads, length, length)
        weights = weights * torch.from_numpy(np.array(keep_mask(DROPOUT_KEY, rate, shape)))
    attended = weights @ value / (1.0 - rate)
    gradients = torch.autograd.grad(attended, inputs, cotangent)
    return [x.detach().transpose(1, 2).numpy() for x in (attended, *gradients)]


@partial(jax.jit, static_argnums=(2,))
def interpreted(operands: list[jax.Array], segments: Segments | None, rate: float) -> list:
    """Return the output, the gradients and the log-sum-exp of the interpreted kernel."""
    *inputs, cotangent = operands
    dropout = dropout_of(rate, operands[0].shape[2])
    attended, sums = forward(*inputs, segments, dropout, None, interpret=True)
    gradients = backward(
        *inputs, segments, dropout, None, attended, sums, cotangent, interpret=True
    )
    return [attended, *gradients, sums]


@pytest.mark.parametrize(
    ("kind", "length", "num_heads", "head_dim", "rate"),
    [
        ("packed", 1, 2, 64, 0.1),
        ("packed", 5, 1, 128, 0.0),
        ("one", 130, 3, 64, 0.1),  # Half of the last block of heads is padding.
        ("packed", 200, 2, 128, 0.1),
        ("none", 200, 2, 64, 0.1),
        ("packed", 128, 4, 64, 0.1),
        # Each program of the kernel computes only part of the queries.
        ("packed", 640, 2, 64, 0.1),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("none", 128, 4, 64, 0.0),
                ("one", 384, 2, 64, 0.5),
                ("one", 640, 1, 128, 0.0),
                ("none", 128, 5, 32, 0.1),
                ("packed", 256, 1, 256, 0.1),
            )
        ),
    ],
)
def test_outputs_and_gradients_match_dense_attention(
    kind: str, length: int, num_heads: int, head_dim: int, rate: float
) -> None:
    operands = operands_of(length, num_heads, head_dim)
    segments = segments_of(kind, length)
    *found, sums = interpreted(operands, segments, rate)
    assert sums.shape == (ROWS, num_heads, length)
    for result, exact in zip(found, dense(operands, segments, rate), strict=True):
        assert_allclose(result, exact, rtol=0, atol=1e-5)
    scores = np.einsum("bqhd,bkhd->bhqk", *map(np.float64, operands[:2]))
    if segments is not None:
        scores[~np.broadcast_to(seen_by(segments), scores.shape)] = -np.inf
    exact = np.logaddexp.reduce(scores, axis=-1)
    # The log-sum-exp of a query that sees no key is not defined, but must be finite.
    assert_allclose(sums, np.where(np.isinf(exact), sums, exact), rtol=0, atol=1e-5)
    assert np.isfinite(sums).all()


def test_a_query_that_sees_no_key_gets_zeros_and_gives_zero_gradients() -> None:
    operands = operands_of(128, 2, 64)
    segments = segments_of("one", 128)
    assert segments is not None
    assert not seen_by(segments)[0].any()
    for result in interpreted(operands, segments, 0.1)[:4]:
        assert_array_equal(result[0], 0.0)


def test_the_scores_of_unseen_keys_do_not_matter() -> None:
    operands = operands_of(128, 2, 64)
    keys = np.zeros((ROWS, 128), np.int32)
    keys[:, 64:] = 1
    segments = (np.zeros_like(keys), keys)
    found = interpreted(operands, segments, 0.0)
    operands[1][:, 64:] *= 1e4
    for result, other in zip(interpreted(operands, segments, 0.0), found, strict=True):
        assert_array_equal(result, other)


def test_bfloat16_results_match_within_the_rounding_of_their_largest_term() -> None:
    operands = [x.astype(jnp.bfloat16) for x in operands_of(128, 2, 64)]
    segments = segments_of("packed", 128)
    exact = dense([x.astype(np.float32) for x in operands], segments, 0.1)
    for result, reference in zip(interpreted(operands, segments, 0.1)[:4], exact, strict=True):
        assert result.dtype == jnp.bfloat16
        atol = np.abs(reference).max() * 2.0**-8
        assert_allclose(result.astype(np.float32), reference, rtol=0, atol=atol)


def test_rows_and_heads_are_split_over_the_devices_of_a_mesh() -> None:
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    inputs = [np.concatenate([x, x[:1]]) for x in operands_of(128, 4, 64)[:3]]
    ids = np.concatenate([segments_of("packed", 128)[0]] * 2)[:4]
    states = jnp.stack(matrix_states(DROPOUT_KEY, (4, 4)), axis=-1)
    heads, row = ("batch", None, "heads", None), ("batch", None)

    def attend(query: jax.Array, key: jax.Array, value: jax.Array, *others: jax.Array) -> jax.Array:
        ids, states = others
        dropout = Dropout(0.1, states)
        return forward(query, key, value, (ids, ids), dropout, None, interpret=True)[0]

    def divided(*operands: jax.Array) -> jax.Array:
        with layout(mesh):
            axes = (heads, heads, heads, row, ("batch", "heads", None))
            return on_every_device(attend, operands, axes, heads)

    operands = (*inputs, ids, states)
    found = jax.jit(divided)(*operands)
    assert len(found.sharding.device_set) == 8
    assert_allclose(found, jax.jit(attend)(*operands), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("length", "num_heads", "head_dim", "dtype"),
    [
        (512, 12, 64, "bfloat16"),
        pytest.param(200, 3, 64, "float32", marks=pytest.mark.slow),
        pytest.param(1024, 2, 128, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_the_kernels_lower_for_a_tpu(
    length: int, num_heads: int, head_dim: int, dtype: str
) -> None:
    array = jax.ShapeDtypeStruct((ROWS, length, num_heads, head_dim), dtype)
    ids = jax.ShapeDtypeStruct((ROWS, length), jnp.int32)
    states = jax.ShapeDtypeStruct((ROWS, num_heads, 2), jnp.uint32)

    @jax.jit
    def both(operands: list[jax.Array], ids: jax.Array, states: jax.Array) -> list[jax.Array]:
        *inputs, cotangent = operands
        fixed = ((ids, ids), Dropout(0.1, states), None)
        results = forward(*inputs, *fixed)
        return [results[0], *backward(*inputs, *fixed, *results, cotangent)]

    text = jax.export.export(both, platforms=["tpu"])([array] * 4, ids, states).mlir_module()
    for name in ("forward", "backward"):
        assert f"flash_attention_{name}" in text
    assert text.count("stablehlo.custom_call @tpu_custom_call") == 2
    # Neither scores nor a mask of all pairs of tokens is ever stored, and nothing is transposed.
    assert not re.search(rf"tensor<(\d+x)*{length}x{length}x|stablehlo.transpose", text)
    padded = [
        widths for widths in re.findall(r"high = \[(.*?)\]", text) if set(widths) != set("0, ")
    ]
    assert bool(padded) == (length % 128 != 0)


def test_unsupported_attention_is_refused_with_the_reason() -> None:
    assert supported(512, 64, None) is None
    assert supported(1024, 128, None) is None
    assert supported(1025, 64, None) == "needs rows of at most 1024 tokens"
    assert supported(513, 256, None) == "needs rows of at most 512 tokens"
    assert supported(512, 80, None) == "needs heads of 32, 64, 128 or 256 dims"
    assert supported(512, 64, 129) == "needs attention to the whole row, without a window"
