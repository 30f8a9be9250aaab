"""Fine-tune a model that classifies single sentences, on SST-2 from GLUE."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="work/glue",
            init_from="",
            glue=dict(task="SST-2", directory="data/reviews"),
            max_length=32,
            num_epochs=2,
            batch_size=4,
            max_shapes=1,
            report_every_steps=1,
            optimizer=dict(peak_learning_rate=1e-2),
        )
    )
