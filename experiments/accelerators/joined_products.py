r"""Compare three products with the same input to one product with joined kernels, on a TPU v5e.

    python experiments/accelerators/joined_products.py

Query, key and value are three products of the same input. The script compiles three separate
products and one joined product, with their gradients, for a TPU v5e that is not present. It prints
the compiler's estimates. It needs libtpu (`pip install -e '.[tpu]'`) and takes a minute.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

# Make an uninstalled checkout importable.
sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from bert_jax.analysis.kernel_times import clock_rate  # noqa: E402
from bert_jax.analysis.topology import topology_devices  # noqa: E402

# The number of tokens in a batch and the hidden dim, for BERT-base and BERT-large with rows of 512
# tokens.
SIZES = ((32 * 512, 768), (16 * 512, 1024))


def separate(inputs: Any, kernels: Any, biases: Any) -> Any:
    """Return three products."""
    return tuple(
        inputs @ kernel.astype(inputs.dtype) + bias.astype(inputs.dtype)
        for kernel, bias in zip(kernels, biases, strict=True)
    )


def joined(inputs: Any, kernels: Any, biases: Any) -> Any:
    """Multiply the input by the joined kernels, and return the three parts of the product."""
    kernel, bias = jnp.concatenate(kernels, 1), jnp.concatenate(biases)
    return jnp.split(inputs @ kernel.astype(inputs.dtype) + bias.astype(inputs.dtype), 3, 1)


def with_gradients(products: Any, inputs: Any, kernels: Any, biases: Any, gradients: Any) -> Any:
    """Return the products and the gradients of their operands."""
    outputs, pull = jax.vjp(products, inputs, kernels, biases)
    return outputs, pull(type(outputs)(gradients))


def milliseconds(products: Any, num_tokens: int, dim: int) -> float:
    """Compile the products and their gradients, and return the sum of the kernels' estimates."""
    (device,) = topology_devices("v5e:1x1")
    sharding = NamedSharding(Mesh(np.array([device]), ("data",)), PartitionSpec())

    def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    operands = (
        array(num_tokens, dim),
        [array(dim, dim, dtype=jnp.float32)] * 3,
        [array(dim, dtype=jnp.float32)] * 3,
        [array(num_tokens, dim)] * 3,
    )
    program = jax.jit(with_gradients, static_argnums=0).lower(products, *operands).compile()
    text = program.as_text()
    cycles = re.findall(r'"estimated_cycles":"(\d+)"', text[text.index("ENTRY") :])
    rate = clock_rate(device.device_kind)
    assert rate is not None
    return sum(map(int, cycles)) / rate * 1e3


for num_tokens, dim in SIZES:
    times = {form.__name__: milliseconds(form, num_tokens, dim) for form in (separate, joined)}
    figures = ", ".join(f"{name} {time:.2f} ms" for name, time in times.items())
    print(f"{num_tokens:,} tokens of {dim} features: {figures}", flush=True)
