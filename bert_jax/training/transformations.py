"""Define the gradient transformations from which the optimizers are built."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from bert_jax.models.layout import is_divided
from bert_jax.training.sharding import TABLE

Rate = Callable[[str], float]
_HIDDEN_MATRIX = re.compile(r"(.*\.)?encoder\.layers\.\d+\..*\.kernel")
_ADAMS_RMS = 0.2  # Liu et al. 2025, section 2.2: a typical RMS of AdamW's updates


def decays(name: str) -> bool:
    """Return whether weight decay and LAMB's trust ratio apply to a parameter.

    They do not apply to biases and norms.
    """
    return not name.endswith((".bias", ".scale"))


def decay_mask(parameters: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether each parameter decays; see `decays`."""
    return {name: decays(name) for name in parameters}


def with_learning_rate(
    parts: list[optax.GradientTransformation], rate: Rate | None
) -> optax.GradientTransformationExtraArgs:
    """Chain transformations, and multiply each update by the learning rate and a factor.

    The `update` of the result takes the `learning_rate` as an argument.

    Args:
      parts: the transformations.
      rate: maps a parameter's name to the factor that multiplies its learning rate; if None, all
        factors are 1.
    """
    return optax.with_extra_args_support(optax.chain(*parts, _scale_by_learning_rate(rate)))


def global_norm(gradients: Mapping[str, jax.Array]) -> jax.Array:
    """Return the square root of the sum of the squares of all elements.

    On GPUs, vectors are joined first, because XLA runs one kernel for each array that it sums. For
    the 128 biases and norm parameters of BERT-base, starting a kernel would take longer than
    running it. If parameters are sharded, the vectors are not joined, because that would move them
    between devices.
    """
    if any(is_divided(axis) for axis in TABLE if axis != "batch"):
        return optax.tree.norm(gradients)
    return jax.lax.platform_dependent(gradients, cuda=_norm_of_joined, default=optax.tree.norm)


def _norm_of_joined(gradients: Mapping[str, jax.Array]) -> jax.Array:
    arrays = list(gradients.values())
    vectors = [array for array in arrays if array.ndim == 1]
    joined = [jnp.concatenate(vectors)] if vectors else []
    return optax.tree.norm([array for array in arrays if array.ndim != 1] + joined)


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Clip gradients as `optax.clip_by_global_norm` does, but multiply instead of dividing.

    XLA's CPU compiler computes a quotient once and writes it to memory, which takes an extra pass.
    A product is instead recomputed for each of Adam's moments. Without the extra pass over the
    embeddings of 30,522 tokens, BERT-mini's step on 32 sentences of 24 tokens takes 60 ms instead
    of 64 (2 Xeon cores, 2026-11).
    """

    def update(updates: optax.Updates, params: optax.Params | None = None) -> optax.Updates:
        factor = max_norm / jnp.maximum(global_norm(updates), max_norm)
        return jax.tree.map(lambda update: update * factor.astype(update.dtype), updates)

    return optax.stateless(update)


def _scale_by_learning_rate(
    rate: Rate | None,
) -> optax.GradientTransformationExtraArgs:
    def update(
        updates: Any, state: Any, params: Any = None, *, learning_rate: Any, **others: Any
    ) -> tuple[dict[str, Any], Any]:
        scaled = {
            name: -learning_rate * (1.0 if rate is None else rate(name)) * update
            for name, update in updates.items()
        }
        return scaled, state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def is_hidden_matrix(name: str) -> bool:
    """Return whether a parameter is a matrix in an encoder layer, which Muon updates."""
    return _HIDDEN_MATRIX.fullmatch(name) is not None


def scale_by_muon(momentum: float) -> optax.GradientTransformation:
    """Return Muon's transformation of matrices, with Nesterov momentum (Jordan et al. 2024).

    The singular values of optax's updates are about 1. Each update is then scaled to an RMS of 0.2,
    which is typical of AdamW's updates, regardless of the matrix's shape (Liu et al. 2025, section
    2.2). AdamW's learning rate and weight decay therefore suit Muon too. Every matrix is
    orthogonalized as a whole; if it is split over devices, XLA inserts the communication that the
    products need.

    Args:
      momentum: the decay rate of the running mean of the gradient.
    """

    def rescale(updates: optax.Updates, params: optax.Params | None = None) -> optax.Updates:
        return jax.tree.map(lambda x: _ADAMS_RMS * max(x.shape) ** 0.5 * x, updates)

    def dimensions(updates: optax.Updates) -> Any:
        return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), updates)

    muon = optax.contrib.scale_by_muon(beta=momentum, weight_dimension_numbers=dimensions)
    return optax.chain(muon, optax.stateless(rescale))


def scale_by_stable_adam(
    beta1: float, beta2: float, epsilon: float, weight_decay: float
) -> optax.GradientTransformation:
    """Return AdamW's transformation with update clipping (Wortsman et al. 2023, algorithm 2).

    The update of a parameter, including its weight decay, is divided by the RMS of g / sqrt(u), if
    this is more than 1. Here, g is the gradient and u is the running mean of its square. If the
    gradient suddenly grows, u lags behind, and the division prevents a large update.
    """
    adam = optax.scale_by_adam(beta1, beta2, epsilon)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = adam.update(gradients, state)
        squares = optax.tree.bias_correction(state.nu, beta2, state.count)
        result = {}
        for name, step in updates.items():
            if weight_decay and decays(name):
                step = step + weight_decay * params[name]
            ratio = gradients[name] ** 2 / jnp.maximum(squares[name], epsilon**2)
            result[name] = step / jnp.maximum(1.0, jnp.sqrt(jnp.mean(ratio)))
        return result, state

    return optax.GradientTransformation(adam.init, update)
