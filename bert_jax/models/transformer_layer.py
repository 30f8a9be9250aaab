"""Define a layer of the encoder: attention and a feed-forward block, each with a norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, assert_never

import jax
from flax import nnx

from bert_jax.models.activated_dense import activated_dense
from bert_jax.models.activations import activation_function
from bert_jax.models.attention import SelfAttention, View
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.dropout_add_norm import dropout_add_and_norm, dropout_add_norm
from bert_jax.models.layers import layer_dense, select_rows
from bert_jax.models.layout import constrain
from bert_jax.models.norms import Norm, norm_layer
from bert_jax.models.shared_input import apply_each


class FeedForward(nnx.Module):
    """Two dense layers with an activation between them (Vaswani et al. 2017, section 3.3).

    If the config sets `gated_ffn`, the activation is applied to the output of a third dense layer
    instead, and the result is multiplied by the output of the first layer (Shazeer 2020, equation
    5, without biases).
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.activation = activation_function(config.activation, compute.ops)
        self.gated = config.gated_ffn
        hidden, inner = config.hidden_dim, config.ffn_dim
        if self.gated:
            self.gate = layer_dense(hidden, inner, ("embed", "ffn"), config, compute, rngs)
        self.up = layer_dense(hidden, inner, ("embed", "ffn"), config, compute, rngs)
        self.down = layer_dense(inner, hidden, ("ffn", "embed"), config, compute, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Transform every position of `x` [batch, length, hidden_dim]."""
        if not self.gated:
            up = constrain(self.up(x), "batch", None, "ffn")
            return activated_dense(self.down, self.activation, up)
        projected = apply_each((self.up, self.gate), x)
        up, gate = (constrain(each, "batch", None, "ffn") for each in projected)
        return activated_dense(self.down, lambda gate, up: self.activation(gate) * up, gate, up)


class Layer(nnx.Module):
    """The modules that a layer owns: attention and a feed-forward block, each with a norm.

    Args:
      config: the architecture.
      compute: options for the computation.
      rngs: the keys for randomly initialized parameters.
      attention: whether the layer has its own attention. If not, it uses another layer's attention.
      ffn: whether the layer has its own feed-forward block. If not, it uses another layer's block.
      norm: whether the layer's attention has a norm.
    """

    def __init__(
        self,
        config: EncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        attention: bool,
        ffn: bool,
        norm: bool = True,
    ):
        self.has_attention_norm, self.norms = norm, compute.norms
        if attention:
            self.attention = SelfAttention(config, compute, rngs)
            if norm:
                self.attention_norm = norm_layer(config.hidden_dim, config, compute, rngs)
        if ffn:
            self.ffn = FeedForward(config, compute, rngs)
            self.ffn_norm = norm_layer(config.hidden_dim, config, compute, rngs)


class SharedLayer(NamedTuple):
    """The layers whose attention and feed-forward modules a layer uses.

    A layer without shared parameters uses its own.
    """

    attention: Layer
    ffn: Layer

    def attention_input(self, x: jax.Array, config: EncoderConfig) -> jax.Array:
        """Return the input to the attention block, given the layer's input `x`."""
        match config.norm:
            case "post":
                return x
            case "pre":
                owner = self.attention
                return owner.attention_norm(x) if owner.has_attention_norm else x
            case _:
                assert_never(config.norm)


class LayerOutput(NamedTuple):
    """The output of a layer.

    Attributes:
      x: [batch, length, hidden_dim], the output.
      scores: the attention scores; see `SelfAttention.__call__`. None unless requested.
      normed: the norm of `x`; None unless requested.
    """

    x: jax.Array
    scores: jax.Array | None
    normed: jax.Array | None = None


def apply_layer(
    config: EncoderConfig,
    layer: SharedLayer,
    x: jax.Array,
    view: View,
    dropout_key: jax.Array | None,
    *,
    return_scores: bool = False,
    positions: jax.Array | None = None,
    normed: jax.Array | None = None,
    next_norm: Norm | None = None,
) -> LayerOutput:
    """Apply attention and a feed-forward block, each with dropout and a residual connection.

    With norm="post", a block f computes norm(x + f(x)), as in the original Transformer (Vaswani et
    al. 2017); with norm="pre", it computes x + f(norm(x)) (Xiong et al. 2020, "On Layer
    Normalization in the Transformer Architecture").

    Args:
      config: the architecture.
      layer: the modules.
      x: [batch, length, hidden_dim].
      view: the tokens that each token attends to.
      dropout_key: None during evaluation.
      return_scores: whether to also return the attention scores.
      positions: see `Encoder.__call__`.
      normed: the norm of `x`, if the previous layer has computed it. Otherwise, with norm="pre",
        this layer computes it.
      next_norm: with norm="pre", the norm that follows this layer, if its result should be computed
        here; otherwise None.
    """
    keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
    rate, ops, norms = config.hidden_dropout, layer.attention.attention.ops, layer.ffn.norms
    attention, ffn, ffn_norm = layer.attention.attention, layer.ffn.ffn, layer.ffn.ffn_norm

    block_input = layer.attention_input(x, config) if normed is None else normed
    update, scores = attention(
        block_input, view, keys[0], return_scores=return_scores, positions=positions
    )
    if positions is not None:
        x = select_rows(x, positions)
    attention_rate = config.attention_output_rate
    match config.norm:
        case "post":
            norm = layer.attention.attention_norm
            x = dropout_add_norm(x, update, attention_rate, keys[1], norm, norms)
            return LayerOutput(dropout_add_norm(x, ffn(x), rate, keys[2], ffn_norm, norms), scores)
        case "pre":
            x, normed = dropout_add_and_norm(x, update, attention_rate, keys[1], ffn_norm, norms)
            update = ffn(normed)
            if next_norm is None:
                return LayerOutput(x + dropout(update, rate, keys[2], ops), scores)
            x, normed = dropout_add_and_norm(x, update, rate, keys[2], next_norm, norms)
            return LayerOutput(x, scores, normed)
        case _:
            assert_never(config.norm)


# A function of a layer and the other arguments of `apply_layer`: x, dropout_key, normed, next_norm.
LayerStep = Callable[
    [SharedLayer, jax.Array, jax.Array | None, jax.Array | None, Norm | None], LayerOutput
]
