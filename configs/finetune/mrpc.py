"""MRPC (GLUE): decide whether two sentences from news articles have the same meaning.

Data: train.tsv, dev.tsv and, optionally, test.tsv, as written by the script download_glue_data.py
for https://gluebenchmark.com; or --config.glue.directory=tfds:glue/mrpc.
Command:
    bert-jax finetune --config configs/finetune/mrpc.py --init DIR
Hardware: any.
Published (Devlin et al. 2019, table 1; F1 on the test set): BERT-base 88.9, BERT-large 89.3.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/mrpc",
            init_from="",
            glue=dict(task="MRPC", directory="data/glue/MRPC"),
            max_length=128,
        )
    )
