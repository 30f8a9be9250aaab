"""QNLI (GLUE): decide whether a sentence answers a question.

Data: train.tsv, dev.tsv and, optionally, test.tsv from https://gluebenchmark.com; or
--config.glue.directory=tfds:glue/qnli.
Command:
    bert-jax finetune --config configs/finetune/qnli.py --init DIR
Hardware: any.
Published (Devlin et al. 2019, table 1; accuracy on the test set): BERT-base 90.5, BERT-large 92.7.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/qnli",
            init_from="",
            glue=dict(task="QNLI", directory="data/glue/QNLI"),
            max_length=128,
            evaluations_per_epoch=4,
        )
    )
