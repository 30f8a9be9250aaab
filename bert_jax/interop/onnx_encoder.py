"""Build the encoder from ONNX operators, as in `bert_jax.models.encoder`."""

from __future__ import annotations

import math
from typing import NamedTuple, assert_never

import numpy as np
import onnx_ir as ir

from bert_jax.interop.onnx_builder import GraphBuilder
from bert_jax.models.embeddings import sinusoidal_positions
from bert_jax.models.rotary import frequencies

_MASKED = float(np.finfo(np.float32).min)


def embeddings(graph: GraphBuilder, token_ids: ir.Value, segment_ids: ir.Value) -> ir.Value:
    """Embed ids [batch, length] as vectors [batch, length, hidden_dim]."""
    encoder, prefix = graph.config.encoder, "encoder.embeddings"
    x = graph.op("Gather", graph.weight(f"{prefix}.token"), token_ids)
    match encoder.positions:
        case "learned":
            table = graph.weight(f"{prefix}.position")
            rows = _first_rows(graph, table, token_ids, encoder.position_offset)
            x = graph.op("Add", x, rows)
        case "sinusoidal":
            values = sinusoidal_positions(encoder.max_positions, encoder.table_dim)
            table = graph.table(f"{prefix}.position", values.astype(np.float32))
            x = graph.op("Add", x, _first_rows(graph, table, token_ids))
        case "rotary":
            # Rotary positions are applied to the queries and keys.
            pass
        case _:
            assert_never(encoder.positions)
    if encoder.num_segments:
        # With a single segment, add its embedding to all tokens regardless of the segment ids.
        ids = graph.constant([[0]]) if encoder.num_segments == 1 else segment_ids
        x = graph.op("Add", x, graph.op("Gather", graph.weight(f"{prefix}.segment"), ids))
    if encoder.embedding_norm:
        x = graph.norm(x, f"{prefix}.norm")
    return x if encoder.embedding_dim is None else graph.dense(x, f"{prefix}.projection")


def _first_rows(
    graph: GraphBuilder, table: ir.Value, token_ids: ir.Value, offset: int = 0
) -> ir.Value:
    """Return one row of a table for each column of `token_ids`, starting with row `offset`."""
    begin, end = graph.constant([offset]), graph.op("Shape", token_ids, start=1, end=2)
    if offset:
        end = graph.op("Add", end, begin)
    return graph.op("Slice", table, begin, end, graph.constant([0]))


class View(NamedTuple):
    """The tokens that a token attends to in one layer.

    Attributes:
      bias: the bias of the attention scores, broadcastable to [batch, num_heads, from, to].
      rotation: the cosines and sines of the rotary angles [length, 1, head_dim / 2]; None without
        rotary positions.
    """

    bias: ir.Value
    rotation: tuple[ir.Value, ir.Value] | None


def views(graph: GraphBuilder, token_ids: ir.Value, attention_mask: ir.Value) -> list[View]:
    """Return a `View` for each layer."""
    encoder = graph.config.encoder
    mask = graph.op("Cast", attention_mask, to=ir.DataType.FLOAT)
    padding = graph.op("Sub", graph.constant(1.0, np.float32), mask)
    bias = graph.op("Mul", padding, graph.constant(_MASKED, np.float32))
    unlimited = graph.op("Unsqueeze", bias, graph.constant([1, 2]))
    biases: dict[int | None, ir.Value] = {None: unlimited}
    rotations: dict[float, tuple[ir.Value, ir.Value]] = {}
    result = []
    for number in range(encoder.num_layers):
        window, theta = encoder.window_of(number), encoder.theta_of(number)
        if window not in biases:
            biases[window] = _window_bias(graph, unlimited, token_ids, window)
        match encoder.positions:
            case "learned" | "sinusoidal":
                result.append(View(biases[window], None))
            case "rotary":
                if theta not in rotations:
                    rotations[theta] = _rotation(graph, token_ids, theta)
                result.append(View(biases[window], rotations[theta]))
            case _:
                assert_never(encoder.positions)
    return result


def _window_bias(
    graph: GraphBuilder, bias: ir.Value, token_ids: ir.Value, window: int | None
) -> ir.Value:
    """Extend a bias so that tokens attend only to tokens that are close to them."""
    assert window is not None
    length = graph.op("Shape", token_ids, start=1, end=2)
    scalar = graph.op("Squeeze", length)
    columns = graph.op("Range", graph.constant(0), scalar, graph.constant(1))
    rows = graph.op("Unsqueeze", columns, graph.constant([1]))
    distance = graph.op("Abs", graph.op("Sub", rows, columns))
    far = graph.op("Greater", distance, graph.constant(window // 2))
    masked = graph.constant(_MASKED, np.float32)
    return graph.op("Where", far, masked, bias)


def _rotation(graph: GraphBuilder, token_ids: ir.Value, theta: float) -> tuple[ir.Value, ir.Value]:
    """Return the cosines and sines of the rotary angles of every column."""
    encoder = graph.config.encoder
    positions = np.arange(encoder.max_positions, dtype=np.float32)
    angles = positions[:, None] * frequencies(encoder.head_dim, theta)
    tables = {"cosine": np.cos(angles), "sine": np.sin(angles)}
    cosine, sine = (
        _first_rows(graph, graph.table(f"rotary.{theta}.{name}", table[:, None]), token_ids)
        for name, table in tables.items()
    )
    return cosine, sine


def _rotate(graph: GraphBuilder, x: ir.Value, by: tuple[ir.Value, ir.Value]) -> ir.Value:
    """Rotate queries or keys [batch, length, num_heads, head_dim]."""
    cosine, sine = by
    half, dim = graph.config.encoder.head_dim // 2, graph.config.encoder.head_dim

    def features(begin: int, end: int) -> ir.Value:
        ends = (graph.constant([begin]), graph.constant([end]), graph.constant([-1]))
        return graph.op("Slice", x, *ends)

    first, second = features(0, half), features(half, dim)
    turned = (
        graph.op("Sub", graph.op("Mul", first, cosine), graph.op("Mul", second, sine)),
        graph.op("Add", graph.op("Mul", second, cosine), graph.op("Mul", first, sine)),
    )
    return graph.op("Concat", *turned, axis=-1)


def attention(graph: GraphBuilder, x: ir.Value, view: View, name: str) -> ir.Value:
    """Add multi-head self-attention, as in `bert_jax.models.attention`."""
    encoder = graph.config.encoder
    split = graph.constant([0, 0, encoder.num_heads, encoder.head_dim])

    def heads(part: str, order: list[int]) -> ir.Value:
        projected = graph.op("Reshape", graph.dense(x, f"{name}.{part}"), split)
        if view.rotation is not None and part != "value":
            projected = _rotate(graph, projected, view.rotation)
        return graph.op("Transpose", projected, perm=order)

    query, key = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1])
    scale = graph.constant(math.sqrt(encoder.head_dim), np.float32)
    scores = graph.op("Div", graph.op("MatMul", query, key), scale)
    probabilities = graph.op("Softmax", graph.op("Add", scores, view.bias), axis=-1)
    attended = graph.op("MatMul", probabilities, heads("value", [0, 2, 1, 3]))
    joined = graph.op("Transpose", attended, perm=[0, 2, 1, 3])
    merged = graph.op("Reshape", joined, graph.constant([0, 0, encoder.hidden_dim]))
    return graph.dense(merged, f"{name}.output")


def layer(graph: GraphBuilder, x: ir.Value, view: View, number: int) -> ir.Value:
    """Add a post-norm or pre-norm layer, as in `bert_jax.models.encoder`."""
    encoder = graph.config.encoder
    first, second = (f"encoder.layers.{n}" for n in encoder.parameter_owners(number))

    def ffn(y: ir.Value) -> ir.Value:
        up = graph.dense(y, f"{second}.ffn.up")
        if encoder.gated_ffn:
            gate = graph.activation(graph.dense(y, f"{second}.ffn.gate"))
            return graph.dense(graph.op("Mul", gate, up), f"{second}.ffn.down")
        return graph.dense(graph.activation(up), f"{second}.ffn.down")

    attention_name, norms = f"{first}.attention", (f"{first}.attention_norm", f"{second}.ffn_norm")
    match encoder.norm:
        case "post":
            x = graph.norm(graph.op("Add", attention(graph, x, view, attention_name), x), norms[0])
            return graph.norm(graph.op("Add", ffn(x), x), norms[1])
        case "pre":
            has_norm = number > 0 or encoder.first_norm
            attended = graph.norm(x, norms[0]) if has_norm else x
            x = graph.op("Add", x, attention(graph, attended, view, attention_name))
            return graph.op("Add", x, ffn(graph.norm(x, norms[1])))
        case _:
            assert_never(encoder.norm)


def hidden_states(
    graph: GraphBuilder, token_ids: ir.Value, segment_ids: ir.Value, attention_mask: ir.Value
) -> list[ir.Value]:
    """Add the encoder, and return the embeddings followed by every layer's output."""
    states = [embeddings(graph, token_ids, segment_ids)]
    for number, view in enumerate(views(graph, token_ids, attention_mask)):
        states.append(layer(graph, states[-1], view, number))
    match graph.config.encoder.norm:
        case "post":
            pass
        case "pre":
            states[-1] = graph.norm(states[-1], "encoder.final_norm")
        case _:
            assert_never(graph.config.encoder.norm)
    return states
