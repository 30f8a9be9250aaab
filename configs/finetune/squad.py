"""SQuAD v1.1: find the answer to a question in a passage (Rajpurkar et al. 2016).

Data: train-v1.1.json and dev-v1.1.json from https://rajpurkar.github.io/SQuAD-explorer. The test
set is not public.
Command:
    bert-jax finetune --config configs/finetune/squad.py --init DIR
Hardware: any; if memory is limited, set accumulation_steps.
Published (Devlin et al. 2019, table 2; exact match / F1 on the dev set, single model without
additional data, trained for 3 epochs at 5e-5): BERT-base 80.8 / 88.5, BERT-large 84.1 / 90.9.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/squad",
            init_from="",
            spans=dict(
                files=dict(
                    train="data/squad/train-v1.1.json", validation="data/squad/dev-v1.1.json"
                ),
                doc_stride=128,
            ),
            max_length=384,
            num_epochs=2,
            batch_size=32,
            optimizer=dict(peak_learning_rate=3e-5),
            evaluations_per_epoch=2,
        )
    )
