"""Define the pooler, the pretraining heads, and the projections to a teacher's dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.activations import activation_function
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.layers import dense, embedding_table, scores_of, select_rows
from bert_jax.models.layout import constrain
from bert_jax.models.norms import norm_layer

PAIRS_HEAD = "next_sentence."  # name prefix of the sentence-pair head's parameters
GENERATOR = "generator."  # name prefix of the parameters that an ELECTRA generator does not share
# Parameters whose names start with one of these prefixes are used only in training.
TRAINING_ONLY = ("to_teacher.", GENERATOR)


class MaskedLMHead(nnx.Module):
    """A head that predicts masked tokens from dot products with the token embeddings.

    A transform precedes the dot products, and a bias is added to them. As in the code released with
    Devlin et al. 2019, the transform consists of a dense layer that maps to the dimension of the
    token table, an activation and a norm. With `head_transform=False`, there is no transform. With
    `tied_output=False`, the output layer has a table of its own.
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.transforms, self.tied = config.head_transform, config.tied_output
        dim = config.table_dim
        if self.transforms:
            self.activation = activation_function(config.activation, compute.ops)
            self.transform = dense(
                *(config.hidden_dim, dim, ("embed", None), config, compute, rngs),
                bias=config.dense_bias,
            )
            self.norm = norm_layer(dim, config, compute, rngs)
        if not self.tied:
            axes = ("vocab", "embed")
            self.output = embedding_table(config.vocab_size, dim, axes, config, rngs)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,)), logical_axes=("vocab",))

    def __call__(self, x: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Return float32 logits [batch, count, vocab_size] for `x` [batch, count, hidden_dim]."""
        if self.transforms:
            x = self.norm(self.activation(self.transform(x)))
        table = None if self.tied else self.output[...]
        return constrain(embeddings.attend(x, self.bias[...], table), "batch", None, "vocab")


class Pooler(nnx.Module):
    """A dense layer applied to the `[CLS]` vectors, followed by an activation (normally tanh).

    Source: Devlin et al. 2019, section 3.1.
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        dim, self.activation = config.hidden_dim, _pooler_activation(config, compute)
        self.dense = dense(dim, dim, ("embed", None), config, compute, rngs)

    def __call__(self, hidden: jax.Array, cls_positions: jax.Array | None = None) -> jax.Array:
        """Pool a batch.

        Args:
          hidden: [batch, length, hidden_dim].
          cls_positions: positions of the `[CLS]` tokens [batch, count], or None for position 0 in
            every row.

        Returns:
          [batch, count, hidden_dim], or [batch, hidden_dim] if `cls_positions` is None.
        """
        cls = hidden[:, 0] if cls_positions is None else select_rows(hidden, cls_positions)
        return self.transform(cls)

    def transform(self, x: jax.Array) -> jax.Array:
        """Apply the dense layer and the activation to the last dim of `x` [..., hidden_dim]."""
        return self.activation(self.dense(x))


def _pooler_activation(
    config: EncoderConfig, compute: ComputeConfig
) -> Callable[[jax.Array], jax.Array]:
    match config.pooler_activation:
        case "tanh":
            return jnp.tanh
        case "relu":
            return jax.nn.relu
        case "gelu":
            return activation_function("gelu", compute.ops)
        case _:
            assert_never(config.pooler_activation)


class ReplacedTokenHead(nnx.Module):
    """A dense layer, an activation and a layer that scores whether each token was replaced.

    Source: Clark et al. 2020 ("ELECTRA"), section 2, and the code released with it.
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.activation = activation_function(config.activation, compute.ops)
        dim, axes = config.hidden_dim, ("embed", None)
        self.dense = dense(dim, dim, axes, config, compute, rngs)
        self.score = dense(dim, 1, axes, config, compute, rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return float32 logits [batch, length] for `hidden` [batch, length, hidden_dim]."""
        return scores_of(self.score, self.activation(self.dense(hidden)))[..., 0]


class ToTeacher(nnx.Module):
    """Trainable projections to a teacher's dimension: one for the embeddings, one for all layers.

    Source: Jiao et al. 2020 ("TinyBERT"), equations 8 and 9.
    """

    def __init__(
        self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs, teacher_dim: int
    ):
        axes = ("embed", None)
        self.embeddings = dense(config.hidden_dim, teacher_dim, axes, config, compute, rngs)
        self.layers = dense(config.hidden_dim, teacher_dim, axes, config, compute, rngs)

    def __call__(self, states: Sequence[jax.Array]) -> list[jax.Array]:
        """Project the embeddings and the layers' outputs to [batch, length, teacher_dim].

        Args:
          states: the embeddings and the output of every layer, each [batch, length, hidden_dim].
        """
        return [self.embeddings(states[0]), *(self.layers(state) for state in states[1:])]
