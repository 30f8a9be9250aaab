"""RTE (GLUE): decide whether one sentence entails another.

Data: train.tsv, dev.tsv and, optionally, test.tsv from https://gluebenchmark.com; or
--config.glue.directory=tfds:glue/rte.
Command:
    bert-jax finetune --config configs/finetune/rte.py --init DIR
Hardware: any.
Published (Devlin et al. 2019, table 1; accuracy on the test set): BERT-base 66.4, BERT-large 70.1.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/rte",
            init_from="",
            glue=dict(task="RTE", directory="data/glue/RTE"),
            max_length=256,
        )
    )
