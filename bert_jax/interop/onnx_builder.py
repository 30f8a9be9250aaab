"""Collect the operators and weights of an ONNX graph.

The graph is written by hand. It uses operators that runtimes can optimize with special kernels and
fusions (LayerNormalization, Gelu, BERT's attention pattern), whereas a traced graph would consist
of elementary arithmetic. Tests compare the graph's outputs with the model's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from bert_jax.models.model import ModelConfig

# This is the first opset with Gelu (ONNX 1.15, November 2023); LayerNormalization needs opset 17.
OPSET = 20

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
        # Only the encoder and the transforms of the heads can lack biases.
        parts = ("encoder.", "masked_lm.transform", "prediction.dense")
        if name.startswith(parts) and not self.config.encoder.dense_bias:
            return product
        return self.op("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x: ir.Value, name: str) -> ir.Value:
        """Apply the norm `name` to the last dim of `x`."""
        encoder, scale = self.config.encoder, self.weight(f"{name}.scale")
        epsilon = encoder.layer_norm_epsilon
        match encoder.norm_kind:
            case "layer":
                bias = [self.weight(f"{name}.bias")] if encoder.norm_bias else []
                return self.op("LayerNormalization", x, scale, *bias, axis=-1, epsilon=epsilon)
            case "rms":
                # The operator RMSNormalization exists only since opset 23.
                square = self.op("ReduceMean", self.op("Mul", x, x), self.constant([-1]))
                shifted = self.op("Add", square, self.constant(epsilon, np.float32))
                return self.op("Mul", self.op("Div", x, self.op("Sqrt", shifted)), scale)
            case _:
                assert_never(encoder.norm_kind)

    def activation(self, x: ir.Value) -> ir.Value:
        """Apply the config's activation function to `x`."""
        activation = self.config.encoder.activation
        match activation:
            case "gelu":
                return self.op("Gelu", x, approximate="none")
            case "gelu_tanh":
                return self.op("Gelu", x, approximate="tanh")
            case "relu":
                return self.op("Relu", x)
            case "tanh":
                return self.op("Tanh", x)
            case "silu":
                return self.op("Mul", x, self.op("Sigmoid", x))
            case "quick_gelu":
                scaled = self.op("Mul", x, self.constant(1.702, np.float32))
                return self.op("Mul", x, self.op("Sigmoid", scaled))
            case _:
                assert_never(activation)
