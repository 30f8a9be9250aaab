r"""../modernbert_base.py scaled down for two CPU cores: 4 layers of 128 features.

As published (Warner et al. 2024, section 2.2.2 and table 3): the model predicts 30% of the tokens
(15% in evaluations), and the batch size grows at the start. The learning rate of StableAdamW is
constant after its warm-up, and the weight decay is 1e-5 / 8e-4 times the learning rate. The only
dropout is 0.1 for the output of attention. Every third layer has global attention, which means the
first and the last of the four layers.

Scaled down: a vocabulary of 8,000, and rows of 128 tokens with a window of 17 tokens (both about an
eighth of the published size). The run has 500 steps: 30 each with batches of 8, 16 and 24 rows, and
the remaining steps with 32 rows. The peak learning rate and the initializer range are chosen for
128 features.

Corpus:
    the commands in roberta_base.py in this directory
Command:
    bert-jax pretrain --config configs/pretrain/small/modernbert_base.py
To continue with longer rows, use modernbert_base_long.py in this directory.
Hardware: two CPU cores.
Measured on two CPU cores (Intel Xeon, 2026-11-27): 4 min 6 s of CPU time, on cores that other
processes used most of the time (15 min 2 s in all). The held-out masked-LM loss fell to 4.40 nats,
compared with a unigram cross-entropy of 6.85.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/modernbert_base",
            model=dict(
                vocab_size=8_000,
                hidden_dim=128,
                num_layers=4,
                num_heads=2,
                ffn_dim=192,
                max_positions=128,
                num_segments=0,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                attention_output_dropout=0.1,
                layer_norm_epsilon=1e-5,
                initializer_range=0.06,
                positions="rotary",
                rotary_theta=10_000.0,
                local_rotary_theta=10_000.0,
                attention_window=17,
                global_every=3,
                norm="pre",
                norm_bias=False,
                first_norm=False,
                dense_bias=False,
                gated_ffn=True,
                classifier_transform="prediction",
            ),
            sentence_pairs="none",
            vocabulary="byte_bpe",
            masking=dict(rate=0.3),
            phases=dict(
                phase1=dict(
                    corpus="corpora/small/byte-bpe128",
                    sequence_length=128,
                    batch_size=32,
                    warmup_batch_sizes=(8, 16, 24),
                    warmup_batch_steps=30,
                    num_steps=500,
                ),
            ),
            optimizer=dict(
                name="stable_adamw",
                peak_learning_rate=2e-3,
                warmup_steps=50,
                schedule="constant",
                beta1=0.9,
                beta2=0.98,
                epsilon=1e-6,
                weight_decay=1e-5 / 8e-4,
            ),
            evaluation=dict(every_steps=100, masking_rate=0.15),
            checkpoint=dict(every_steps=100),
        )
    )
