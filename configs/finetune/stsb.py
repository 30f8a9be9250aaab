"""STS-B (GLUE): predict how similar two sentences are, on a scale from 0 to 5.

Data: train.tsv, dev.tsv and, optionally, test.tsv from https://gluebenchmark.com; or
--config.glue.directory=tfds:glue/stsb.
Command:
    bert-jax finetune --config configs/finetune/stsb.py --init DIR
Hardware: any.
Published (Devlin et al. 2019, table 1; Spearman correlation on the test set): BERT-base 85.8,
BERT-large 86.5.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/stsb",
            init_from="",
            glue=dict(task="STS-B", directory="data/glue/STS-B"),
            max_length=128,
        )
    )
