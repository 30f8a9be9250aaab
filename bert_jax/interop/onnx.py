"""Write and run models as ONNX files with a dynamic batch size and sequence length."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import assert_never

import numpy as np
import onnx_ir as ir
import onnxruntime

from bert_jax.finetuning.registry import score_outputs
from bert_jax.interop import onnx_encoder, onnx_heads
from bert_jax.interop.comparison import Outputs, ProbeInput, Sizes
from bert_jax.interop.huggingface.config import positions_fit, write_config
from bert_jax.interop.huggingface.families import refusal_of
from bert_jax.interop.huggingface.save import save_tokenizer
from bert_jax.interop.onnx_builder import OPSET, GraphBuilder
from bert_jax.json_files import expecting_fields, parse_json
from bert_jax.local_paths import shown
from bert_jax.models.model import ModelConfig, scores_choices
from bert_jax.models.parameters import Parameters
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.version import __version__

MODEL = "model.onnx"
WEIGHTS = "model.onnx.data"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# This IR version was introduced with ONNX 1.16; every runtime that supports opset 20 can read it.
_IR_VERSION = 10
_METADATA = "bert_jax"
# The graph's outputs by name, each with its shape.
_Outputs = dict[str, tuple[ir.Value, list[str | int]]]


def write_onnx(
    config: ModelConfig,
    parameters: Parameters,
    tokenizer: Tokenizer,
    target: Path,
    *,
    hidden_states: bool = False,
) -> None:
    """Write model.onnx, its weights, config.json and the tokenizer's files to `target`.

    Inputs are int64 [batch, sequence], or [batch, choices, sequence] for multiple choice. Inputs
    and outputs have the same names as in Hugging Face's exports. With `hidden_states`, the model
    also returns `hidden_states_0` (the embeddings), `hidden_states_1` and so on, and
    `pooler_output` if it has a pooler.
    """
    graph = GraphBuilder(config, lambda name: np.asarray(parameters.pop(name)))
    dims = ["batch", "choices", "sequence"] if scores_choices(config.head) else None
    shape = ir.Shape(dims or ["batch", "sequence"])
    inputs = [ir.Value(name=n, shape=shape, type=ir.TensorType(ir.DataType.INT64)) for n in INPUTS]
    outputs = _outputs(graph, inputs, hidden_states)
    assert not parameters, f"not exported: {sorted(parameters)}"
    model = ir.Model(
        ir.Graph(
            inputs,
            outputs,
            nodes=graph.nodes,
            initializers=list(graph.initializers.values()),
            opset_imports={"": OPSET},
            name="bert",
        ),
        ir_version=_IR_VERSION,
        producer_name="bert_jax",
        producer_version=__version__,
    )
    encoder = config.encoder
    sizes = (encoder.vocab_size, encoder.num_segments, encoder.max_positions)
    metadata = {"head": config.head, "sizes": sizes, "labels": config.labels}
    model.metadata_props[_METADATA] = json.dumps(metadata)
    ir.save(model, target / MODEL, external_data=WEIGHTS)
    # The graph needs all inputs, but some tokenizers leave one out by default. For example,
    # ALBERT's tokenizer returns no segment ids.
    names = ("input_ids", "token_type_ids", "attention_mask")
    save_tokenizer(tokenizer, target, config.encoder, inputs=names)
    # Write a config.json only if it can describe the model.
    if refusal_of(config) is None and positions_fit(encoder, tokenizer):
        content = json.dumps(write_config(config, tokenizer), indent=2) + "\n"
        (target / "config.json").write_text(content, encoding="utf-8")


def _outputs(graph: GraphBuilder, inputs: list[ir.Value], hidden_states: bool) -> list[ir.Value]:
    """Add the model's operators to the graph and return its named outputs."""
    config = graph.config
    token_ids, attention_mask, segment_ids = inputs
    if scores_choices(config.head):
        flat = graph.constant([-1])
        choices = graph.op("Shape", token_ids, start=0, end=2)
        length = graph.op("Shape", token_ids, start=2, end=3)
        rows = graph.op("Concat", flat, length, axis=0)
        token_ids, attention_mask, segment_ids = (
            graph.op("Reshape", value, rows) for value in (token_ids, attention_mask, segment_ids)
        )
    states = onnx_encoder.hidden_states(graph, token_ids, segment_ids, attention_mask)
    hidden, encoder = states[-1], config.encoder
    rows_dim = "batch_times_choices" if scores_choices(config.head) else "batch"
    every_token = [rows_dim, "sequence"]
    outputs: _Outputs = {}
    pooled = None
    if config.classifier is not None:
        vectors = onnx_heads.scored_vectors(graph, hidden, attention_mask)
        pooled = vectors if config.classifier.pools else None
    elif config.has_pooler:
        pooled = onnx_heads.pooled(graph, hidden)
    if config.head == "encoder":
        # Create a separate value, since the same state may also be returned as hidden_states_N.
        last = graph.op("Identity", hidden)
        outputs["last_hidden_state"] = last, [*every_token, encoder.hidden_dim]
        if pooled is not None:
            outputs["pooler_output"] = pooled, [rows_dim, encoder.hidden_dim]
    outputs |= _pretraining_outputs(graph, hidden, pooled)
    if config.classifier is not None:
        scores = graph.dense(vectors, "classifier")
        outputs |= _scores(graph, scores, choices if scores_choices(config.head) else None)
    if hidden_states:
        if pooled is not None:
            outputs["pooler_output"] = pooled, [rows_dim, encoder.hidden_dim]
        for number, value in enumerate(states):
            outputs[f"hidden_states_{number}"] = value, [*every_token, encoder.hidden_dim]
    for name, (value, dims) in outputs.items():
        value.name, value.shape = name, ir.Shape(dims)
        value.type = ir.TensorType(ir.DataType.FLOAT)
    return [value for value, _ in outputs.values()]


def _pretraining_outputs(
    graph: GraphBuilder, hidden: ir.Value, pooled: ir.Value | None
) -> _Outputs:
    """Add the pretraining heads to the graph, and return their outputs ({} if there are none)."""
    config, outputs = graph.config, _Outputs()
    if config.head in ("pretraining", "masked_lm"):
        name = "prediction_logits" if config.head == "pretraining" else "logits"
        scores = onnx_heads.token_logits(graph, hidden)
        outputs[name] = scores, ["batch", "sequence", config.encoder.vocab_size]
    if config.head in ("pretraining", "next_sentence"):
        assert pooled is not None
        name = "seq_relationship_logits" if config.head == "pretraining" else "logits"
        outputs[name] = graph.dense(pooled, "next_sentence"), ["batch", 2]
    if config.head == "replaced_token":
        scores = onnx_heads.replaced_token_logits(graph, hidden)
        outputs["logits"] = scores, ["batch", "sequence"]
    return outputs


def _scores(graph: GraphBuilder, scores: ir.Value, choices: ir.Value | None) -> _Outputs:
    """Return a classifier's outputs and their shapes, keyed by name.

    Args:
      graph: the graph to add the operators to.
      scores: the output of the classifier's last layer.
      choices: the shape [batch, choices], for multiple choice.
    """
    config = graph.config
    assert config.classifier is not None
    names = score_outputs(config.head)
    match config.classifier.scored:
        case "sequence":
            return {"logits": (scores, ["batch", len(config.scores)])}
        case "choices":
            assert choices is not None
            return {"logits": (graph.op("Reshape", scores, choices), ["batch", "choices"])}
        case "tokens" if len(names) == 1:
            return {"logits": (scores, ["batch", "sequence", len(config.scores)])}
        case "tokens":
            return {
                name: (
                    graph.op("Gather", scores, graph.constant(number), axis=2),
                    ["batch", "sequence"],
                )
                for number, name in enumerate(names)
            }
        case _:
            assert_never(config.classifier.scored)


class OnnxModel:
    """An ONNX file, run by ONNX Runtime on the CPU."""

    title: str
    sizes: Sizes | None
    labels: tuple[str, ...]

    def __init__(self, file: Path):
        """Load the file.

        Raises:
          ValueError: the file is not an ONNX model or was not written by `write_onnx`.
        """
        options = onnxruntime.SessionOptions()
        # Turn off logging, since errors are raised as exceptions anyway.
        options.log_severity_level = 4
        try:
            self._session = onnxruntime.InferenceSession(
                file, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the only base class that the runtime's errors share
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{file}: ONNX Runtime cannot load it: {reason}") from error
        metadata = self._session.get_modelmeta().custom_metadata_map.get(_METADATA)
        if metadata is None:
            raise ValueError(
                f"{file}: not exported by bert_jax, so the meaning of its outputs is unknown. "
                "Export the model with `bert-jax export --format onnx`"
            )
        with expecting_fields(file):
            content = parse_json(metadata)
            self._head = content["head"]
            self.sizes = Sizes(*content["sizes"])
            self.labels = tuple(content["labels"])
        self.title = f"{shown(file)} (ONNX, {self._head})"

    def outputs(self, probe: ProbeInput) -> Outputs:
        """See `ComparableModel.outputs`."""
        arrays = [
            ids.astype(np.int64)
            for ids in (probe.token_ids, probe.attention_mask, probe.segment_ids)
        ]
        if scores_choices(self._head):
            arrays = [array[:, None] for array in arrays]
        # Feed only inputs that the graph has: if a model has no segments, there may be no
        # token_type_ids.
        used = {value.name for value in self._session.get_inputs()}
        feed = {n: a for n, a in zip(INPUTS, arrays, strict=True) if n in used}
        names = [value.name for value in self._session.get_outputs()]
        return self._renamed(dict(zip(names, self._session.run(None, feed), strict=True)))

    def _renamed(self, outputs: Outputs) -> Outputs:
        """Return the ONNX graph's outputs, renamed to match `infer`."""
        names = score_outputs(self._head)
        columns = [outputs.pop(name) for name in names if name in outputs and len(names) > 1]
        logits = {
            "masked_lm": "token_logits",
            "next_sentence": "next_sentence_logits",
            "replaced_token": "replaced_token_logits",
        }
        renamed = {
            "last_hidden_state": "hidden",
            "pooler_output": "pooled",
            "prediction_logits": "token_logits",
            "seq_relationship_logits": "next_sentence_logits",
            "logits": logits.get(self._head, "logits"),
        }
        result = {
            renamed.get(name, name.replace("hidden_states_", "hidden_")): array
            for name, array in outputs.items()
        }
        numbered = [name for name in result if re.fullmatch(r"hidden_\d+", name)]
        if numbered:
            result.setdefault("hidden", result[f"hidden_{len(numbered) - 1}"])
        return result | ({"logits": np.stack(columns, axis=-1)} if columns else {})
