r"""../electra_small.py scaled down for two CPU cores: 2 layers of 64 features.

As published (Clark et al. 2020, section 3.3 and table 6): the generator is as deep as the model,
but has only a fraction of its width (here half, with one head). The two share their embeddings,
which have half as many features as the model's hidden states. The generator sees all predicted
tokens as [MASK], and AdamW has a weight decay of 0.01.

Scaled down: a vocabulary of 1,000, no dropout, and 2,000 steps (5% of them warm-up) with batches of
128 rows of 16 tokens. The peak learning rate and the initializer range are chosen for 64 features.

Two settings let the model learn within minutes. 40% of the tokens are predicted (published: 15%),
because the model calls almost every token original if only few tokens are replaced. The weight of
the model's loss is 5 (published: 50), because both losses train the shared embeddings.

Corpus, here made from Python's documentation (you can use any other text):
    bert-jax demo-corpus --output corpora/small/text.jsonl
    bert-jax train-tokenizer --input corpora/small/text.jsonl --vocab-size 1000 \
        --output corpora/small/wordpiece-1000
    bert-jax prepare --input corpora/small/text.jsonl --tokenizer corpora/small/wordpiece-1000 \
        --output corpora/small/electra16 --max-length 16 --held-out 0.05
Command:
    bert-jax pretrain --config configs/pretrain/small/electra_small.py
Hardware: two CPU cores.
Measured on two CPU cores (AMD EPYC, 2026-11-26): 5 min 22 s while other processes used most of both
cores (2 min 51 s of CPU time). The generator's held-out loss fell to 4.90 nats, compared with a
unigram cross-entropy of 5.83. The model's held-out loss fell from 0.575 nats at step 500 to 0.565,
and its recall rose from 0.1% to 2.9% at step 1,500 and 5.0% at the end (precision 58%). With 25% of
the tokens predicted and a peak learning rate of 2e-3, the recall was 0.3% after 1,500 steps. With a
peak learning rate of 4e-3, it was 0 from step 900 to step 1,500, where both runs were stopped.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/electra_small",
            model=dict(
                vocab_size=1_000,
                embedding_dim=32,
                hidden_dim=64,
                num_layers=2,
                num_heads=2,
                ffn_dim=256,
                max_positions=128,
                initializer_range=0.06,
                pooler_activation="gelu",
                pooler_dropout=True,
                hidden_dropout=0.0,
                attention_dropout=0.0,
            ),
            sentence_pairs="none",
            vocabulary="wordpiece",
            masking=dict(rate=0.4, mask_fraction=1.0, random_fraction=0.0),
            replaced_token=dict(generator_size=0.5, weight=5.0),
            phases=dict(
                phase1=dict(
                    corpus="corpora/small/electra16",
                    sequence_length=16,
                    batch_size=128,
                    num_steps=2_000,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=2.5e-3,
                warmup_steps=100,
                epsilon=1e-6,
                weight_decay=0.01,
                clip_norm=1.0,
            ),
            evaluation=dict(every_steps=500),
            checkpoint=dict(every_steps=500, best_metric="replaced_loss"),
        )
    )
