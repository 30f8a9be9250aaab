r"""ALBERT-base as published (Lan et al. 2020, "ALBERT", section 4.1): 12 million parameters.

125,000 steps of 4,096 sequences of up to 512 tokens, LAMB at 0.00176. One layer's parameters for
all 12, tables of 128 features (section 3.1), a SentencePiece vocabulary of 30,000, runs of up to
three words masked together, and for the pairs two consecutive segments, swapped half of the time
(section 3.1, "inter-sentence coherence loss"). Its released code warms up for 3,125 steps, decays
by 0.01, clips gradients at 1 and predicts as BERT does (15 %; 80 % masked, 10 % replaced); dropout
0.1 as in its first release.

Otherwise than there: every row is filled (there a tenth are shorter, at random, section 4.1), and
where a row ends or begins in the middle of a sentence, that sentence stays where it is when the
others change places: an end that breaks off would tell the order.

Corpus (Wikipedia and BooksCorpus in the paper):
    bert-jax train-tokenizer --kind sentencepiece --input TEXT --output corpora/albert-tokenizer
    bert-jax prepare --input TEXT --tokenizer corpora/albert-tokenizer \
        --output corpora/albert512 --max-length 512
Command:
    bert-jax pretrain --config configs/pretrain/albert_base.py
Hardware: any whose data axes divide 4,096; with few devices also --config.accumulation_steps=N.
Published: 64 to 512 Cloud TPU v3 chips, by the size of the model (section 4.1). Not run here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/albert_base",
            model=dict(
                vocab_size=30_000,
                embedding_dim=128,
                hidden_dim=768,
                num_layers=12,
                num_heads=12,
                ffn_dim=3072,
                max_positions=512,
                sharing="all",
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="sentence_order",
            vocabulary="sentencepiece",
            masking=dict(rate=0.15, unit="ngram", max_ngram=3),
            phases=dict(
                phase1=dict(
                    corpus="corpora/albert512",
                    sequence_length=512,
                    batch_size=4_096,
                    num_steps=125_000,
                ),
            ),
            optimizer=dict(
                name="lamb",
                peak_learning_rate=0.00176,
                warmup_steps=3_125,
                weight_decay=0.01,
            ),
            evaluation=dict(every_steps=5_000),
            checkpoint=dict(every_steps=1_000),
            reporting=dict(every_steps=100),
            loader=dict(num_workers=4),
        )
    )
