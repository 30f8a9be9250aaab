"""../electra_small.py scaled down for two CPU cores: 4 layers of 128 features.

As published (Clark et al. 2020, section 3.3 and table 6): the generator has a quarter of the
model's width and shares its embeddings, which have half as many features as the hidden states; 15%
of the tokens are predicted; and the model's loss has weight 50. Scaled down: a vocabulary of 8,000,
four heads of 32 features, 500 steps (10% of them warm-up) with batches of 32 rows of 128 tokens,
and a peak learning rate chosen for 128 features.

Corpus:
    the commands in bert_base.py in this directory
Command:
    bert-jax pretrain --config configs/pretrain/small/electra_small.py
Hardware: two CPU cores.
This recipe has not been run to completion.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/electra_small",
            model=dict(
                vocab_size=8_000,
                embedding_dim=64,
                hidden_dim=128,
                num_layers=4,
                num_heads=4,
                ffn_dim=512,
                max_positions=512,
                pooler_activation="gelu",
                pooler_dropout=True,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="none",
            vocabulary="wordpiece",
            masking=dict(rate=0.15, mask_fraction=1.0, random_fraction=0.0),
            replaced_token=dict(generator_size=0.25, weight=50.0),
            phases=dict(
                phase1=dict(
                    corpus="corpora/small/wordpiece128",
                    sequence_length=128,
                    batch_size=32,
                    num_steps=500,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1e-3,
                warmup_steps=50,
                epsilon=1e-6,
                weight_decay=0.01,
                clip_norm=1.0,
            ),
            evaluation=dict(every_steps=100),
            checkpoint=dict(every_steps=100, best_metric="replaced_loss"),
        )
    )
