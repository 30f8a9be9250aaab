r"""A table of your own: a class, several labels or a number for every text, or pair, of a file.

The text and label columns and the labels are detected in the file and printed unless they are given
here or on the command line; an ambiguous file is refused. Without a validation file a tenth of the
rows is held out for validation.
Command:
    bert-jax finetune --config configs/finetune/table.py --init DIR --data reviews.csv
With explicit files and columns, skipping rows without a label, as for SNLI's official files:
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
                    # The training file (--data on the command line), .csv, .tsv, .jsonl or
                    # .parquet; all but the last may be compressed. test="..." is predicted at the
                    # end.
                    train="data/table/train.csv",
                    validation="",
                    test="",
                    # The share of the training rows held out for validation if validation is "",
                    # chosen by a hash of the texts.
                    validation_share=0.1,
                    # If the extensions do not show the format: kind="csv", "tsv" (tabs, no quotes),
                    # "jsonl" or "parquet". For files without a header: header=False, and columns
                    # by number, "0", "1", ...; for CSV with semicolons: delimiter=";"; for a table
                    # with tabs and quotes: kind="csv", delimiter="\t".
                    form=dict(kind="auto", header=True),
                    # The columns; second="" for single texts, "auto" to detect them.
                    first="auto",
                    second="auto",
                    label="auto",
                    # If a row can have any number of labels: the separator between them ("|"); or
                    # label="" above if every label has a column of its name, with 0 and 1. Such
                    # labels must be given below.
                    separator="",
                    # The labels as written in the files, in quotes even if they are digits; () to
                    # predict numbers, ("auto",) to detect labels or numbers, ("classes",) to make
                    # every value a class.
                    labels=("auto",),
                    # The labels of rows to skip: ("-",) for SNLI, ("",) for rows without a label.
                    skip_labels=(),
                    # The column that names rows in predictions; "" counts them from 0.
                    index="",
                ),
                # () for accuracy, or the usual metric for several labels or numbers. The first one
                # chooses the best checkpoint. Available for classes: accuracy, matthews, macro_f1
                # and, with two classes, f1 of the second; for several labels: micro_f1, macro_f1
                # and exact_match; for numbers: pearson and spearman.
                metrics=(),
            ),
            # The maximum number of tokens of a text; longer texts are truncated.
            max_length=128,
        )
    )
