r"""../albert_base.py scaled down for two CPU cores: one layer of 128 features, applied four times.

As published (Lan et al. 2020, sections 3.1 and 4.1): the layers share all their parameters and are
wider than the embeddings. The vocabulary is made with SentencePiece. Up to three consecutive words
are masked together, and the model predicts the order of two segments. The optimizer is LAMB with a
weight decay of 0.01.

Scaled down: a vocabulary of 8,000, embeddings with 64 features, and 500 steps (10% of them warm-up)
with batches of 32 rows of 128 tokens. The peak learning rate and the initializer range are chosen
for 128 features.

Corpus, here made from Python's documentation (you can use any other text):
    bert-jax demo-corpus --output corpora/small/text.jsonl
    bert-jax train-tokenizer --kind sentencepiece --input corpora/small/text.jsonl \
        --vocab-size 8000 --output corpora/small/sentencepiece
    bert-jax prepare --input corpora/small/text.jsonl --tokenizer corpora/small/sentencepiece \
        --output corpora/small/sentencepiece128 --max-length 128 --held-out 0.05
Command:
    bert-jax pretrain --config configs/pretrain/small/albert_base.py
Hardware: two CPU cores.
Measured on two CPU cores (AMD EPYC, 2026-11-23): 1 min 39 s; held-out masked-LM loss 6.00 nats,
compared with a unigram cross-entropy of 6.30; sentence-order accuracy 53.9%.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/albert_base",
            model=dict(
                vocab_size=8_000,
                embedding_dim=64,
                hidden_dim=128,
                num_layers=4,
                num_heads=2,
                ffn_dim=512,
                max_positions=128,
                sharing="all",
                initializer_range=0.06,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="sentence_order",
            vocabulary="sentencepiece",
            masking=dict(rate=0.15, unit="ngram", max_ngram=3),
            phases=dict(
                phase1=dict(
                    corpus="corpora/small/sentencepiece128",
                    sequence_length=128,
                    batch_size=32,
                    num_steps=500,
                ),
            ),
            optimizer=dict(
                name="lamb",
                peak_learning_rate=5e-3,
                warmup_steps=50,
                weight_decay=0.01,
            ),
            evaluation=dict(every_steps=100),
            checkpoint=dict(every_steps=100),
        )
    )
