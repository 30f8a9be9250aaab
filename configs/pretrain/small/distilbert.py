"""DistilBERT at a size for two CPU cores: ../distilbert.py with 2 layers out of a teacher's 4.

As published (Sanh et al. 2019, section 3): half of the teacher's layers, begun with every second of
them, no segments, no pairs; its guesses at temperature 2, masked words and the angle to its last
vectors, weighted 5, 2 and 1. For the size: the teacher is that of bert_base.py beside this file,
rows of 128, 500 steps of 32 rows, a tenth of them warm-up, a peak rate of what 128 features take.

Corpus and teacher:
    the commands of bert_base.py beside this file
Command:
    bert-jax pretrain --config configs/pretrain/small/distilbert.py
Hardware: two CPU cores.
Measured there (AMD EPYC, 2026-11-23): 3 min 3 s after the teacher's; held-out masked-LM loss 5.66
nats, the teacher's being 5.87 and the unigram cross-entropy 6.22. With guesses compared at masked
tokens alone (--config.distillation.soft_targets=masked) it took half the time the day before and
came to 5.64, its teacher being at 5.82.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/distilbert",
            model=dict(
                vocab_size=8_000,
                hidden_dim=128,
                num_layers=2,
                num_heads=2,
                ffn_dim=512,
                max_positions=512,
                num_segments=0,
                pooler_activation="relu",
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="none",
            vocabulary="wordpiece",
            distillation=dict(
                teacher="runs/small/bert_base",
                temperature=2.0,
                soft_weight=5.0,
                mlm_weight=2.0,
                cosine_weight=1.0,
                soft_targets="all",
            ),
            phases=dict(
                phase1=dict(
                    corpus="corpora/small/wordpiece128",
                    sequence_length=128,
                    batch_size=32,
                    num_steps=500,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1e-3,
                warmup_steps=50,
                beta2=0.98,
                weight_decay=0.0,
                clip_norm=5.0,
            ),
            evaluation=dict(every_steps=100),
            checkpoint=dict(every_steps=100),
        )
    )
