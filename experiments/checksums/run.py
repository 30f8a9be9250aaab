"""Measure how long verifying a checkpoint takes, relative to restoring it.

    python experiments/checksums/run.py --work DIR

If DIR does not yet contain a BERT-base checkpoint with AdamW's state, the script saves one there
(1.2 GB). It then alternates between restoring and verifying the checkpoint. Restoring works as in a
resumed run, except that the checkpoint is not verified.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.variants import VARIANTS
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig, require_intact, steps_in
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import MeshConfig, make_mesh
from bert_jax.training.state import TrainState, abstract_state, init_state

CONFIG = CheckpointConfig(keep_best=0)


def main() -> None:
    """Print how long both operations take in each round, and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    directory = args.work / "checkpoints"
    encoder = EncoderConfig(vocab_size=30_522, **VARIANTS["base"])
    model = ModelConfig(encoder=encoder, head="pretraining", pooler=True)
    definition = define_model(model, ComputeConfig(dtype="float32", attention="xla"))
    optimizer, mesh = make_optimizer(OptimizerConfig()), make_mesh(MeshConfig(), jax.devices()[:1])
    if not steps_in(directory):
        with Checkpointer(directory, CONFIG, {}) as checkpointer:
            checkpointer.save(_without_zeros(init_state(definition, optimizer, mesh, 0)), None)
    abstract = abstract_state(definition, optimizer, mesh)
    ratios = []
    for _ in range(args.rounds):
        began = time.perf_counter()
        with Checkpointer(directory, CONFIG, {}, verified=0) as checkpointer:
            state = jax.block_until_ready(checkpointer.restore(abstract))
        restored = time.perf_counter() - began
        del state
        began = time.perf_counter()
        require_intact(directory, 0)
        verified = time.perf_counter() - began
        ratios.append(verified / restored)
        print(
            f"restore {restored:.2f} s  verification {verified:.3f} s  {ratios[-1]:.1%}", flush=True
        )
    print(f"median {statistics.median(ratios):.1%}, highest {max(ratios):.1%}")


def _without_zeros(state: TrainState) -> TrainState:
    """Replace the zeros in the optimizer state, since they would compress to almost nothing."""
    key = jax.random.key(1)
    filled = [
        jax.random.normal(jax.random.fold_in(key, place), leaf.shape, leaf.dtype)
        if leaf.ndim
        else leaf
        for place, leaf in enumerate(jax.tree.leaves(state.opt_state))
    ]
    structure = jax.tree.structure(state.opt_state)
    return TrainState(state.step, state.params, jax.tree.unflatten(structure, filled))


if __name__ == "__main__":
    main()
