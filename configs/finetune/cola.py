"""CoLA (GLUE): decide whether a sentence is acceptable English.

Data: train.tsv, dev.tsv and, optionally, test.tsv from https://gluebenchmark.com; or
--config.glue.directory=tfds:glue/cola.
Command:
    bert-jax finetune --config configs/finetune/cola.py --init DIR
Hardware: any.
Published (Devlin et al. 2019, table 1; Matthews correlation on the test set): BERT-base 52.1,
BERT-large 60.5.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/cola",
            init_from="",
            glue=dict(task="CoLA", directory="data/glue/CoLA"),
            max_length=64,
        )
    )
