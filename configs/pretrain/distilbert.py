r"""DistilBERT as published (Sanh et al. 2019, section 3): six layers taught by BERT-base.

The teacher's guesses at temperature 2, the masked words themselves and the angle to the teacher's
last vectors, weighted 5, 2 and 1; no sentence pairs, no segments. The student starts from every
second layer of the teacher. Batches of 4,000 examples with masks drawn anew (section 3); three
passes over the teacher's text, guesses compared at all tokens, 5 % of warm-up, peak rate 5e-4
falling linearly, beta2 0.98, no weight decay, gradients clipped at 5 and added up over 50 small
batches are those of its released code. Comparing guesses at the masked tokens alone costs much less
(--config.distillation.soft_targets=masked).

Otherwise than that code: rare words are masked no oftener than others, and the student begins with
layers 0, 2, 4, 6, 8, 10 (there 0, 2, 4, 7, 9, 11).

The teacher is a work directory: of `bert-jax pretrain` or
    bert-jax import google-bert/bert-base-uncased --output models/base
Corpus, in the teacher's vocabulary (Wikipedia and BooksCorpus in the paper):
    bert-jax prepare --input TEXT --tokenizer models/base/tokenizer --output corpora/distil512 \
        --max-length 512
Command (three passes over 7.5 million sequences; set num_steps to your corpus):
    bert-jax pretrain --config configs/pretrain/distilbert.py
Hardware: any whose data axes divide 4,000 / accumulation_steps. Published: 90 hours on 8 V100
(section 3). Not run here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/distilbert",
            model=dict(
                vocab_size=30_522,
                hidden_dim=768,
                num_layers=6,
                num_heads=12,
                ffn_dim=3072,
                max_positions=512,
                num_segments=0,
                pooler_activation="relu",
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="none",
            vocabulary="wordpiece",
            distillation=dict(
                teacher="models/base",
                temperature=2.0,
                soft_weight=5.0,
                mlm_weight=2.0,
                cosine_weight=1.0,
                soft_targets="all",
            ),
            accumulation_steps=50,
            phases=dict(
                phase1=dict(
                    corpus="corpora/distil512",
                    sequence_length=512,
                    batch_size=4_000,
                    num_steps=5_600,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=5e-4,
                warmup_steps=280,
                beta2=0.98,
                weight_decay=0.0,
                clip_norm=5.0,
            ),
            evaluation=dict(every_steps=500),
            checkpoint=dict(every_steps=100),
            reporting=dict(every_steps=10),
            loader=dict(num_workers=4),
        )
    )
