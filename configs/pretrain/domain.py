r"""Continued pretraining on text from your own domain (Gururangan et al. 2020).

The settings are taken from domain-adaptive pretraining in "Don't Stop Pretraining: Adapt Language
Models to Domains and Tasks" (section 3.2, appendix B and table 13). The model is trained for 12,500
steps (about one pass over each of the paper's corpora) with batches of 2,048 sequences (2,058 in
table 13) of 512 tokens. The optimizer is Adam with betas of 0.9 and 0.98, an epsilon of 1e-6, a
weight decay of 0.01, and a learning rate that rises to 5e-4 over the first 6% of the steps and then
decays linearly. The paper follows RoBERTa's pretraining, so 15% of the tokens are masked and the
dropout is 0.1. There is no gradient clipping, as in RoBERTa's pretraining and in the released code.
The run starts with a new optimizer state.

The model's sizes, tokenizer and kind of sentence pairs are taken from --init, and the sequence
length is taken from the corpus. With little text, set num_steps to a value that corresponds to a
few epochs; the run prints the number of epochs when it starts. For pretraining on a task's own text
(section 4, appendix B), the paper trains for 100 epochs; for tasks with fewer than 5,000 examples,
it uses batches of 256 sequences and a peak learning rate of 1e-4.

Difference from the paper, which continues pretraining RoBERTa: each document attends only to
itself. For a model without sentence pairs, --config.join_documents=True restores RoBERTa's full
sentences.

Commands:
    bert-jax prepare --input TEXT --tokenizer models/base/tokenizer --max-length 512 \
        --output corpora/domain
    bert-jax pretrain --init models/base --corpus corpora/domain
Hardware: any, if the number of data-parallel devices divides 2,048; with few devices, also set
--config.accumulation_steps=N.
Published: TPU v3-8. This recipe has not been run; small/domain.py has.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/domain",
            init_from="models/base",
            # Without --init, the model has the sizes of BERT-base.
            model=dict(hidden_dropout=0.1, attention_dropout=0.1),
            masking=dict(rate=0.15),
            phases=dict(
                phase1=dict(
                    corpus="corpora/domain",
                    sequence_length=512,
                    batch_size=2_048,
                    num_steps=12_500,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=5e-4,
                warmup_steps=0,
                warmup_fraction=0.06,
                schedule="linear",
                beta1=0.9,
                beta2=0.98,
                epsilon=1e-6,
                weight_decay=0.01,
                clip_norm=0.0,
            ),
            evaluation=dict(every_steps=500),
            checkpoint=dict(every_steps=500),
            reporting=dict(every_steps=50),
            loader=dict(num_workers=4),
        )
    )
