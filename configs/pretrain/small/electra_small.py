r"""../electra_small.py scaled down for two CPU cores: 2 layers of 128 features.

As published (Clark et al. 2020, section 3.3 and table 6): the generator shares the model's
embeddings, which have half as many features as the hidden states, and it sees all predicted tokens
as [MASK]; the optimizer is AdamW with a weight decay of 0.01.

Corpus, here made from Python's documentation (you can use any other text):
    bert-jax demo-corpus --output corpora/small/text.jsonl
    bert-jax train-tokenizer --input corpora/small/text.jsonl --vocab-size 1000 \
        --output corpora/small/wordpiece-1000
    bert-jax prepare --input corpora/small/text.jsonl --tokenizer corpora/small/wordpiece-1000 \
        --output corpora/small/electra32 --max-length 32 --held-out 0.05
Command:
    bert-jax pretrain --config configs/pretrain/small/electra_small.py
Hardware: two CPU cores.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/electra_small",
            model=dict(
                vocab_size=1_000,
                embedding_dim=64,
                hidden_dim=128,
                num_layers=2,
                num_heads=2,
                ffn_dim=512,
                max_positions=128,
                initializer_range=0.06,
                pooler_activation="gelu",
                pooler_dropout=True,
                hidden_dropout=0.0,
                attention_dropout=0.0,
            ),
            sentence_pairs="none",
            vocabulary="wordpiece",
            masking=dict(rate=0.25, mask_fraction=1.0, random_fraction=0.0),
            replaced_token=dict(generator_size=0.5, weight=5.0),
            phases=dict(
                phase1=dict(
                    corpus="corpora/small/electra32",
                    sequence_length=32,
                    batch_size=64,
                    num_steps=2_500,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1.5e-3,
                warmup_steps=125,
                epsilon=1e-6,
                weight_decay=0.01,
                clip_norm=1.0,
            ),
            evaluation=dict(every_steps=250),
            checkpoint=dict(every_steps=250, best_metric="replaced_loss"),
        )
    )
