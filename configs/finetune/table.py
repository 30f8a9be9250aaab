r"""Your own table: predict a class, several labels or a number for each text or pair of texts.

The text and label columns and the labels are detected and printed, unless they are set here or on
the command line. Ambiguous files are rejected. If there is no validation file, 10% of the rows are
held out for validation.
Command:
    bert-jax finetune --config configs/finetune/table.py --init DIR --data reviews.csv
For SNLI's official files, with explicit files and columns, skipping unlabeled rows:
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
                    # .parquet file; the first three kinds may be compressed. At the end, the run
                    # writes predictions for the test file.
                    train="data/table/train.csv",
                    validation="",
                    test="",
                    # If validation is "", this fraction of the training rows is held out, chosen by
                    # a hash of the texts.
                    validation_share=0.1,
                    # If the extension does not show the format, set kind="csv", "tsv" (tabs without
                    # quotes), "jsonl" or "parquet". For files without a header, set header=False
                    # and use the numbers "0", "1", ... as column names. For CSV with semicolons,
                    # set delimiter=";"; for tables with tabs and quotes, kind="csv" and
                    # delimiter="\t".
                    form=dict(kind="auto", header=True),
                    # The column names; "auto" detects them. For single texts, set second="".
                    first="auto",
                    second="auto",
                    label="auto",
                    # If a row can have any number of labels, set the separator between them, such
                    # as "|". If instead each label has its own column with 0 or 1, set label=""
                    # above. In both cases, list the labels below.
                    separator="",
                    # The labels as written in the files, in quotes even if they are digits. Use ()
                    # to predict numbers, ("auto",) to detect labels or numbers, and ("classes",) to
                    # treat every value as a class.
                    labels=("auto",),
                    # Rows with these labels are skipped: ("-",) for SNLI, ("",) for unlabeled rows.
                    skip_labels=(),
                    # The column with the IDs for prediction files; "" numbers the rows from 0.
                    index="",
                ),
                # The first metric selects the best checkpoint; () uses the default. For classes,
                # the metrics are accuracy (the default), matthews, macro_f1 and, with two classes,
                # f1 for the second class. For several labels, they are micro_f1 (the default),
                # macro_f1 and exact_match. For numbers, they are pearson and spearman (the default
                # is both).
                metrics=(),
            ),
            # The maximum number of tokens per example; longer texts are truncated.
            max_length=128,
        )
    )
