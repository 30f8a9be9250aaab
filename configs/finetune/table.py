r"""Your own table: a class, several labels or a number for every text, or pair of texts, of a file.

Copy this file and change the lines that say so; or leave it and override them on the command line.
Command:
    bert-jax finetune --config configs/finetune/table.py --init DIR \
      --config.sentences.files.train=train.csv --config.sentences.files.validation=held_out.csv \
      --config.sentences.files.labels="('bad', 'good')"
Hardware: any.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            work_dir="runs/table",
            init_from="",
            sentences=dict(
                files=dict(
                    # Change: the files, .csv, .tsv, .jsonl or .parquet; all but the last may be
                    # packed. test="..." is predicted when all is learned.
                    train="data/table/train.csv",
                    validation="data/table/validation.csv",
                    test="",
                    # Change where their names do not tell what they are: kind="csv", "tsv" (tabs,
                    # no quotes), "jsonl" or "parquet". Without a first line of names header=False,
                    # and columns go by number: "0", "1", ...; CSV with semicolons has
                    # delimiter=";", a table with tabs and quotes kind="csv", delimiter="\t".
                    form=dict(kind="auto", header=True),
                    # Change: the columns; second="..." for pairs.
                    first="text",
                    second="",
                    label="label",
                    # Change where several labels may hold for a text, or none: what stands between
                    # them ("|"); or label="" above if each has a column of its name, of 0 and 1.
                    separator="",
                    # Change: the labels as they stand in the files, in quotes also where they are
                    # digits; () to learn numbers.
                    labels=("negative", "positive"),
                    # The column that names rows in predictions; "" counts them from 0.
                    index="",
                ),
                # () takes accuracy, or what fits several labels or numbers. The first one chooses
                # the best checkpoint; of classes accuracy, matthews and macro_f1 (of two also f1,
                # of the second), of several labels micro_f1, macro_f1 and exact_match, of numbers
                # pearson and spearman.
                metrics=(),
            ),
            # Change: the most tokens of a text; longer ones are cut.
            max_length=128,
        )
    )
