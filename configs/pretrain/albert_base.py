r"""ALBERT-base as published (Lan et al. 2020, "ALBERT", section 4.1): 12 million parameters.

The model is trained with LAMB for 125,000 steps, with a peak learning rate of 0.00176 and batches
of 4,096 sequences of up to 512 tokens. All 12 layers share their parameters, and the embeddings
have 128 features (section 3.1). The SentencePiece vocabulary has 30,000 pieces, and up to three
consecutive words are masked together. A sentence pair consists of two consecutive segments that are
swapped half of the time (section 3.1, "inter-sentence coherence loss"). The released code
provides the remaining settings: 3,125 warm-up steps, a weight decay of 0.01, gradient clipping at
1, BERT's choice of predicted tokens (15%, of which 80% are masked and 10% replaced), and a dropout
of 0.1 (as in the first release of the code).

Differences from the paper: all rows are filled, whereas the paper shortens 10% of them at random
(section 4.1). If a row starts or ends in the middle of a sentence, the incomplete sentence keeps
its place when the others are swapped. Otherwise, its position would reveal their order.

Corpus (Wikipedia and BooksCorpus in the paper):
    bert-jax train-tokenizer --kind sentencepiece --input TEXT --output corpora/albert-tokenizer
    bert-jax prepare --input TEXT --tokenizer corpora/albert-tokenizer \
        --output corpora/albert512 --max-length 512
Command:
    bert-jax pretrain --config configs/pretrain/albert_base.py
Hardware: any, if the number of data-parallel devices divides 4,096; with few devices, also set
--config.accumulation_steps=N.
Published: 64 to 512 Cloud TPU v3 chips, depending on the size of the model (section 4.1). This
recipe has not been run.
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
