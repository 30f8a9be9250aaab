"""Pretrain in two phases: 20 steps of 16 x 32 tokens, then 12 steps of 8 x 64 tokens."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="work/pretrain",
            model=dict(
                vocab_size=280,
                hidden_dim=16,
                num_layers=2,
                num_heads=2,
                ffn_dim=32,
                max_positions=64,
                initializer_range=0.1,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            phases=dict(
                phase1=dict(
                    corpus="corpora/wordpiece32", sequence_length=32, batch_size=16, num_steps=20
                ),
                phase2=dict(
                    corpus="corpora/wordpiece64", sequence_length=64, batch_size=8, num_steps=12
                ),
            ),
            optimizer=dict(peak_learning_rate=2e-2, warmup_steps=4),
            evaluation=dict(every_steps=8),
            checkpoint=dict(every_steps=5, keep_last=1, keep_every=20),
            reporting=dict(every_steps=1, tensorboard=False),
        )
    )
