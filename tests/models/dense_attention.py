"""Compute attention with a dense mask in PyTorch, as a reference for the faster implementations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

ROWS, HEADS, DIM = 2, 2, 8


def arrays(length: int, count: int = 4, dtype: str = "float32") -> list[jax.Array]:
    rng = np.random.default_rng(length)
    shape = (ROWS, length, HEADS, DIM)
    return [jnp.asarray(rng.normal(size=shape), dtype) for _ in range(count)]


def documents_of(kind: str, length: int) -> tuple[np.ndarray | None, bool]:
    """Return document ids and whether they are packed; the amount of padding varies by row."""
    tokens = np.array([length // 4 + 1, length - length // 8])[:, None]
    positions = np.arange(length)[None]
    match kind:
        case "none":
            return None, True
        case "packed":
            ids = 1 + positions // max(1, length // 3)
            return np.where(positions < tokens, ids, 0).astype(np.int32), True
        case "one":
            return (positions < tokens).astype(np.int32), False
    raise AssertionError(kind)


def dense_mask(ids: np.ndarray | None, packed: bool, length: int, window: int | None) -> np.ndarray:
    """Return the mask [rows, 1, from, to] of attention within documents and a window."""
    positions = np.arange(length)
    reach = length if window is None else (window - 1) // 2
    near = np.abs(positions[:, None] - positions) <= reach
    if ids is None:
        return np.broadcast_to(near, (ROWS, 1, length, length))
    visible = ids[:, :, None] == ids[:, None, :] if packed else (ids != 0)[:, None, :]
    return (near & visible)[:, None]


def torch_attention(mask: np.ndarray, operands: list[jax.Array]) -> list[np.ndarray]:
    """Return PyTorch's attention in float64, and its gradients for the cotangent in `operands`."""
    *inputs, cotangent = (
        torch.from_numpy(np.asarray(x, np.float64)).transpose(1, 2) for x in operands
    )
    inputs = [x.requires_grad_() for x in inputs]
    visible = torch.from_numpy(np.array(mask))
    attended = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=visible)
    gradients = torch.autograd.grad(attended, inputs, cotangent)
    return [x.detach().transpose(1, 2).numpy() for x in (attended, *gradients)]
