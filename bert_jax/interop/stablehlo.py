"""Export a model as separate weights and a StableHLO program that needs only JAX to run."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from bert_jax.interop.comparison import Outputs, ProbeInput, Sizes
from bert_jax.interop.huggingface.save import save_tokenizer
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.local_paths import shown
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, define_model, infer, scores_choices
from bert_jax.models.parameters import Parameters
from bert_jax.tokenizers.tokenizer import Tokenizer

PROGRAM = "model.stablehlo"
WEIGHTS = "weights.npz"
SIGNATURE = "signature.json"
INPUTS = ("token_ids", "segment_ids", "attention_mask")
PLATFORMS = ("cpu", "cuda", "tpu")


def export_model(config: ModelConfig, *, hidden_states: bool) -> export.Exported:
    """Export a program that maps weights and inputs to a dict of outputs.

    Its arguments are the weights, `token_ids`, `segment_ids` and `attention_mask`.
    """
    definition = define_model(config, ComputeConfig(dtype="float32", attention="xla"))

    def run(weights: Parameters, *inputs: jax.Array) -> dict[str, jax.Array]:
        return infer(definition.module(weights), *inputs, hidden_states=hidden_states)

    constraint = f"length <= {config.encoder.max_positions}"
    shape = export.symbolic_shape(dims_of(config), constraints=[constraint])
    ids = jax.ShapeDtypeStruct(shape, jnp.int32)
    return export.export(jax.jit(run), platforms=PLATFORMS)(definition.shapes, ids, ids, ids)


def dims_of(config: ModelConfig) -> str:
    """Return the names of the input dims, which may have any size."""
    return "batch, choices, length" if scores_choices(config.head) else "batch, length"


def write_stablehlo(
    config: ModelConfig,
    parameters: Parameters,
    tokenizer: Tokenizer,
    target: Path,
    *,
    hidden_states: bool = False,
) -> None:
    """Write the program, its weights, its signature and the tokenizer's files to `target`.

    The program takes a dict of weights and int32 `token_ids`, `segment_ids` and `attention_mask`.
    These are [batch, length], or [batch, choices, length] for multiple choice, with any batch size
    and any length up to the model's maximum. The program returns a dict with the same outputs as
    `infer`.
    """
    program = export_model(config, hidden_states=hidden_states)
    serialized = bytes(program.serialize())
    (target / PROGRAM).write_bytes(serialized)
    arrays = {name: np.asarray(parameters.pop(name)) for name in list(parameters)}
    np.savez(target / WEIGHTS, **arrays)  # type: ignore[arg-type]  # no name is "allow_pickle"
    signature = {
        "inputs": list(INPUTS),
        "shape": dims_of(config),
        "outputs": sorted(_names(program)),
        "labels": list(config.labels),
        "platforms": list(PLATFORMS),
        "program_sha256": hashlib.sha256(serialized).hexdigest(),
        "calling_convention_version": program.calling_convention_version,
        "jax_version": jax.__version__,
        "vocab_size": config.encoder.vocab_size,
        "num_segments": config.encoder.num_segments,
        "max_positions": config.encoder.max_positions,
    }
    (target / SIGNATURE).write_text(json.dumps(signature, indent=2) + "\n", encoding="utf-8")
    save_tokenizer(tokenizer, target, config.encoder)


def _names(program: export.Exported) -> list[str]:
    outputs = jax.tree.unflatten(program.out_tree, program.out_avals)
    return list(outputs)


class StableHLOModel:
    """An artifact written by `write_stablehlo`, loaded for comparison with another model."""

    title: str
    sizes: Sizes | None
    labels: tuple[str, ...]

    def __init__(self, directory: Path):
        """Load the artifact.

        Raises:
          ValueError: a file is damaged.
        """
        try:
            signature = read_json_object(directory / SIGNATURE)
            serialized = (directory / PROGRAM).read_bytes()
            # The deserializer does not validate its input, so a corrupt byte could do anything.
            if hashlib.sha256(serialized).hexdigest() != signature["program_sha256"]:
                raise ValueError(f"{PROGRAM} does not match its checksum in {SIGNATURE}")
            self._program = export.deserialize(bytearray(serialized))
            with open(directory / WEIGHTS, "rb") as file, np.load(file) as weights:
                self._weights: dict[str, Any] = {
                    name: jnp.asarray(weights[name]) for name in weights
                }
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{directory}: damaged StableHLO artifact: {error}") from error
        self.title = f"{shown(directory)} (StableHLO)"
        with expecting_fields(directory / SIGNATURE):
            self._choices = "choices" in signature["shape"]
            self.labels = tuple(signature["labels"])
            self.sizes = Sizes(
                signature["vocab_size"], signature["num_segments"], signature["max_positions"]
            )

    def outputs(self, probe: ProbeInput) -> Outputs:
        """See `ComparableModel.outputs`."""
        inputs = [probe.token_ids, probe.segment_ids, probe.attention_mask]
        if self._choices:
            inputs = [ids[:, None] for ids in inputs]
        return jax.device_get(self._program.call(self._weights, *inputs))
