"""Test the communication between devices in the compiled step."""

import jax
import numpy as np
import optax

from bert_jax.analysis.collectives import collectives
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.planning import compile_step
from bert_jax.training.sharding import MeshConfig, make_mesh

VOCAB, DIM, ROWS, LENGTH, PREDICTIONS = 4096, 16, 16, 16, 3


def test_the_gradient_of_a_sharded_table_is_summed_whole_only_once() -> None:
    model = EncoderConfig(
        vocab_size=VOCAB,
        hidden_dim=DIM,
        num_layers=1,
        num_heads=2,
        ffn_dim=2 * DIM,
        max_positions=LENGTH,
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
    mesh = make_mesh(MeshConfig(fsdp=8))
    step = compile_step(task, optax.adam(1e-3), mesh, batch, accumulation_steps=1)
    traffic = collectives(step.text, 8)
    table = VOCAB * DIM * 4
    # The table is used for both the embedding and the output. On CPUs, the whole gradient from the
    # output is summed (without reduce-scatter). For the gradient from the embedding, each device
    # must sum only the features that it stores.
    assert table < traffic["all-reduce"].bytes < 1.5 * table
    # The table is gathered for the forward and the backward pass; activations are not gathered.
    assert traffic["all-gather"].bytes < 2.5 * table
