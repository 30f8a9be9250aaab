"""Run an encoder on a batch and record its intermediate results.

Attention probabilities are computed from the recorded queries and keys, because the attention
backend may be a fused kernel that never stores the probabilities.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.inference.predictor import Outputs, Row
from bert_jax.interpretability.traced_text import EmbeddingSum
from bert_jax.models.attention import View, attention_probabilities, scaled_scores
from bert_jax.models.encoder import Encoder
from bert_jax.models.model import Model, infer
from bert_jax.models.products import product
from bert_jax.models.transformer_layer import SharedLayer
from bert_jax.tasks.task import Batch

_SCORES = ("logits", "next_sentence_logits")


@jax.jit
def trace(model: Model, batch: Batch) -> Outputs:
    """Return the intermediate results of an encoder, without dropout.

    Args:
      model: any model with an encoder.
      batch: `token_ids`, `segment_ids` and `attention_mask`, each [batch, length].

    Returns:
      A dict of float32 arrays:
        hidden_states: [batch, num_layers + 1, length, hidden_dim], the embeddings and the output of
          every layer.
        attention: [batch, num_layers, num_heads, from, to], the attention probabilities.
        queries, keys, values: [batch, num_layers, num_heads, length, head_dim].
        head_outputs: the values weighted by the attention probabilities, shaped like `values`.
        token, position, segment: [batch, length, table_dim], the parts of the input embedding.
          `position` is left out if positions are rotary, and `segment` if the model has no
          segments.
    """
    token_ids, segment_ids = batch["token_ids"], batch["segment_ids"]
    mask = batch["attention_mask"]
    encoder = model.encoder
    states = encoder(
        token_ids, segment_ids, None, mask, packed=False, return_hidden_states=True
    ).hidden_states
    assert states is not None
    layers = [
        _trace_layer(encoder, encoder.shared_layer(number), states[number], view)
        for number, view in enumerate(encoder.views(mask, False, None, token_ids.shape[1]))
    ]
    parts = encoder.embeddings.parts(token_ids, segment_ids, None)._asdict()
    stacked = {name: jnp.stack([layer[name] for layer in layers], axis=1) for name in layers[0]}
    outputs = {
        "hidden_states": jnp.stack(states, axis=1),
        **stacked,
        **{name: part for name, part in parts.items() if part is not None},
    }
    return {name: array.astype(jnp.float32) for name, array in outputs.items()}


@jax.jit
def trace_attention(model: Model, batch: Batch) -> Outputs:
    """Return only the attention probabilities of `trace`."""
    return {"attention": trace(model, batch)["attention"]}


@jax.jit
def trace_states(model: Model, batch: Batch) -> Outputs:
    """Return only the `hidden_states` of `trace`."""
    return {"hidden_states": trace(model, batch)["hidden_states"]}


@jax.jit
def head_outputs(model: Model, batch: Batch) -> Outputs:
    """Return the head's outputs: `logits`, `next_sentence_logits` or neither; see `infer`."""
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    return {name: outputs[name] for name in _SCORES if name in outputs}


def _trace_layer(
    encoder: Encoder, layer: SharedLayer, x: jax.Array, view: View
) -> dict[str, jax.Array]:
    """Return the intermediate results of a layer's attention, given the layer's input `x`."""
    x = layer.attention_input(x, encoder.config)
    query, key, value = layer.attention.attention.project(x, view.rotation)
    probabilities = attention_probabilities(scaled_scores(query, key), view)
    attended = product("bhqk,bkhd->bqhd", probabilities.astype(value.dtype), value)
    by_head = {"queries": query, "keys": key, "values": value, "head_outputs": attended}
    return {
        "attention": probabilities,
        **{name: array.swapaxes(1, 2) for name, array in by_head.items()},
    }


def traced_arrays(row: Row, length: int) -> dict[str, Any]:
    """Return one row's traced arrays, cut to `length` tokens to remove the padding."""
    by_head = ("queries", "keys", "values", "head_outputs")
    parts = {name: row[name][:length].copy() for name in EmbeddingSum._fields if name in row}
    return {
        "attention": row["attention"][:, :, :length, :length].copy(),
        **{name: row[name][:, :, :length].copy() for name in by_head},
        "embedding": EmbeddingSum(**parts),
        "hidden_states": row["hidden_states"][:, :length].copy(),
    }
