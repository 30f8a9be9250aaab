"""Write a model as a TensorFlow SavedModel, using jax2tf."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.interpreters import mlir
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from bert_jax.interop.huggingface.save import save_tokenizer
from bert_jax.interop.stablehlo import INPUTS, PLATFORMS, dims_of, export_model
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters
from bert_jax.tokenizers.tokenizer import Tokenizer

# Suppress TensorFlow's startup messages; this works only before the first import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
from jax.experimental import jax2tf  # noqa: E402

# JAX exports erf as a composite operator that TensorFlow 2.21 does not support, so expand it.
_PASSES = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo,stablehlo-legalize-composite-to-call))"
)


def write_savedmodel(
    config: ModelConfig,
    parameters: Parameters,
    tokenizer: Tokenizer,
    target: Path,
    *,
    hidden_states: bool = False,
) -> None:
    """Write a SavedModel with one signature, along with the tokenizer's files, to `target`.

    The inputs are int32 `token_ids`, `segment_ids` and `attention_mask` with any batch size and
    length, as in `stablehlo.write_stablehlo`. The outputs are named as in `infer`. The parameters
    are stored as variables.

    Raises:
      ValueError: the installed TensorFlow cannot run programs exported by the installed JAX.
    """
    program = _expanded(export_model(config, hidden_states=hidden_states))
    shape = f"({dims_of(config)})"
    rank = shape.count(",") + 1
    convert = jax2tf.convert(
        program.call,
        polymorphic_shapes=[None, shape, shape, shape],
        polymorphic_constraints=[f"length <= {config.encoder.max_positions}"],
        with_gradient=False,
        native_serialization_platforms=PLATFORMS,
    )
    module: Any = tf.Module()
    module.weights = {
        name: tf.Variable(np.asarray(parameters.pop(name)), trainable=False)
        for name in list(parameters)
    }
    ids = [tf.TensorSpec([None] * rank, tf.int32, name=name) for name in INPUTS]

    @tf.function(input_signature=ids, autograph=False)
    def serve(token_ids: Any, segment_ids: Any, attention_mask: Any) -> Any:
        return convert(dict(module.weights), token_ids, segment_ids, attention_mask)

    module.serve = serve
    signature = serve.get_concrete_function()
    _check_runs(signature, rank)
    tf.saved_model.save(module, str(target), signatures=signature)
    save_tokenizer(tokenizer, target, config.encoder)


def _expanded(program: export.Exported) -> export.Exported:
    """Return the program with all composite operators expanded to plain StableHLO."""
    stablehlo.register_stablehlo_passes()
    with mlir.make_ir_context():
        module = ir.Module.parse(program.mlir_module())
        passmanager.PassManager.parse(_PASSES).run(module.operation)
        version = stablehlo.get_version_from_compatibility_requirement(
            stablehlo.StablehloCompatibilityRequirement.WEEK_12
        )
        serialized = stablehlo.serialize_portable_artifact(module, version)
    return dataclasses.replace(program, mlir_module_serialized=serialized)


def _check_runs(signature: Any, rank: int) -> None:
    """Run the program on one token, since a StableHLO version mismatch appears only at run time."""
    ids = tf.constant(np.ones((1,) * rank, np.int32))
    try:
        signature(**dict.fromkeys(INPUTS, ids))
    except tf.errors.OpError as error:
        reason = next((line for line in str(error).splitlines() if "deserialize" in line), "")
        raise ValueError(
            f"TensorFlow {tf.__version__} cannot run a program exported by jax {jax.__version__}: "
            f"{reason or error}. Install a jax version released at most a few weeks after "
            "TensorFlow, or use --format onnx or stablehlo"
        ) from error
