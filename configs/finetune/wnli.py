"""WNLI (GLUE): decide whether a sentence entails a copy of itself with a pronoun replaced.

Data: train.tsv, dev.tsv and, optionally, test.tsv from https://gluebenchmark.com; or
--config.glue.directory=tfds:glue/wnli.
Command:
    bert-jax finetune --config configs/finetune/wnli.py --init DIR
Hardware: any.
Devlin et al. 2019 (section 4.1, footnote) leave this task out: sentences from the training set
occur in the validation set with the opposite label, and no system did better than predicting the
majority class, which scores 65.1 on the test set. A submission to GLUE must still include it.
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
