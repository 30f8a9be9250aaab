r"""RoBERTa-base as published (Liu et al. 2019, "RoBERTa").

500,000 steps of 8,192 sequences of up to 512 tokens: masks drawn anew every time (section 4.1), no
sentence pairs (4.2), byte-level BPE of 50,265 (4.4). Table 9: peak rate 6e-4 after 24,000 steps of
warm-up, linear decay, betas 0.9 and 0.98 (section 3.1), epsilon 1e-6, decay 0.01, dropout 0.1, no
clipping. 15 % of the tokens are predicted, 80 % of them masked, 10 % replaced (section 2.3).

Documents read on into each other with a separator between (FULL-SENTENCES, section 4.2): here those
that were packed into a row, in the paper those that follow each other in the text. A row is filled
to its end, in the middle of a sentence if need be; the paper's end with one.

Corpus (160 GB of text in the paper, section 3.2):
    bert-jax train-tokenizer --kind byte-bpe --input TEXT --output corpora/roberta-tokenizer
    bert-jax prepare --input TEXT --tokenizer corpora/roberta-tokenizer \
        --output corpora/roberta512 --max-length 512
Command:
    bert-jax pretrain --config configs/pretrain/roberta_base.py
Hardware: any whose data axes divide 8,192; with few devices also --config.accumulation_steps=N.
Published: 1,024 V100 GPUs for a day for the large model on less text (section 5). Not run here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/roberta_base",
            model=dict(
                vocab_size=50_265,
                hidden_dim=768,
                num_layers=12,
                num_heads=12,
                ffn_dim=3072,
                max_positions=512,
                position_offset=2,
                num_segments=1,
                layer_norm_epsilon=1e-5,
                pooler_dropout=True,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="none",
            join_documents=True,
            vocabulary="byte_bpe",
            masking=dict(rate=0.15, unit="token"),
            phases=dict(
                phase1=dict(
                    corpus="corpora/roberta512",
                    sequence_length=512,
                    batch_size=8_192,
                    num_steps=500_000,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=6e-4,
                warmup_steps=24_000,
                beta1=0.9,
                beta2=0.98,
                epsilon=1e-6,
                weight_decay=0.01,
                clip_norm=0.0,
            ),
            evaluation=dict(every_steps=10_000),
            checkpoint=dict(every_steps=1_000),
            reporting=dict(every_steps=100),
            loader=dict(num_workers=4),
        )
    )
