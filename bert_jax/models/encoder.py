"""The transformer encoder: embeddings, a stack of layers, and the pooler."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.activations import activation_function
from bert_jax.models.attention import SelfAttention
from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.layers import DENSE, dense, layer_norm, select_rows
from bert_jax.models.layout import constrain


class EncoderOutput(NamedTuple):
    """What an encoder gives.

    hidden: [batch, length, hidden_dim], the last layer's output.
    hidden_states: the embeddings and every layer's output, num_layers + 1 arrays like `hidden`,
      or None when not asked for.
    """

    hidden: jax.Array
    hidden_states: tuple[jax.Array, ...] | None


class FeedForward(nnx.Module):
    """Two dense layers with the activation between, at every position (Vaswani et al., 3.3)."""

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.activation = config.activation
        self.up = dense(config.hidden_dim, config.ffn_dim, ("embed", "ffn"), config, compute, rngs)
        self.down = dense(
            config.ffn_dim, config.hidden_dim, ("ffn", "embed"), config, compute, rngs
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, length, hidden_dim] to the same."""
        x = constrain(self.up(x), "batch", None, "ffn")
        return self.down(activation_function(self.activation)(x))


class Layer(nnx.Module):
    """Self-attention and feed-forward, each with dropout, a residual sum and a LayerNorm.

    norm="post": norm(x + f(x)), the original (Vaswani et al. 2017). norm="pre": x + f(norm(x))
    (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture").
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.config = config
        self.attention = SelfAttention(config, compute, rngs)
        self.attention_norm = layer_norm(config.hidden_dim, config, compute, rngs)
        self.ffn = FeedForward(config, compute, rngs)
        self.ffn_norm = layer_norm(config.hidden_dim, config, compute, rngs)

    def __call__(
        self,
        x: jax.Array,
        document_ids: jax.Array | None,
        packed: bool,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        """[batch, length, hidden_dim] to the same; arguments as `SelfAttention.__call__`."""
        keys = (None,) * 3 if dropout_key is None else jax.random.split(dropout_key, 3)
        rate = self.config.hidden_dropout
        if self.config.norm == "post":
            update = self.attention(x, document_ids, packed, keys[0])
            x = self.attention_norm(x + dropout(update, rate, keys[1]))
            return self.ffn_norm(x + dropout(self.ffn(x), rate, keys[2]))
        update = self.attention(self.attention_norm(x), document_ids, packed, keys[0])
        x = x + dropout(update, rate, keys[1])
        return x + dropout(self.ffn(self.ffn_norm(x)), rate, keys[2])


LayerStep = Callable[[Layer, jax.Array, jax.Array | None], jax.Array]


class Pooler(nnx.Module):
    """tanh of a dense layer on the `[CLS]` vectors (Devlin et al. 2019, section 3.1)."""

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        dim = config.hidden_dim
        self.dense = dense(dim, dim, ("embed", None), config, compute, rngs)

    def __call__(self, hidden: jax.Array, cls_positions: jax.Array | None = None) -> jax.Array:
        """Pools a batch.

        Args:
          hidden: [batch, length, hidden_dim].
          cls_positions: [batch, count], where each document's `[CLS]` is; None for position 0.

        Returns:
          [batch, count, hidden_dim], or [batch, hidden_dim] where `cls_positions` is None.
        """
        if cls_positions is None:
            return jnp.tanh(self.dense(hidden[:, 0]))
        return jnp.tanh(self.dense(select_rows(hidden, cls_positions)))


class Encoder(nnx.Module):
    """Embeddings and `num_layers` layers; heads and pooler sit on top."""

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.config = config
        self.compute = compute
        self.embeddings = Embeddings(config, compute, rngs)
        self.layers = nnx.List([Layer(config, compute, rngs) for _ in range(config.num_layers)])
        if config.norm == "pre":
            self.final_norm = layer_norm(config.hidden_dim, config, compute, rngs)

    def __call__(
        self,
        token_ids: jax.Array,
        segment_ids: jax.Array | None = None,
        position_ids: jax.Array | None = None,
        document_ids: jax.Array | None = None,
        *,
        packed: bool = True,
        dropout_key: jax.Array | None = None,
        return_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Encodes a batch.

        Args:
          token_ids, segment_ids, position_ids: see `Embeddings.__call__`.
          document_ids: [batch, length]; 0 is padding, tokens see those of their own number only.
            An ordinary 0/1 attention mask fits. None: every token sees every token.
          packed: False promises that no row holds more than one document and that padding comes
            last, which lets attention backends skip building a mask.
          dropout_key: None when evaluating; the same key draws the same dropout.
          return_hidden_states: also return what every layer gave.
        """
        count = self.config.num_layers + 1
        keys = None if dropout_key is None else jax.random.split(dropout_key, count)
        x = self.embeddings(token_ids, segment_ids, position_ids, None if keys is None else keys[0])
        x = constrain(x, "batch", None, None)
        states = [x]
        if self.compute.scan_layers and not return_hidden_states:
            x = self._scan(x, document_ids, packed, None if keys is None else keys[1:])
        else:
            step = self._layer_step(document_ids, packed)
            for number, layer in enumerate(self.layers, start=1):
                x = step(layer, x, None if keys is None else keys[number])
                states.append(x)
        if self.config.norm == "pre":
            x = self.final_norm(x)
            states[-1] = x
        return EncoderOutput(x, tuple(states) if return_hidden_states else None)

    def _layer_step(self, document_ids: jax.Array | None, packed: bool) -> LayerStep:
        """One layer as a function of (layer, x, key), rematerialised as the config asks."""

        def step(layer: Layer, x: jax.Array, key: jax.Array | None) -> jax.Array:
            x = layer(x, document_ids, packed, key)
            return constrain(x, "batch", None, None)

        if self.compute.remat == "none":
            return step
        policy = None
        if self.compute.remat == "dots":
            policy = jax.checkpoint_policies.save_only_these_names(DENSE)
        return jax.checkpoint(step, policy=policy)

    def _scan(
        self,
        x: jax.Array,
        document_ids: jax.Array | None,
        packed: bool,
        keys: jax.Array | None,
    ) -> jax.Array:
        """Runs the layers as one `lax.scan` over their stacked parameters."""
        step = self._layer_step(document_ids, packed)
        layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *self.layers)

        def body(
            carry: jax.Array, layer_and_key: tuple[Layer, jax.Array | None]
        ) -> tuple[jax.Array, None]:
            layer, key = layer_and_key
            return step(layer, carry, key), None

        return jax.lax.scan(body, x, (layers, keys))[0]
