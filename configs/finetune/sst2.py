"""SST-2 (GLUE): classify the sentiment of a sentence from a movie review.

Data: train.tsv, dev.tsv and, optionally, test.tsv from https://gluebenchmark.com; or
--config.glue.directory=tfds:glue/sst2.
Command:
    bert-jax finetune --config configs/finetune/sst2.py --init DIR
Hardware: any.
Published (Devlin et al. 2019, table 1; accuracy on the test set): BERT-base 93.5, BERT-large 94.9.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/sst2",
            init_from="",
            glue=dict(task="SST-2", directory="data/glue/SST-2"),
            max_length=64,
        )
    )
