r"""BERT-large as published (Devlin et al. 2019, section 3 and appendix A.2), in two phases.

The model is trained for 1,000,000 steps, with batches of 256 sequences: 900,000 steps at length
128, then 100,000 at length 512. The optimizer is AdamW with a peak learning rate of 1e-4 after
10,000 warm-up steps, linear decay over both phases, betas of 0.9 and 0.999, and a weight decay of
0.01. The model uses GELU and a dropout of 0.1 (A.2). It predicts 15% of the tokens, of which 80%
are masked and 10% replaced (section 3.1, task 1, and A.1). In half of the pairs, the second segment
follows the first (section 3.1, task 2).

Differences from the released code: new masks and pairs are drawn in each epoch (the released code
draws ten versions in advance, as with --config.masking.num_maskings=10), Adam uses bias correction,
and all rows are filled, with several short documents if necessary (the released code shortens 10%
of the rows at random).

Corpora: the same text (in the paper, Wikipedia and BooksCorpus), prepared twice with the same
vocabulary:
    bert-jax train-tokenizer --input TEXT --output corpora/tokenizer
    bert-jax prepare --input TEXT --tokenizer corpora/tokenizer --output corpora/text128 \
        --max-length 128
    bert-jax prepare --input TEXT --tokenizer corpora/tokenizer --output corpora/text512 \
        --max-length 512
Command:
    bert-jax pretrain --config configs/pretrain/bert_large.py
Hardware: any, if the number of data-parallel devices divides 256. Published: 4 days on 64 TPU chips
(appendix A.2).
Planned for v5e:4x4 on 2026-11-27 (compiled by `plan`, not run; libtpu 0.0.42, JAX 0.10.2):
    phase1  5.0 of 16 GiB per chip; each chip sends 1,318 MiB per step; at least 19.8 ms per step,
            estimated at 52.7 ms
    phase2  8.2 of 16 GiB per chip; each chip sends 1,319 MiB per step; at least 84.5 ms per step,
            estimated at 137.6 ms
    both    an estimated 17 hours without evaluations and checkpoints; at least 7 h 17 min, if all
            matrix multiplications ran at peak FLOP/s
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/bert_large",
            model=dict(
                vocab_size=30_522,
                hidden_dim=1024,
                num_layers=24,
                num_heads=16,
                ffn_dim=4096,
                max_positions=512,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="next_sentence",
            vocabulary="wordpiece",
            phases=dict(
                phase1=dict(
                    corpus="corpora/text128",
                    sequence_length=128,
                    batch_size=256,
                    num_steps=900_000,
                ),
                phase2=dict(
                    corpus="corpora/text512",
                    sequence_length=512,
                    batch_size=256,
                    num_steps=100_000,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1e-4,
                warmup_steps=10_000,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.01,
            ),
            evaluation=dict(every_steps=10_000),
            checkpoint=dict(every_steps=5_000),
            reporting=dict(every_steps=100),
            loader=dict(num_workers=4),
        )
    )
