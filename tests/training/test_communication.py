"""Test the communication between devices in the compiled step."""

import math
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.analysis.collectives import collectives
from bert_jax.analysis.hlo import arrays, parse_computations
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.planning import compile_step
from bert_jax.training.sharding import MeshConfig, make_mesh

VOCAB, DIM, ROWS, LENGTH, PREDICTIONS = 4096, 16, 16, 16, 3


def compiled_step(mesh_config: MeshConfig, **options: Any) -> str:
    """Return the text of a train step on 8 devices, for a model with these options."""
    model = EncoderConfig(
        vocab_size=VOCAB,
        hidden_dim=DIM,
        num_layers=1,
        num_heads=2,
        ffn_dim=2 * DIM,
        max_positions=LENGTH,
        **options,
    )
    task = Pretraining(model, ComputeConfig(dtype="float32", attention="xla"))
    shapes = {
        **dict.fromkeys(("token_ids", "segment_ids", "position_ids", "document_ids"), LENGTH),
        **dict.fromkeys(("masked_positions", "masked_labels", "masked_weights"), PREDICTIONS),
        **dict.fromkeys(("cls_positions", "pair_labels", "pair_weights"), 1),
    }
    batch = {
        name: jax.ShapeDtypeStruct(
            (ROWS, size), np.float32 if name.endswith("weights") else np.int32
        )
        for name, size in shapes.items()
    }
    mesh = make_mesh(mesh_config)
    return compile_step(task, optax.adam(1e-3), mesh, batch, accumulation_steps=1).text


def test_the_gradient_of_a_sharded_table_is_summed_whole_only_once() -> None:
    traffic = collectives(compiled_step(MeshConfig(fsdp=8)), 8)
    table = VOCAB * DIM * 4
    # The table is used for both the embedding and the output. On CPUs, the whole gradient from the
    # output is summed (without reduce-scatter). For the gradient from the embedding, each device
    # must sum only the features that it stores.
    assert table < traffic["all-reduce"].bytes < 1.5 * table
    # The table is gathered for the forward and the backward pass; activations are not gathered.
    assert traffic["all-gather"].bytes < 2.5 * table


def test_tensor_parallel_layers_exchange_four_activations() -> None:
    text = compiled_step(MeshConfig(data=4, tensor=2), gated_ffn=True)
    sums = [
        array
        for computation in parse_computations(text)[0].values()
        for line in computation
        if line.opcode == "all-reduce"
        for array in arrays(line.result)
    ]
    # In each pass, the results of attention and of the feed-forward block are sums over devices.
    # The other sum of this size is for the embedded tokens, since the token table is sharded too.
    activations = ROWS // 4 * LENGTH * DIM
    assert sum(math.prod(array.dims) == activations for array in sums) == 1 + 4
