"""WNLI of GLUE: whether a sentence with its pronoun replaced follows from the one that has it.

Data: train.tsv, dev.tsv and, if there, test.tsv of https://gluebenchmark.com; or
--config.glue.directory=tfds:glue/wnli.
Command:
    bert-jax finetune --config configs/finetune/wnli.py --init DIR
Hardware: any.
Left out by Devlin et al. 2019 (section 4.1, footnote): sentences of the training set are in the
validation set with the opposite label, and no system was better than the most frequent answer,
65.1 on the test set. A submission to GLUE must have it all the same.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/wnli",
            init_from="",
            glue=dict(task="WNLI", directory="data/glue/WNLI"),
            max_length=128,
        )
    )
