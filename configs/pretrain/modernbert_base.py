r"""ModernBERT-base as published (Warner et al. 2024), first stage: rows of 1,024 tokens.

The hyperparameters are taken from "Smarter, Better, Faster, Longer". The model is trained on 1.719
trillion tokens in this stage, and then on longer rows with the recipe modernbert_base_long. It
predicts 30% of the tokens, of which 80% are masked and 10% replaced, and there are no sentence
pairs (section 2.2.2); in held-out text, it predicts 15% (as in the released configuration).
According to table 3, batches have 4,608 rows after a batch-size warm-up. The warm-up starts at 768
rows, lasts 50 billion tokens, and takes the same number of steps at each size (appendix A.1). The
optimizer is StableAdamW with betas of 0.9 and 0.98 and an epsilon of 1e-6. The learning rate rises
to 8e-4 over 3 billion tokens and then stays constant. The only dropout is 0.1 for the output of
attention. In this stage, all rotary angles have a base of 10,000 (section 2.2.2, "Context Length
Extension").

The released code raises the batch size in increments of 768 rows. Training for 4,239 steps at each
of the sizes 768, 1,536, 2,304, 3,072 and 3,840 takes 50 billion tokens, and the learning rate
reaches its peak while the size is still 768.

The weight decay of 1e-5 in table 3 is fully decoupled (appendix A.4): it is multiplied by the ratio
of the learning rate to its peak, not by the learning rate itself. Here, `weight_decay` is
multiplied by the learning rate, so its value is 1e-5 / 8e-4.

Difference from the paper: the output matrices of the blocks have the same initializer range as all
other matrices. The Megatron initialization (section 2.2.2) divides their range by the square root
of twice the number of layers.

Corpus (2 trillion tokens of web text, code and scientific text in the paper, section 2.2.1; the
paper's vocabulary is also a byte-level BPE):
    bert-jax train-tokenizer --kind byte-bpe --input TEXT --vocab-size 50368 \
        --output corpora/modernbert-tokenizer
    bert-jax prepare --input TEXT --tokenizer corpora/modernbert-tokenizer \
        --output corpora/modernbert1024 --max-length 1024
Command:
    bert-jax pretrain --config configs/pretrain/modernbert_base.py
Hardware: any, if the number of data-parallel devices divides 768; with few devices, also set
--config.accumulation_steps=N. Published: 194 hours on eight H100 GPUs (table 3). This recipe has
not been run.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/modernbert_base",
            model=dict(
                vocab_size=50_368,
                hidden_dim=768,
                num_layers=22,
                num_heads=12,
                ffn_dim=1152,
                max_positions=1024,
                num_segments=0,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                attention_output_dropout=0.1,
                layer_norm_epsilon=1e-5,
                positions="rotary",
                rotary_theta=10_000.0,
                local_rotary_theta=10_000.0,
                attention_window=129,
                global_every=3,
                norm="pre",
                norm_bias=False,
                first_norm=False,
                dense_bias=False,
                gated_ffn=True,
                classifier_transform="prediction",
            ),
            sentence_pairs="none",
            vocabulary="byte_bpe",
            masking=dict(rate=0.3),
            phases=dict(
                phase1=dict(
                    corpus="corpora/modernbert1024",
                    sequence_length=1024,
                    batch_size=4_608,
                    warmup_batch_sizes=(768, 1_536, 2_304, 3_072, 3_840),
                    warmup_batch_steps=4_239,
                    num_steps=374_901,
                ),
            ),
            optimizer=dict(
                name="stable_adamw",
                peak_learning_rate=8e-4,
                warmup_steps=3_815,
                schedule="constant",
                beta1=0.9,
                beta2=0.98,
                epsilon=1e-6,
                weight_decay=1e-5 / 8e-4,
            ),
            evaluation=dict(every_steps=4_000, masking_rate=0.15),
            checkpoint=dict(every_steps=4_000),
            reporting=dict(every_steps=100),
            loader=dict(num_workers=4),
        )
    )
