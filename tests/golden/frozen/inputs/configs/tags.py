"""Fine-tune on entity tags in IOB2."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="work/tags",
            init_from="",
            tags=dict(
                files=dict(
                    train="data/names-train.txt",
                    validation="data/names-validation.txt",
                    test="data/names-test.txt",
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
