r"""A table of your own, with a class, several labels or a number for each text or pair of texts.

The text and label columns and the labels are detected and printed, unless they are set here or on
the command line. Ambiguous files are rejected. Without a validation file, 10% of the rows are held
out for validation.
Command:
    bert-jax finetune --config configs/finetune/table.py --init DIR --data reviews.csv
With explicit files and columns, and skipping rows without a label, as for SNLI's official files:
    bert-jax finetune --config configs/finetune/table.py --init DIR \
      --data snli_1.0_train.txt --config.sentences.files.validation=snli_1.0_dev.txt \
      --config.sentences.files.form.kind=tsv --config.sentences.files.skip_labels="('-',)" \
      --config.sentences.files.first=sentence1 --config.sentences.files.second=sentence2 \
      --config.sentences.files.label=gold_label
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
                    # The training file (--data on the command line): .csv, .tsv, .jsonl or
                    # .parquet; all but the last may be compressed. Predictions for the test file
                    # are made at the end.
                    train="data/table/train.csv",
                    validation="",
                    test="",
                    # The share of training rows that is held out for validation if validation is
                    # "", chosen by a hash of the texts.
                    validation_share=0.1,
                    # If the format cannot be recognized by the extension: kind="csv", "tsv" (tabs
                    # without quotes), "jsonl" or "parquet". For files without a header:
                    # header=False, and numbers "0", "1", ... as columns. For CSV with semicolons:
                    # delimiter=";". For tables with tabs and quotes: kind="csv", delimiter="\t".
                    form=dict(kind="auto", header=True),
                    # The columns; second="" for single texts, "auto" to detect them.
                    first="auto",
                    second="auto",
                    label="auto",
                    # If a row can have any number of labels: the separator, such as "|"; or
                    # label="" above if each label has a column with its name that contains 0 or 1.
                    # In both cases, the labels must be listed below.
                    separator="",
                    # The labels as written in the files, in quotes even if they are digits; () to
                    # predict numbers, ("auto",) to detect labels or numbers, ("classes",) to treat
                    # every value as a class.
                    labels=("auto",),
                    # The labels of rows to skip: ("-",) for SNLI, ("",) for rows without a label.
                    skip_labels=(),
                    # The column of IDs in predictions; "" to number the rows from 0.
                    index="",
                ),
                # The metrics, the first of which selects the best checkpoint; () for the default.
                # For classes: accuracy (the default), matthews, macro_f1 and, with two classes, f1
                # of the second. For several labels: micro_f1 (the default), macro_f1 and
                # exact_match. For numbers: pearson and spearman (the default is both).
                metrics=(),
            ),
            # The maximum number of tokens of a text; longer texts are truncated.
            max_length=128,
        )
    )
