r"""4-layer TinyBERT as published (Jiao et al. 2020, sections 3.2 and 4.2): general distillation.

The student is trained to match BERT-base's embeddings, hidden states and attention scores. Its
layer m corresponds to the teacher's layer 3m, and learned matrices map its hidden states to the
teacher's 768 features. The loss has no terms for predictions, masked words or sentence pairs. The
student is trained for three epochs on English Wikipedia, in sequences of 128 tokens. All other
settings are from BERT's pretraining (Devlin et al. 2019, appendix A.2): segment pairs, batches of
256, AdamW with a peak learning rate of 1e-4 after 10,000 warm-up steps, a weight decay of 0.01 and
a dropout of 0.1. As in the released code, no tokens are masked, so that the student matches the
teacher on unmodified text. The model has the size of TinyBERT4 in table 1: 14.5 million parameters.

The resulting model is intended for fine-tuning, since its heads are untrained. The held-out metrics
of the run are the distillation losses.

The teacher is a work directory written by `bert-jax pretrain` or by
    bert-jax import google-bert/bert-base-uncased --output models/base
Corpus, with the teacher's vocabulary:
    bert-jax prepare --input TEXT --tokenizer models/base/tokenizer --output corpora/tiny128 \
        --max-length 128
Command (three epochs over 26 million sequences; adapt num_steps to your corpus):
    bert-jax pretrain --config configs/pretrain/tinybert.py
Hardware: any, if the number of data-parallel devices divides 256. This recipe has not been run.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/tinybert",
            model=dict(
                vocab_size=30_522,
                hidden_dim=312,
                num_layers=4,
                num_heads=12,
                ffn_dim=1200,
                max_positions=512,
                hidden_dropout=0.1,
                attention_dropout=0.1,
            ),
            sentence_pairs="next_sentence",
            masking=dict(mask_fraction=0.0, random_fraction=0.0),
            vocabulary="wordpiece",
            distillation=dict(
                teacher="models/base",
                soft_weight=0.0,
                mlm_weight=0.0,
                pairs_weight=0.0,
                cosine_weight=0.0,
                hidden_weight=1.0,
                attention_weight=1.0,
                init_layers=False,
            ),
            phases=dict(
                phase1=dict(
                    corpus="corpora/tiny128",
                    sequence_length=128,
                    batch_size=256,
                    num_steps=300_000,
                ),
            ),
            optimizer=dict(
                name="adamw",
                peak_learning_rate=1e-4,
                warmup_steps=10_000,
                weight_decay=0.01,
            ),
            evaluation=dict(every_steps=5_000),
            checkpoint=dict(every_steps=1_000, best_metric="hidden_loss"),
            reporting=dict(every_steps=100),
            loader=dict(num_workers=4),
        )
    )
