r"""BERT-mini (Turc et al. 2019: 4 layers of 256) on two CPU cores: rows of 32 tokens, then of 128.

Command, TEXT being some hundred megabytes of it:
    bert-jax train-tokenizer --input TEXT --output corpora/mini-cpu/tokenizer --vocab-size 8000
    for length in 32 128; do
      bert-jax prepare --input TEXT --tokenizer corpora/mini-cpu/tokenizer --max-length $length \
        --output corpora/mini-cpu/$length --held-out 0.005
    done
    bert-jax pretrain --config configs/pretrain/mini_cpu.py
mini_cpu_512.py goes on with longer rows.
Hardware: two CPU cores with AMX or AVX-512's bfloat16. Elsewhere set
--config.compute.dtype=float32: a Xeon with neither made 4,700 tokens a second in rows of 32, and
3,600 with bfloat16 (2026-11-23).
Measured with --config.phases.phase2.num_steps=20000, 26,000 steps in all, on 60 M words of books
and Wikipedia and two cores of an AMD EPYC with AVX-512's bfloat16 (2026-11-24): 8,000 to 10,000
tokens a second, so more than three hours; held-out masked-LM loss 3.41 nats (39.8 % right, with
30 % masked; unigram cross-entropy 6.92), 85.7 % of next sentences told. On its way there it was
at 3.80 nats after 12,000 steps and 3.67 (36.3 %; 80.5 %) after 16,000, with a rate not yet low:
the 14,000 steps below end with one that is. Another machine of this kind made 13,000 to 16,000
tokens a second (2026-11-22; code of that day makes 7,800 to 9,500 here, as today's does).

What it does otherwise than BERT's paper is for so few tokens. In rows of 128 with 15 % masked,
16,000 words and peak rates of 1e-3 and 1.5e-3, the loss stood at 6.4 nats (14 % right) after
1,400 steps of 64 rows: what words and topics tell. A head that looks at the next word has 32
places to tell apart in rows of 32, and 40 % masked teach more of a row: with both, and 8,000
words, the loss fell from such a plateau after 500 steps of 64 such rows. At a peak rate of 2e-3
(initial weights of 0.06) it never did. No dropout: no text is seen twice.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/mini-cpu",
            model=dict(
                vocab_size=8_000,
                hidden_dim=256,
                num_layers=4,
                num_heads=4,
                ffn_dim=1024,
                max_positions=128,
                hidden_dropout=0.0,
                attention_dropout=0.0,
            ),
            compute=dict(dtype="bfloat16"),
            masking=dict(rate=0.3),
            phases=dict(
                phase1=dict(
                    corpus="corpora/mini-cpu/32",
                    sequence_length=32,
                    batch_size=128,
                    num_steps=6_000,
                ),
                phase2=dict(
                    corpus="corpora/mini-cpu/128",
                    sequence_length=128,
                    batch_size=32,
                    num_steps=8_000,
                ),
            ),
            optimizer=dict(peak_learning_rate=1e-3, warmup_steps=400, beta2=0.98),
            evaluation=dict(every_steps=2_000),
            checkpoint=dict(every_steps=500),
        )
    )
