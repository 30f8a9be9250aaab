"""BERT-mini (Turc et al. 2019: 4 layers of 256 features) at length 128.

Command:
    bert-jax pretrain --config configs/pretrain/mini.py --config.phases.phase1.corpus=DIR
Hardware: one GPU, or a CPU and some patience. This recipe's training time and scores have not been
measured.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/mini",
            model=dict(vocab_size=30_522, hidden_dim=256, num_layers=4, num_heads=4, ffn_dim=1024),
            phases=dict(
                phase1=dict(
                    corpus="corpora/mini", sequence_length=128, batch_size=32, num_steps=20_000
                )
            ),
            optimizer=dict(peak_learning_rate=5e-4, warmup_steps=1_000),
        )
    )
