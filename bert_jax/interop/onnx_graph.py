"""Build the encoder and its heads from ONNX operators.

The graph is written by hand, so that it uses operators for which runtimes have optimized kernels
and fusions (LayerNormalization, Gelu, BERT's attention pattern); a traced graph would consist of
elementary arithmetic. Tests compare the graph's outputs with the model's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, assert_never

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bert_jax.models.config import Activation, PoolerActivation
from bert_jax.models.embeddings import sinusoidal_positions
from bert_jax.models.model import ModelConfig

OPSET = 20  # the first opset with Gelu (ONNX 1.15, November 2023); LayerNormalization needs 17
_MASKED = float(np.finfo(np.float32).min)

Read = Callable[[str], NDArray[np.float32]]


class GraphBuilder:
    """A graph under construction, with its operators and the weights they use."""

    def __init__(self, config: ModelConfig, read: Read):
        """Create an empty graph.

        Args:
          config: the model's config.
          read: a function that returns a parameter's values, called once per parameter.
        """
        self.config = config
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self._read = read

    def op(self, kind: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Add an operator with one output, and return that output."""
        number = len(self.nodes)
        output = ir.Value(name=f"{kind.lower()}_{number}")
        converted = ir.convenience.convert_attributes(attributes)
        node = ir.Node("", kind, inputs, converted, outputs=[output], name=f"{kind}_{number}")
        self.nodes.append(node)
        return output

    def weight(self, name: str) -> ir.Value:
        """Return the parameter with this name, and add it to the graph on first use."""
        if name not in self.initializers:
            self._add(name, self._read(name))
        return self.initializers[name]

    def constant(self, value: Any, dtype: Any = np.int64) -> ir.Value:
        """Return a small constant. Equal constants share one tensor."""
        array = np.asarray(value, dtype)
        name = f"constant_{array.dtype}_{'_'.join(map(str, array.ravel()))}_{array.ndim}"
        if name not in self.initializers:
            self._add(name, array)
        return self.initializers[name]

    def table(self, name: str, values: NDArray[np.float32]) -> ir.Value:
        """Add a table of fixed values, which is not a model parameter, and return it."""
        self._add(name, values)
        return self.initializers[name]

    def _add(self, name: str, array: NDArray[Any]) -> None:
        tensor = ir.Tensor(array, name=name)
        shape, kind = ir.Shape(array.shape), ir.TensorType(tensor.dtype)
        self.initializers[name] = ir.Value(name=name, shape=shape, type=kind, const_value=tensor)

    def dense(self, x: ir.Value, name: str) -> ir.Value:
        """Apply the dense layer `name` to `x`."""
        product = self.op("MatMul", x, self.weight(f"{name}.kernel"))
        return self.op("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        """Apply the LayerNorm `name` to the last dim of `x`."""
        scale, bias = self.weight(f"{name}.scale"), self.weight(f"{name}.bias")
        epsilon = self.config.encoder.layer_norm_epsilon
        return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=epsilon)

    def activation(self, x: ir.Value) -> ir.Value:
        """Apply the config's variant of GELU to `x`."""
        approximate: dict[Activation, str] = {"gelu": "none", "gelu_tanh": "tanh"}
        return self.op("Gelu", x, approximate=approximate[self.config.encoder.activation])


def embeddings(graph: GraphBuilder, token_ids: ir.Value, segment_ids: ir.Value) -> ir.Value:
    """Embed ids [batch, length] as vectors [batch, length, hidden_dim]."""
    encoder, prefix = graph.config.encoder, "encoder.embeddings"
    x = graph.op("Gather", graph.weight(f"{prefix}.token"), token_ids)
    match encoder.positions:
        case "learned":
            table = graph.weight(f"{prefix}.position")
        case "sinusoidal":
            values = sinusoidal_positions(encoder.max_positions, encoder.table_dim)
            table = graph.table(f"{prefix}.position", values.astype(np.float32))
        case _:
            assert_never(encoder.positions)
    begin = graph.constant([encoder.position_offset])
    end = graph.op("Shape", token_ids, start=1, end=2)
    if encoder.position_offset:
        end = graph.op("Add", end, begin)
    rows = graph.op("Slice", table, begin, end, graph.constant([0]))
    x = graph.op("Add", x, rows)
    if encoder.num_segments:
        # With a single segment, add its embedding to all tokens regardless of the segment ids.
        ids = graph.constant([[0]]) if encoder.num_segments == 1 else segment_ids
        x = graph.op("Add", x, graph.op("Gather", graph.weight(f"{prefix}.segment"), ids))
    x = graph.norm(x, f"{prefix}.norm")
    return x if encoder.embedding_dim is None else graph.dense(x, f"{prefix}.projection")


def mask_bias(graph: GraphBuilder, attention_mask: ir.Value) -> ir.Value:
    """Turn a 0/1 mask [batch, length] into a bias [batch, 1, 1, length] for attention scores."""
    mask = graph.op("Cast", attention_mask, to=ir.DataType.FLOAT)
    padding = graph.op("Sub", graph.constant(1.0, np.float32), mask)
    bias = graph.op("Mul", padding, graph.constant(_MASKED, np.float32))
    return graph.op("Unsqueeze", bias, graph.constant([1, 2]))


def attention(graph: GraphBuilder, x: ir.Value, bias: ir.Value, name: str) -> ir.Value:
    """Add multi-head self-attention, as in `bert_jax.models.attention`."""
    encoder = graph.config.encoder
    split = graph.constant([0, 0, encoder.num_heads, encoder.head_dim])

    def heads(part: str, order: list[int]) -> ir.Value:
        projected = graph.op("Reshape", graph.dense(x, f"{name}.{part}"), split)
        return graph.op("Transpose", projected, perm=order)

    query, key = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1])
    scale = graph.constant(math.sqrt(encoder.head_dim), np.float32)
    scores = graph.op("Div", graph.op("MatMul", query, key), scale)
    probabilities = graph.op("Softmax", graph.op("Add", scores, bias), axis=-1)
    attended = graph.op("MatMul", probabilities, heads("value", [0, 2, 1, 3]))
    joined = graph.op("Transpose", attended, perm=[0, 2, 1, 3])
    merged = graph.op("Reshape", joined, graph.constant([0, 0, encoder.hidden_dim]))
    return graph.dense(merged, f"{name}.output")


def layer(graph: GraphBuilder, x: ir.Value, bias: ir.Value, number: int) -> ir.Value:
    """Add a post-norm or pre-norm layer, as in `bert_jax.models.encoder`."""
    first, second = (f"encoder.layers.{n}" for n in graph.config.encoder.parameter_owners(number))

    def ffn(y: ir.Value) -> ir.Value:
        up = graph.dense(y, f"{second}.ffn.up")
        return graph.dense(graph.activation(up), f"{second}.ffn.down")

    attention_name, norms = f"{first}.attention", (f"{first}.attention_norm", f"{second}.ffn_norm")
    match graph.config.encoder.norm:
        case "post":
            x = graph.norm(graph.op("Add", attention(graph, x, bias, attention_name), x), norms[0])
            return graph.norm(graph.op("Add", ffn(x), x), norms[1])
        case "pre":
            x = graph.op("Add", x, attention(graph, graph.norm(x, norms[0]), bias, attention_name))
            return graph.op("Add", x, ffn(graph.norm(x, norms[1])))
        case _:
            assert_never(graph.config.encoder.norm)


def hidden_states(
    graph: GraphBuilder, token_ids: ir.Value, segment_ids: ir.Value, attention_mask: ir.Value
) -> list[ir.Value]:
    """Add the encoder, and return the embeddings followed by every layer's output."""
    states = [embeddings(graph, token_ids, segment_ids)]
    bias = mask_bias(graph, attention_mask)
    for number in range(graph.config.encoder.num_layers):
        states.append(layer(graph, states[-1], bias, number))
    match graph.config.encoder.norm:
        case "post":
            pass
        case "pre":
            states[-1] = graph.norm(states[-1], "encoder.final_norm")
        case _:
            assert_never(graph.config.encoder.norm)
    return states


def pooled(graph: GraphBuilder, hidden: ir.Value) -> ir.Value:
    """Add the pooler, which applies a dense layer and an activation to the first token's vector."""
    first = graph.op("Gather", hidden, graph.constant(0), axis=1)
    operators: dict[PoolerActivation, str] = {"tanh": "Tanh", "relu": "Relu", "gelu": "Gelu"}
    operator = operators[graph.config.encoder.pooler_activation]
    return graph.op(operator, graph.dense(first, "pooler.dense"))


def replaced_token_logits(graph: GraphBuilder, hidden: ir.Value) -> ir.Value:
    """Add the replaced-token head, and return its logits [batch, length]."""
    x = graph.activation(graph.dense(hidden, "replaced_token.dense"))
    last = graph.constant([-1])
    return graph.op("Squeeze", graph.dense(x, "replaced_token.score"), last)


def token_logits(graph: GraphBuilder, hidden: ir.Value) -> ir.Value:
    """Add the masked-LM head, and return its logits at every position."""
    x = graph.norm(graph.activation(graph.dense(hidden, "masked_lm.transform")), "masked_lm.norm")
    table = graph.op("Transpose", graph.weight("encoder.embeddings.token"), perm=[1, 0])
    return graph.op("Add", graph.op("MatMul", x, table), graph.weight("masked_lm.bias"))
