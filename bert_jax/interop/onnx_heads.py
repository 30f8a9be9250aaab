"""Build the heads of a model from ONNX operators, as in `bert_jax.models`."""

from __future__ import annotations

from typing import assert_never

import numpy as np
import onnx_ir as ir

from bert_jax.interop.onnx_builder import GraphBuilder
from bert_jax.models.options import PoolerActivation


def pooled(graph: GraphBuilder, hidden: ir.Value) -> ir.Value:
    """Add the pooler, which applies a dense layer and an activation to the first token's vector."""
    return _pooler(graph, _first_token(graph, hidden))


def scored_vectors(graph: GraphBuilder, hidden: ir.Value, attention_mask: ir.Value) -> ir.Value:
    """Add all layers of a classifier except the last one.

    Args:
      graph: the graph of a model with a classifier.
      hidden: the last layer's output [batch, length, hidden_dim].
      attention_mask: [batch, length].

    Returns:
      The vectors to score: [batch, length, hidden_dim] if the classifier scores tokens, otherwise
      [batch, hidden_dim].
    """
    encoder, classifier = graph.config.encoder, graph.config.classifier
    assert classifier is not None
    scores_tokens = classifier.scored == "tokens"
    x = hidden if scores_tokens else _sequence(graph, hidden, attention_mask)
    match encoder.classifier_transform:
        case "pooler":
            return x if scores_tokens else _pooler(graph, x)
        case "prediction":
            return graph.norm(
                graph.activation(graph.dense(x, "prediction.dense")), "prediction.norm"
            )
        case _:
            assert_never(encoder.classifier_transform)


def _first_token(graph: GraphBuilder, hidden: ir.Value) -> ir.Value:
    return graph.op("Gather", hidden, graph.constant(0), axis=1)


def _pooler(graph: GraphBuilder, x: ir.Value) -> ir.Value:
    operators: dict[PoolerActivation, str] = {"tanh": "Tanh", "relu": "Relu", "gelu": "Gelu"}
    operator = operators[graph.config.encoder.pooler_activation]
    return graph.op(operator, graph.dense(x, "pooler.dense"))


def _sequence(graph: GraphBuilder, hidden: ir.Value, attention_mask: ir.Value) -> ir.Value:
    """Return the vector of each sequence, as in `bert_jax.models.classifiers.pool`."""
    match graph.config.encoder.pooling:
        case "cls":
            return _first_token(graph, hidden)
        case "mean":
            mask = graph.op("Cast", attention_mask, to=ir.DataType.FLOAT)
            weights = graph.op("Unsqueeze", mask, graph.constant([-1]))
            axis = graph.constant([1])
            total = graph.op("ReduceSum", graph.op("Mul", hidden, weights), axis, keepdims=0)
            count = graph.op("ReduceSum", weights, axis, keepdims=0)
            return graph.op("Div", total, graph.op("Max", count, graph.constant(1.0, np.float32)))
        case _:
            assert_never(graph.config.encoder.pooling)


def replaced_token_logits(graph: GraphBuilder, hidden: ir.Value) -> ir.Value:
    """Add the replaced-token head, and return its logits [batch, length]."""
    x = graph.activation(graph.dense(hidden, "replaced_token.dense"))
    last = graph.constant([-1])
    return graph.op("Squeeze", graph.dense(x, "replaced_token.score"), last)


def token_logits(graph: GraphBuilder, hidden: ir.Value) -> ir.Value:
    """Add the masked-LM head, and return its logits at every position."""
    encoder, x = graph.config.encoder, hidden
    if encoder.head_transform:
        x = graph.activation(graph.dense(x, "masked_lm.transform"))
        x = graph.norm(x, "masked_lm.norm")
    name = "encoder.embeddings.token" if encoder.tied_output else "masked_lm.output"
    table = graph.op("Transpose", graph.weight(name), perm=[1, 0])
    return graph.op("Add", graph.op("MatMul", x, table), graph.weight("masked_lm.bias"))
