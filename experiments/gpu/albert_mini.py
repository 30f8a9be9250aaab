"""A small ALBERT whose parameters fit in 10 MB: 12 layers of 384 features in two groups.

The layers of a group share their parameters (Lan et al. 2020, section 3.1), so 4.9 million
parameters do the work of 22 million.
Command (the README of this directory describes the corpora):
    bert-jax pretrain --config experiments/gpu/albert_mini.py
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Return the config."""
    return ConfigDict(
        dict(
            work_dir="runs/albert-mini",
            model=dict(
                vocab_size=8_000,
                embedding_dim=128,
                hidden_dim=384,
                num_layers=12,
                num_heads=6,
                ffn_dim=1536,
                max_positions=512,
                sharing="all",
                num_groups=2,
                hidden_dropout=0.0,
                attention_dropout=0.0,
            ),
            masking=dict(rate=0.2, unit="word"),
            sentence_pairs="sentence_order",
            phases=dict(
                phase1=dict(
                    corpus="corpora/albert-mini/32",
                    sequence_length=32,
                    batch_size=1_024,
                    num_steps=1_200,
                ),
                phase2=dict(
                    corpus="corpora/albert-mini/128",
                    sequence_length=128,
                    batch_size=256,
                    num_steps=5_000,
                ),
                phase3=dict(
                    corpus="corpora/albert-mini/512",
                    sequence_length=512,
                    batch_size=64,
                    num_steps=800,
                ),
            ),
            optimizer=dict(peak_learning_rate=7e-4, warmup_steps=800, beta2=0.98),
            evaluation=dict(every_steps=1_000, max_records=2_048),
            checkpoint=dict(every_steps=3_500),
            reporting=dict(every_steps=100),
            loader=dict(num_workers=4),
        )
    )
