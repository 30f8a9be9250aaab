"""Pretrain ELECTRA (Clark et al. 2020): detect the tokens that a small generator has replaced.

python examples/electra.py CORPUS WORK_DIR, where CORPUS was written by `bert-jax prepare`.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import bert_jax as bj


class Electra(bj.CustomTask):
    """A generator and a discriminator with shared token embeddings (section 3.1 of the paper)."""

    def __init__(self, **sizes: Any):
        self.loss_terms = {"mlm_loss": 1.0, "replaced_loss": 50.0}
        self.small = bj.EncoderConfig(hidden_dim=64, ffn_dim=256, num_heads=1, **sizes)
        self.large = bj.EncoderConfig(hidden_dim=256, ffn_dim=1024, num_heads=4, **sizes)

    def build(self, rngs: nnx.Rngs) -> Any:
        compute = bj.ComputeConfig(dtype="float32", attention="xla")
        generator = bj.PretrainingModel(self.small, compute, rngs, next_sentence=False)
        encoder = bj.Encoder(self.large, compute, rngs)
        encoder.embeddings.token = generator.encoder.embeddings.token
        return nnx.Dict(gen=generator, encoder=encoder, score=nnx.Linear(256, 1, rngs=rngs))

    def loss_weights(self, batch: Any) -> dict[str, jax.Array]:
        tokens = jnp.sum(batch["document_ids"] != 0, dtype=jnp.float32)
        return {"mlm_loss": jnp.sum(batch["masked_weights"]), "replaced_loss": tokens}

    def metrics(self, model: Any, batch: Any, dropout_key: Any) -> Any:
        (key, noise, other), ids = jax.random.split(dropout_key, 3), batch["token_ids"]
        at, weights = batch["masked_positions"], batch["masked_weights"]
        rest = [batch[name] for name in ("segment_ids", "position_ids", "document_ids")]
        logits = model.gen(ids, *rest, at, at[:, :1], dropout_key=key).token_logits
        sampled, rows = jax.random.categorical(noise, logits), jnp.arange(len(ids))[:, None]
        given = ids.at[rows, at].add(jnp.where(weights > 0, sampled - ids[rows, at], 0))
        wrong = weights * (sampled != batch["masked_labels"])
        replaced, real = jnp.zeros(ids.shape).at[rows, at].add(wrong), jnp.sign(rest[-1]) * 1.0
        scores = model.score(model.encoder(given, *rest, dropout_key=other).hidden)[..., 0]
        losses = optax.sigmoid_binary_cross_entropy(scores, replaced)
        mlm_losses = bj.cross_entropy(logits, batch["masked_labels"]).loss
        means = {"mlm_loss": (mlm_losses, weights), "replaced_loss": (losses, real)}
        return {name: bj.weighted_mean(*pair) for name, pair in means.items()}


if __name__ == "__main__":
    bj.tune_malloc_for_training()  # makes training on a CPU faster
    loader = bj.CorpusLoader(sys.argv[1], batch_size=32, sentence_pairs="none")
    sizes = dict(vocab_size=loader.tokenizer.vocab_size, max_positions=loader.length)
    trainer = bj.Trainer(Electra(num_layers=4, embedding_dim=64, **sizes), optax.adamw(5e-4))
    trainer.on_step(lambda step, metrics: print(step, metrics), every=50)
    trainer.fit(loader, 1_000, work_dir=sys.argv[2])
