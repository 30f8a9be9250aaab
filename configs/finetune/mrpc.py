"""MRPC of GLUE: whether two sentences of the news say the same.

Data: train.tsv, dev.tsv and, if there, test.tsv of https://gluebenchmark.com, as the
benchmark's script download_glue_data.py writes them; or --config.glue.directory=tfds:glue/mrpc.
Command:
    bert-jax finetune --config configs/finetune/mrpc.py --init DIR
Hardware: any.
Published (Devlin et al. 2019, table 1; test set, F1): BERT-base 88.9,
BERT-large 89.3.
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
