"""../bert_large.py with its two phases, scaled down for two CPU cores: 8 layers of 128 features.

As published (Devlin et al. 2019, section 3 and appendix A.2): the model predicts masked tokens and
next sentences. 90% of all steps are at length 128 and 10% at length 512. The optimizer is AdamW
with a weight decay of 0.01, and the dropout is 0.1.

Scaled down: a vocabulary of 8,000, and 500 steps (10% of them warm-up) with batches of 32
sequences. The peak learning rate and the initializer range are chosen for 8 layers of 128 features.
The published BERT-large is twice as deep as BERT-base and a third wider. Compared with the model in
bert_base.py in this directory, this model is twice as deep and has the same width.

Corpora: the same as for bert_base.py in this directory.
Command:
    bert-jax pretrain --config configs/pretrain/small/bert_large.py
Hardware: two CPU cores.
Measured on two CPU cores: 4 min 57 s on an AMD EPYC (2026-11-23, partly with other processes
running), and 9 min 25 s on an otherwise idle Intel Xeon. On both, the held-out masked-LM loss was
5.92 nats, compared with a unigram cross-entropy of 6.22. With bert_base.py's initializer range of
0.06 and a peak learning rate of 1.5e-3, models with 8 layers predicted the same words at every
position, some for 300 of 800 steps and some until the end. With the settings below, the loss
decreased from the start for both seeds that were tried.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/bert_large",
            model=dict(
                vocab_size=8_000,
                hidden_dim=128,
                num_layers=8,
                num_heads=2,
                ffn_dim=512,
                max_positions=512,
                initializer_range=0.03,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="next_sentence",
            vocabulary="wordpiece",
            phases=dict(
                phase1=dict(
                    corpus="corpora/small/wordpiece128",
                    sequence_length=128,
                    batch_size=32,
                    num_steps=450,
                ),
                phase2=dict(
                    corpus="corpora/small/wordpiece512",
                    sequence_length=512,
                    batch_size=32,
                    num_steps=50,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1e-3,
                warmup_steps=50,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.01,
            ),
            evaluation=dict(every_steps=100),
            checkpoint=dict(every_steps=100),
        )
    )
