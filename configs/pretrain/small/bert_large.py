"""BERT-large's two phases at a size for two CPU cores: ../bert_large.py with 8 layers of 128.

As published (Devlin et al. 2019, section 3 and appendix A.2), where BERT-large is twice as deep and
a third wider than BERT-base: masked tokens and next sentences, nine tenths of the steps at length
128 and one at 512, AdamW, decay 0.01, dropout 0.1. For the size: twice as deep as bert_base.py
beside this file and as wide, 8,000 words, 500 steps of 32 sequences, a tenth of them warm-up, peak
rate and initial weights of what 8 layers of 128 take.

Corpora: those of bert_base.py beside this file.
Command:
    bert-jax pretrain --config configs/pretrain/small/bert_large.py
Hardware: two CPU cores.
Measured there (AMD EPYC, 2026-11-23, partly beside other work): 4 min 57 s; on an Intel Xeon with
nothing beside it 9 min 25 s; held-out masked-LM loss 5.92 nats on both, where the unigram
cross-entropy is 6.22. At bert_base.py's initial weights of 0.06 and a peak rate of 1.5e-3, 8 layers
guess the same words everywhere, for 300 of 800 steps or to their end, by chance; with these they
learn from the start, under either of two seeds.
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
