r"""TinyBERT of 4 layers, general distillation as published (Jiao et al. 2020, 3.2 and 4.2).

From BERT-base: the student's embeddings, hidden states and attention scores learn its own, layer m
from the teacher's 3m, through maps to its 768 features; guesses, masked words and sentence pairs
are not learned here. Sequences of 128 tokens, three passes over English Wikipedia, all else as in
BERT's own pretraining (Devlin et al. 2019, A.2): pairs of segments, batches of 256, AdamW at 1e-4
after 10,000 steps, decay 0.01, dropout 0.1. As in its released code no token is masked: the teacher
is to be followed on text as it is. The size is that of table 1's TinyBERT4: 14.5 million
parameters.

What comes out has untrained heads, and is for fine-tuning. Its held-out figures are the losses
against the teacher.

The teacher is a work directory: of `bert-jax pretrain` or
    bert-jax import google-bert/bert-base-uncased --output models/base
Corpus, in the teacher's vocabulary:
    bert-jax prepare --input TEXT --tokenizer models/base/tokenizer --output corpora/tiny128 \
        --max-length 128
Command (three passes over 26 million sequences; set num_steps to your corpus):
    bert-jax pretrain --config configs/pretrain/tinybert.py
Hardware: any whose data axes divide 256. Not run here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/tinybert",
            model=dict(
                vocab_size=30_522,
                hidden_dim=312,
                num_layers=4,
                num_heads=12,
                ffn_dim=1200,
                max_positions=512,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="next_sentence",
            masking=dict(mask_fraction=0.0, random_fraction=0.0),
            vocabulary="wordpiece",
            distillation=dict(
                teacher="models/base",
                soft_weight=0.0,
                mlm_weight=0.0,
                pairs_weight=0.0,
                cosine_weight=0.0,
                hidden_weight=1.0,
                attention_weight=1.0,
                init_layers=False,
            ),
            phases=dict(
                phase1=dict(
                    corpus="corpora/tiny128",
                    sequence_length=128,
                    batch_size=256,
                    num_steps=300_000,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1e-4,
                warmup_steps=10_000,
                weight_decay=0.01,
            ),
            evaluation=dict(every_steps=5_000),
            checkpoint=dict(every_steps=1_000, best_metric="hidden_loss"),
            reporting=dict(every_steps=100),
            loader=dict(num_workers=4),
        )
    )
