"""Pretrain BERT with your own training loop.

python examples/own_loop.py CORPUS, where CORPUS was written by `bert-jax prepare`.
"""

import sys

import optax

import bert_jax as bj


def main(corpus: str, steps: int = 200) -> float:
    """Train a small BERT and return its last loss."""
    loader = bj.CorpusLoader(corpus, batch_size=32, num_steps=steps)
    encoder = bj.EncoderConfig(
        vocab_size=loader.tokenizer.vocab_size,
        hidden_dim=128,
        num_layers=2,
        num_heads=2,
        ffn_dim=512,
        max_positions=loader.length,
    )
    task = bj.Pretraining(encoder, bj.ComputeConfig(dtype="float32", attention="xla"))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-3, steps // 10, steps)
    trainer = bj.Trainer(task, optax.adamw(schedule), mesh=bj.MeshConfig(data=-1))

    state = trainer.init()
    for step, batch in enumerate(loader, start=1):
        state, metrics = trainer.step(state, batch)
        if step % 20 == 0 or step == steps:
            print(f"step {step}  loss {metrics['loss']:.3f}  mlm {metrics['mlm_accuracy']:.1%}")
    return float(metrics["loss"])


if __name__ == "__main__":
    bj.tune_malloc_for_training()  # makes training on a CPU faster
    main(sys.argv[1])
