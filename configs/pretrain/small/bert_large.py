"""BERT-large's two phases at a size for two CPU cores: ../bert_large.py with 8 layers of 192.

As published (Devlin et al. 2019, section 3 and appendix A.2), where BERT-large is twice as deep and
a third wider than BERT-base: masked tokens and next sentences, nine tenths of the steps at length
128 and one at 512, AdamW, decay 0.01, dropout 0.1. For the size: 8,000 words, 300 steps of 32
sequences, a tenth of them warm-up, peak rate and initial weights of what 192 features take.

Corpora: those of bert_base.py beside this file.
Command:
    bert-jax pretrain --config configs/pretrain/small/bert_large.py
Hardware: two CPU cores.
Measured there (AMD EPYC, 2026-11-22): 5 min 6 s; held-out masked-LM loss 6.30 nats, where the
unigram cross-entropy is 6.22: 8 layers need more steps than fit in minutes to learn more than how
common words are, at half and at twice the rate too.
That was with pairs some of which their ends told; not measured since.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/bert_large",
            model=dict(
                vocab_size=8_000,
                hidden_dim=192,
                num_layers=8,
                num_heads=3,
                ffn_dim=768,
                max_positions=512,
                initializer_range=0.06,
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
                    num_steps=270,
                ),
                phase2=dict(
                    corpus="corpora/small/wordpiece512",
                    sequence_length=512,
                    batch_size=32,
                    num_steps=30,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1e-3,
                warmup_steps=30,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.01,
            ),
            evaluation=dict(every_steps=100),
            checkpoint=dict(every_steps=100),
        )
    )
