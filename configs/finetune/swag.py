"""SWAG: choose which of four endings continues a text (Zellers et al. 2018).

Data: train.csv, val.csv and test.csv from https://github.com/rowanz/swagaf.
Command:
    bert-jax finetune --config configs/finetune/swag.py --init DIR
Hardware: any; each batch contains 64 sequences. The batch size, learning rate and number of epochs
are from the paper.
Published (Devlin et al. 2019, table 4; accuracy): BERT-base 81.6 on the validation set, BERT-large
86.6 on the validation set and 86.3 on the test set.
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from bert_jax.labeled_data.choices import swag_files


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/swag",
            init_from="",
            choices=dict(files=asdict(swag_files("data/swag"))),
            max_length=128,
            num_epochs=3,
            batch_size=16,
            optimizer=dict(peak_learning_rate=2e-5),
            evaluations_per_epoch=4,
        )
    )
