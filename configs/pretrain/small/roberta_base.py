r"""../roberta_base.py scaled down for two CPU cores: 4 layers of 128 features.

As published (Liu et al. 2019): new masks are drawn in each epoch (section 4.1), attention crosses
document boundaries, and there are no sentence pairs (4.2). The vocabulary is a byte-level BPE
(4.4). The betas are 0.9 and 0.98 (3.1), and the weight decay is 0.01, without gradient clipping
(table 9).

Scaled down: a vocabulary of 8,000, and 500 steps (10% of them warm-up) with batches of 32 rows of
128 tokens. The peak learning rate and the initializer range are chosen for 128 features.

Corpus, here made from Python's documentation (you can use any other text):
    bert-jax demo-corpus --output corpora/small/text.jsonl
    bert-jax train-tokenizer --kind byte-bpe --input corpora/small/text.jsonl --vocab-size 8000 \
        --output corpora/small/byte-bpe
    bert-jax prepare --input corpora/small/text.jsonl --tokenizer corpora/small/byte-bpe \
        --output corpora/small/byte-bpe128 --max-length 128 --held-out 0.05
Command:
    bert-jax pretrain --config configs/pretrain/small/roberta_base.py
Hardware: two CPU cores.
Measured on two CPU cores (AMD EPYC, 2026-11-23): 1 min 28 s; held-out masked-LM loss 6.44 nats,
compared with a unigram cross-entropy of 6.85. With a peak learning rate of 2e-3 and no gradient
clipping, the loss stayed at 6.88.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/roberta_base",
            model=dict(
                vocab_size=8_000,
                hidden_dim=128,
                num_layers=4,
                num_heads=2,
                ffn_dim=512,
                max_positions=128,
                position_offset=2,
                num_segments=1,
                layer_norm_epsilon=1e-5,
                initializer_range=0.06,
                pooler_dropout=True,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="none",
            join_documents=True,
            vocabulary="byte_bpe",
            masking=dict(rate=0.15, unit="token"),
            phases=dict(
                phase1=dict(
                    corpus="corpora/small/byte-bpe128",
                    sequence_length=128,
                    batch_size=32,
                    num_steps=500,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1e-3,
                warmup_steps=50,
                beta1=0.9,
                beta2=0.98,
                weight_decay=0.01,
                clip_norm=0.0,
            ),
            evaluation=dict(every_steps=100),
            checkpoint=dict(every_steps=100),
        )
    )
