"""Fine-tune a model that chooses the correct ending for a sentence from three candidates."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="work/choices",
            init_from="",
            choices=dict(
                files=dict(
                    train="data/endings-train.csv",
                    validation="data/endings-validation.csv",
                    test="data/endings-test.csv",
                    context="context",
                    endings=("e0", "e1", "e2"),
                    form=dict(kind="csv"),
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
