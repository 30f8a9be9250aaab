"""QQP (GLUE): decide whether two questions have the same meaning.

Data: train.tsv, dev.tsv and, optionally, test.tsv from https://gluebenchmark.com; or
--config.glue.directory=tfds:glue/qqp.
Command:
    bert-jax finetune --config configs/finetune/qqp.py --init DIR
Hardware: any.
Published (Devlin et al. 2019, table 1; F1 on the test set): BERT-base 71.2, BERT-large 72.1.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/qqp",
            init_from="",
            glue=dict(task="QQP", directory="data/glue/QQP"),
            max_length=128,
            evaluations_per_epoch=4,
        )
    )
