r"""ELECTRA-Small as published (Clark et al. 2020, section 3.3 and appendix A, table 6).

A generator with a quarter of the model's width predicts 15% of the tokens, all of which it sees as
[MASK]. The model detects which tokens in the generator's version of the text differ from the
original. The loss is the generator's masked-LM loss plus 50 times the model's loss over all tokens.
The two models share their token, position and segment embeddings, which have 128 features. The
model is trained for 1,000,000 steps with batches of 128 rows of 128 tokens. The optimizer is AdamW
with betas of 0.9 and 0.999, an epsilon of 1e-6, a weight decay of 0.01, and a learning rate that
rises to 5e-4 over 10,000 steps and then decays linearly. Gradients are clipped to a norm of 1, as
in the released code.

Differences from the released code: that code leaves 15% of the predicted tokens unmasked in the
generator's input, which the paper does not mention (--config.masking.mask_fraction=0.85), and its
Adam has no bias correction.

Corpus (Wikipedia and BooksCorpus in the paper):
    bert-jax train-tokenizer --input TEXT --vocab-size 30522 --output tokenizers/wordpiece
    bert-jax prepare --input TEXT --tokenizer tokenizers/wordpiece \
        --output corpora/wordpiece128 --max-length 128
Command:
    bert-jax pretrain --config configs/pretrain/electra_small.py
The discriminator is the model that is exported and fine-tuned. To extract the generator:
    bert-jax extract runs/electra_small --step newest --generator --output models/generator
Hardware: any. Published: 4 days on one V100 GPU (table 1). This recipe has not been run.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/electra_small",
            model=dict(
                vocab_size=30_522,
                embedding_dim=128,
                hidden_dim=256,
                num_layers=12,
                num_heads=4,
                ffn_dim=1024,
                max_positions=512,
                pooler_activation="gelu",
                pooler_dropout=True,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="none",
            vocabulary="wordpiece",
            masking=dict(rate=0.15, mask_fraction=1.0, random_fraction=0.0),
            replaced_token=dict(generator_size=0.25, weight=50.0),
            phases=dict(
                phase1=dict(
                    corpus="corpora/wordpiece128",
                    sequence_length=128,
                    batch_size=128,
                    num_steps=1_000_000,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=5e-4,
                warmup_steps=10_000,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-6,
                weight_decay=0.01,
                clip_norm=1.0,
            ),
            evaluation=dict(every_steps=10_000),
            checkpoint=dict(every_steps=10_000, best_metric="replaced_loss"),
            loader=dict(num_workers=4),
        )
    )
