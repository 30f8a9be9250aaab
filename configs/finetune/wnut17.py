"""WNUT-17: find previously unseen names in posts and comments (Derczynski et al. 2017).

Data: the three files from https://github.com/leondz/emerging_entities_17.
Command:
    bert-jax finetune --config configs/finetune/wnut17.py --init DIR
Hardware: any. The BERT paper does not report a score for this task.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/wnut17",
            init_from="",
            tags=dict(
                files=dict(
                    train="data/wnut17/wnut17train.conll",
                    validation="data/wnut17/emerging.dev.conll",
                    test="data/wnut17/emerging.test.annotated",
                )
            ),
            max_length=128,
        )
    )
