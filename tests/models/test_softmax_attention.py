"""Compare the softmax over attention scores, and its gradients, with PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from bert_jax.models.dropout import keep_mask
from bert_jax.models.softmax_attention import softmax_attention

BATCH, HEADS, LENGTH, DIM = 2, 3, 10, 8
RATE = 0.3


def draw() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores, values and a cotangent."""
    rng = np.random.default_rng(0)
    scores = 2 * rng.standard_normal((BATCH, HEADS, LENGTH, LENGTH))
    value, cotangent = rng.standard_normal((2, BATCH, LENGTH, HEADS, DIM))
    return tuple(array.astype(np.float32) for array in (scores, value, cotangent))


def packed_rows() -> np.ndarray:
    """Return the mask of one row with two documents and padding, and of one with only padding."""
    ids = np.array([[1] * 4 + [2] * 3 + [0] * 3, [0] * LENGTH])
    return (ids[:, :, None] == ids[:, None, :])[:, None]


def in_pytorch(
    scores: np.ndarray,
    value: np.ndarray,
    cotangent: np.ndarray,
    visible: np.ndarray | None,
    factor: np.ndarray,
) -> list[np.ndarray]:
    """Return the result and the gradients of the scores and values, in float64.

    Args:
      scores, value, cotangent: see `softmax_attention`.
      visible: the mask of the scores; None to see everything.
      factor: the dropout factor of every probability.
    """
    inputs = [torch.tensor(array, dtype=torch.float64) for array in (scores, value)]
    for each in inputs:
        each.requires_grad_()
    masked = inputs[0]
    if visible is not None:
        masked = masked.masked_fill(~torch.tensor(visible), torch.finfo(torch.float64).min)
    weights = masked.softmax(-1) * torch.tensor(factor)
    result = torch.einsum("bhqk,bkhd->bqhd", weights, inputs[1])
    gradients = torch.autograd.grad(result, inputs, torch.tensor(cotangent, dtype=torch.float64))
    return [each.detach().numpy() for each in (result, *gradients)]


@pytest.mark.parametrize("rate", [0.0, RATE])
@pytest.mark.parametrize("mask", ["all visible", "packed rows", "a query sees nothing"])
def test_results_and_gradients_equal_pytorchs(rate: float, mask: str) -> None:
    scores, value, cotangent = draw()
    visible: np.ndarray | None = None
    if mask != "all visible":
        visible = packed_rows()
    if mask == "a query sees nothing":
        assert visible is not None
        visible = visible & (np.arange(LENGTH)[:, None] != 2)
    key = jax.random.key(5) if rate else None
    factor = np.ones(scores.shape)
    if key is not None:
        factor = np.asarray(keep_mask(key, rate, scores.shape)) / (1 - rate)

    def attend(scores: jax.Array, value: jax.Array) -> jax.Array:
        if visible is not None:
            scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
        return softmax_attention(scores, value, key, rate)

    result, pull = jax.vjp(jax.jit(attend), jnp.asarray(scores), jnp.asarray(value))
    ours = [result, *pull(jnp.asarray(cotangent))]
    theirs = in_pytorch(scores, value, cotangent, visible, factor)
    for each, expected in zip(ours, theirs, strict=True):
        assert_allclose(each, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("key", [None, jax.random.key(5)], ids=["no dropout", "dropout"])
def test_only_one_array_of_probabilities_is_kept_in_bfloat16(key: Any) -> None:
    scores, value, _ = draw()
    narrow = jnp.asarray(value, jnp.bfloat16)
    _, pull = jax.vjp(
        lambda scores, value: softmax_attention(scores, value, key, RATE),
        *(jnp.asarray(scores), narrow),
    )
    square = [x for x in jax.tree.leaves(pull) if x.shape[-2:] == (LENGTH, LENGTH)]
    kept = {(leaf.shape, leaf.dtype.name) for leaf in square}
    assert kept == {((BATCH, HEADS, LENGTH, LENGTH), "bfloat16")}
