r"""Your own table: predict a class, several labels or a number for each text or pair of texts.

The text columns, the label column and the labels are detected automatically and printed, unless you
set them here or on the command line. Ambiguous files are rejected. If there is no validation file,
10% of the rows are held out for validation.
Command:
    bert-jax finetune --config configs/finetune/table.py --init DIR --data reviews.csv
For SNLI's official files, with explicit paths and column names (unlabeled rows are skipped):
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
                    # The training file (--data on the command line) is a .csv, .tsv, .jsonl or
                    # .parquet file; the first three formats may be compressed. When training ends,
                    # predictions for the test file are written.
                    train="data/table/train.csv",
                    validation="",
                    test="",
                    # If validation is "", this fraction of the training rows is held out for
                    # validation. A hash of the texts selects them.
                    validation_share=0.1,
                    # If the format is not clear from the extension, set kind="csv", "tsv" (tabs
                    # without quotes), "jsonl" or "parquet". For files without a header, set
                    # header=False and use the numbers "0", "1", ... as column names. For
                    # semicolon-separated files, set delimiter=";"; for tab-separated files with
                    # quotes, set kind="csv" and delimiter="\t".
                    form=dict(kind="auto", header=True),
                    # The column names; "auto" detects them. For single texts, set second="".
                    first="auto",
                    second="auto",
                    label="auto",
                    # If a row can have any number of labels, set the separator between them, such
                    # as "|". If each label has its own column of zeros and ones instead, set
                    # label="" above. In either case, list the labels below.
                    separator="",
                    # The labels as written in the files, in quotes even if they are numbers. Use ()
                    # to predict numbers, ("auto",) to detect labels or numbers, and ("classes",) to
                    # treat every value as a class.
                    labels=("auto",),
                    # Rows with these labels are skipped: ("-",) for SNLI, ("",) for unlabeled rows.
                    skip_labels=(),
                    # The column that contains the IDs to write to prediction files; with "", rows
                    # are numbered from 0.
                    index="",
                ),
                # The first metric selects the best checkpoint; () stands for the default. The
                # metrics for classes are accuracy (the default), matthews, macro_f1 and, if there
                # are two classes, f1 for the second class. The metrics for several labels per row
                # are micro_f1 (the default), macro_f1 and exact_match. The metrics for numbers are
                # pearson and spearman (both by default).
                metrics=(),
            ),
            # The maximum number of tokens per example; longer texts are truncated.
            max_length=128,
        )
    )
