"""Fine-tune on questions in SQuAD format, whose passages are split into windows."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="work/spans",
            init_from="",
            spans=dict(
                files=dict(
                    train="data/questions-train.json",
                    validation="data/questions-validation.json",
                    test="data/questions-test.json",
                ),
                doc_stride=8,
                max_query_length=8,
            ),
            max_length=32,
            num_epochs=2,
            batch_size=4,
            max_shapes=1,
            report_every_steps=1,
            optimizer=dict(peak_learning_rate=1e-2),
        )
    )
