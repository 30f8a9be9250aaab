r"""A table of your own: a class, several labels or a number for every text, or pair, of a file.

The columns of the texts and of the labels, and the labels, are found in the file and printed, where
they are not given here or on the command line; whatever could be meant in two ways is refused.
Without a validation file a tenth of the rows is held out to validate on.
Command:
    bert-jax finetune --config configs/finetune/table.py --init DIR --data reviews.csv
With files and columns named, and rows without a label skipped, as for SNLI's official files:
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
                    # .parquet; all but the last may be packed. test="..." is predicted at the end.
                    train="data/table/train.csv",
                    validation="",
                    test="",
                    # The share of the training rows that is validated on, and not trained on,
                    # while validation is "". It is chosen by a hash of the texts.
                    validation_share=0.1,
                    # Where the files' names do not say their kind: kind="csv", "tsv" (tabs, no
                    # quotes), "jsonl" or "parquet". Without a first line of names header=False,
                    # and columns go by number: "0", "1", ...; CSV with semicolons has
                    # delimiter=";", a table with tabs and quotes kind="csv", delimiter="\t".
                    form=dict(kind="auto", header=True),
                    # The columns; second="" for single texts. "auto" finds them.
                    first="auto",
                    second="auto",
                    label="auto",
                    # Where several labels may hold, or none: the separator between them ("|"); or
                    # label="" above if each has a column of its name, of 0 and 1. Such labels are
                    # given below.
                    separator="",
                    # The labels as they are in the files, in quotes also where they are digits;
                    # () predicts numbers, ("auto",) finds labels or numbers, ("classes",) makes a
                    # class of every value.
                    labels=("auto",),
                    # Rows with one of these labels are skipped: ("-",) in SNLI; ("",) skips rows
                    # without a label.
                    skip_labels=(),
                    # The column that names rows in predictions; "" counts them from 0.
                    index="",
                ),
                # () takes accuracy, or the metric that fits several labels or numbers. The first
                # one chooses the best checkpoint; for classes accuracy, matthews and macro_f1 (for
                # two also f1, of the second), for several labels micro_f1, macro_f1 and
                # exact_match, for numbers pearson and spearman.
                metrics=(),
            ),
            # The most tokens of a text; longer ones are cut.
            max_length=128,
        )
    )
