r"""RoBERTa-base as published (Liu et al. 2019, "RoBERTa").

The model is trained for 500,000 steps, with batches of 8,192 sequences of up to 512 tokens. New
masks are drawn in each epoch (section 4.1), there are no sentence pairs (4.2), and the vocabulary
is a byte-level BPE with 50,265 tokens (4.4). According to table 9, the peak learning rate is 6e-4
after 24,000 warm-up steps, with linear decay, betas of 0.9 and 0.98 (section 3.1), an epsilon of
1e-6, a weight decay of 0.01, a dropout of 0.1 and no gradient clipping. The model predicts 15% of
the tokens, of which 80% are masked and 10% replaced (section 2.3).

Attention crosses document boundaries, which are marked with a separator token (FULL-SENTENCES,
section 4.2). Differences from the paper: a row contains documents that were packed together rather
than consecutive documents, and rows are filled completely, so they may end in mid-sentence.

Corpus (160 GB of text in the paper, section 3.2):
    bert-jax train-tokenizer --kind byte-bpe --input TEXT --output corpora/roberta-tokenizer
    bert-jax prepare --input TEXT --tokenizer corpora/roberta-tokenizer \
        --output corpora/roberta512 --max-length 512
Command:
    bert-jax pretrain --config configs/pretrain/roberta_base.py
Hardware: any, if the number of data-parallel devices divides 8,192; with few devices, also set
--config.accumulation_steps=N.
Published: one day on 1,024 V100 GPUs for the large model on less text (section 5). This recipe has
not been run.
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
