"""../distilbert.py scaled down for two CPU cores: 2 layers, distilled from a teacher with 4 layers.

As published (Sanh et al. 2019, section 3): the student has half as many layers as the teacher, is
initialized with every second layer of the teacher, and uses neither segments nor sentence pairs.
The loss combines the cross-entropy with the teacher's predictions at temperature 2, the masked-LM
loss, and the cosine distance to the teacher's last hidden states, with weights 5, 2 and 1.

Scaled down: the teacher is the model trained with bert_base.py in this directory. The student is
trained for 500 steps (10% of them warm-up) with batches of 32 rows of 128 tokens. The peak learning
rate is chosen for 128 features.

Corpus and teacher:
    the commands in bert_base.py in this directory
Command:
    bert-jax pretrain --config configs/pretrain/small/distilbert.py
Hardware: two CPU cores.
Measured on two CPU cores (AMD EPYC, 2026-11-23): 3 min 3 s, not including the teacher; held-out
masked-LM loss 5.66 nats, compared with the teacher's 5.87 and a unigram cross-entropy of 6.22. On
the previous day, a run that compared predictions only at masked tokens
(--config.distillation.soft_targets=masked) took half the time. It reached a loss of 5.64, with a
teacher that had a loss of 5.82.
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
