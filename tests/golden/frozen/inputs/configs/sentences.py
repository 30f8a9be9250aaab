"""Fine-tune on a table of sentence pairs, whose columns and labels are detected."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="work/sentences",
            init_from="",
            sentences=dict(
                files=dict(
                    train="",
                    validation="data/places-validation.csv",
                    test="data/places-test.csv",
                    first="auto",
                    second="auto",
                    label="auto",
                    labels=("auto",),
                )
            ),
            max_length=32,
            num_epochs=2,
            batch_size=4,
            max_shapes=1,
            report_every_steps=1,
            optimizer=dict(peak_learning_rate=1e-2),
        )
    )
