"""BERT-large's two phases at a size for two CPU cores: ../bert_large.py with 8 layers of 128.

As published (Devlin et al. 2019, section 3 and appendix A.2), where BERT-large is twice as deep and
a third wider than BERT-base: masked tokens and next sentences, nine tenths of the steps at length
128 and one at 512, AdamW, decay 0.01, dropout 0.1. For the size: twice as deep as bert_base.py
beside this file and as wide, 8,000 words, 800 steps of 32 sequences, a tenth of them warm-up, peak
rate and initial weights of what 8 layers of 128 take.

Corpora: those of bert_base.py beside this file.
Command:
    bert-jax pretrain --config configs/pretrain/small/bert_large.py
Hardware: two CPU cores.
Measured there (AMD EPYC, 2026-11-23): 7 min 50 s; held-out masked-LM loss 5.92 nats, where the
unigram cross-entropy is 6.22. 8 layers take 300 steps, where bert_base.py's 4 take 150, before they
learn more than how common words are. 8 of 192, for which there is time for 300 steps, learned no
more by then, nor at half and at twice the rate; nor in the 240 steps that they were given without
dropout, or in 200 with initial weights of 0.03. Not measured since the loss of pairs is a
mean over all pieces of text, and no longer over pairs alone.
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
                    num_steps=720,
                ),
                phase2=dict(
                    corpus="corpora/small/wordpiece512",
                    sequence_length=512,
                    batch_size=32,
                    num_steps=80,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1.5e-3,
                warmup_steps=80,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.01,
            ),
            evaluation=dict(every_steps=100),
            checkpoint=dict(every_steps=100),
        )
    )
