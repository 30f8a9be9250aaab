r"""DistilBERT as published (Sanh et al. 2019, section 3): six layers distilled from BERT-base.

The loss combines the cross-entropy with the teacher's predictions at temperature 2, the masked-LM
loss, and the cosine distance to the teacher's last hidden states, with weights 5, 2 and 1. There
are no sentence pairs and no segments. The student is initialized with every second layer of the
teacher. Batches have 4,000 examples, and new masks are drawn in each epoch (section 3). The
released code provides the remaining settings: three epochs on the teacher's text, predictions
compared at all tokens, warm-up over 5% of the steps, a peak learning rate of 5e-4 with linear
decay, a beta2 of 0.98, no weight decay, gradient clipping at 5, and gradient accumulation over 50
small batches. It is much cheaper to compare predictions only at masked tokens
(--config.distillation.soft_targets=masked).

Differences from the released code: rare words are not masked more often than other words, and the
student is initialized with layers 0, 2, 4, 6, 8 and 10 (0, 2, 4, 7, 9 and 11 in the released code).

The teacher is a work directory written by `bert-jax pretrain` or by
    bert-jax import google-bert/bert-base-uncased --output models/base
Corpus, with the teacher's vocabulary (Wikipedia and BooksCorpus in the paper):
    bert-jax prepare --input TEXT --tokenizer models/base/tokenizer --output corpora/distil512 \
        --max-length 512
Command (three epochs over 7.5 million sequences; adapt num_steps to your corpus):
    bert-jax pretrain --config configs/pretrain/distilbert.py
Hardware: any, if the number of data-parallel devices divides 4,000 / accumulation_steps. Published:
90 hours on 8 V100 GPUs (section 3). This recipe has not been run.
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
