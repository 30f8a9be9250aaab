"""MNLI (GLUE): decide whether one sentence entails another, contradicts it, or does neither.

Data: train.tsv, dev_matched.tsv and dev_mismatched.tsv and, optionally, test_matched.tsv and
test_mismatched.tsv from https://gluebenchmark.com; or --config.glue.directory=tfds:glue/mnli.
Command:
    bert-jax finetune --config configs/finetune/mnli.py --init DIR
Hardware: any.
Published (Devlin et al. 2019, table 1; accuracy on the test sets, matched / mismatched): BERT-base
84.6 / 83.4, BERT-large 86.7 / 85.9.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/mnli",
            init_from="",
            glue=dict(task="MNLI", directory="data/glue/MNLI"),
            max_length=128,
            evaluations_per_epoch=4,
        )
    )
