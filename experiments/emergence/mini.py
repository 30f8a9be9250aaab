"""BERT-mini (4 layers with 4 heads and 256 features each), with checkpoints at regular intervals.

Command for seed S (the README of this directory describes the corpus):
    bert-jax pretrain --config experiments/emergence/mini.py \
        --config.seed=S --config.work_dir=runs/emergence/seedS
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return the config."""
    return ConfigDict(
        dict(
            work_dir="runs/emergence/seed0",
            model=dict(
                vocab_size=8_000,
                hidden_dim=256,
                num_layers=4,
                num_heads=4,
                ffn_dim=1024,
                max_positions=128,
                hidden_dropout=0.0,
                attention_dropout=0.0,
            ),
            phases=dict(
                phase1=dict(
                    corpus="corpora/emergence/128",
                    sequence_length=128,
                    batch_size=256,
                    num_steps=4_000,
                ),
            ),
            optimizer=dict(peak_learning_rate=1e-3, warmup_steps=500, beta2=0.98),
            evaluation=dict(every_steps=250, max_records=1_024),
            checkpoint=dict(every_steps=250, keep_every=250, keep_best=0),
            reporting=dict(every_steps=250),
            loader=dict(num_workers=2),
        )
    )
