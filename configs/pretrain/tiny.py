"""BERT-tiny (Turc et al. 2019: 2 layers of 128 features) at length 128, for a first run.

Command:
    bert-jax pretrain --config configs/pretrain/tiny.py --config.phases.phase1.corpus=DIR
Hardware: any; intended for two CPU cores.
Measured on two CPU cores (Intel Xeon, 2026-11-23, experiments/tiny_corpus_small): 9 min 51 s on
2.0 M tokens of books and articles; held-out masked-LM loss 6.65 nats, compared with a unigram
cross-entropy of 7.36.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/tiny",
            model=dict(vocab_size=30_522, hidden_dim=128, num_layers=2, num_heads=2, ffn_dim=512),
            phases=dict(
                phase1=dict(
                    corpus="corpora/tiny", sequence_length=128, batch_size=32, num_steps=2_000
                )
            ),
            optimizer=dict(peak_learning_rate=1e-3, warmup_steps=200),
            evaluation=dict(every_steps=500),
            checkpoint=dict(every_steps=500),
        )
    )
