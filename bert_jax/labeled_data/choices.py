"""Read multiple-choice examples and convert them to features.

An example is a context with several endings, one of which is correct (SWAG, Zellers et al. 2018).
Each choice becomes a separate sequence, as in section 4.4 of Devlin et al. 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bert_jax.labeled_data.delimited import TableFormat, check_columns, check_no_header
from bert_jax.labeled_data.features import (
    Features,
    Ids,
    build_sequences,
    check_max_length,
    encode_in_batches,
    id_array,
    log_truncation,
    truncate_pair,
)
from bert_jax.labeled_data.files import Split, check_ids, check_paths, split_path
from bert_jax.labeled_data.labels import (
    check_label_set,
    check_labels,
    check_skipped,
    is_label,
    label_numbers,
)
from bert_jax.labeled_data.tables import Skip, read_table
from bert_jax.local_paths import PathOrUrl
from bert_jax.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChoiceFiles:
    """The files and columns of a multiple-choice task.

    Columns are specified by name or number. The items of a JSON array are columns too, with names
    such as "choices.0" and "choices.1".

    Attributes:
      train: the training file or "tfds:NAME:SPLIT", or "" if there is none.
      validation: the validation file or "tfds:NAME:SPLIT", or "" if there is none.
      test: the test file or "tfds:NAME:SPLIT", or "" if there is none.
      form: the format that all files share.
      context: the column that contains the first segment.
      beginning: the column with the text that precedes every ending, or "" if there is none.
      endings: the columns that contain the endings.
      label: the column that specifies the correct choice.
      index: the ID column, or "" to number the rows from 0.
      labels: the label for each ending, in order. The default, (), means "0", "1", ...
      skip_labels: labels whose rows are skipped; "" stands for rows without a label.
    """

    train: PathOrUrl = ""
    validation: PathOrUrl = ""
    test: PathOrUrl = ""
    form: TableFormat = TableFormat()
    context: str = "context"
    beginning: str = ""
    endings: tuple[str, ...] = ()
    label: str = "label"
    index: str = ""
    labels: tuple[str, ...] = ()
    skip_labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_paths(self.train, self.validation, self.test)
        check_label_set(self.labels)
        if not self.context:
            raise ValueError("context is empty. Set it to the column that contains the context")
        if len(set(self.endings)) < max(2, len(self.endings)):
            raise ValueError(f"endings={self.endings!r}: expected at least two distinct columns")
        endings = {f"endings[{number}]": name for number, name in enumerate(self.endings)}
        texts = {"context": self.context, "beginning": self.beginning}
        check_columns(self.form, texts | endings | {"label": self.label})
        if self.labels and len(self.labels) != len(self.endings):
            raise ValueError(
                f"there are {len(self.labels)} labels for {len(self.endings)} endings. Specify "
                "one label per ending"
            )
        check_skipped(self.skip_labels, self.choice_labels)

    @property
    def choice_labels(self) -> tuple[str, ...]:
        """The value that stands for each ending in the label column."""
        return self.labels or tuple(map(str, range(len(self.endings))))


@dataclass(frozen=True)
class ChoiceExamples:
    """Multiple-choice examples.

    Attributes:
      contexts: [examples] the first segment of each example.
      choices: [examples][endings] the second segments, one for each ending.
      labels: [examples] the labels as written in the file, or None if they were not read.
      ids: [examples] the ID of each example.
      locations: [examples] "file:line".
    """

    contexts: list[str]
    choices: list[list[str]]
    labels: list[str] | None
    ids: list[str]
    locations: list[str]

    def __len__(self) -> int:
        return len(self.contexts)


def swag_files(directory: str) -> ChoiceFiles:
    """Describe the published SWAG files, in which each choice is a pair (sent1, sent2 + ending)."""
    return ChoiceFiles(
        train=f"{directory}/train.csv",
        validation=f"{directory}/val.csv",
        test=f"{directory}/test.csv",
        form=TableFormat(kind="csv"),
        context="sent1",
        beginning="sent2",
        endings=tuple(f"ending{choice}" for choice in range(4)),
    )


def read_choices(files: ChoiceFiles, split: Split, *, labeled: bool) -> ChoiceExamples:
    """Read the examples in a split.

    Args:
        files: the task's files.
        split: the split to read.
        labeled: whether to read and check labels.

    Raises:
        ValueError: `read_table`, `check_ids` or `check_no_header` rejects the file, or a label is
            not one of `files.choice_labels`. The message gives the file, line and value.
    """
    texts = [files.context, *([files.beginning] if files.beginning else []), *files.endings]
    scalars = [*([files.label] if labeled else []), *([files.index] if files.index else [])]
    path = split_path(files, split)
    skip = Skip(files.label, files.skip_labels) if labeled and files.skip_labels else None
    columns, locations, numbers = read_table(path, files.form, texts, scalars, skip=skip)
    labels = columns[files.label] if labeled else None
    if labels is not None:
        check_labels(labels, locations, files.choice_labels, header=files.form.header)
    else:
        check_no_header(
            path, files.form, files.label, lambda cell: is_label(cell, files.choice_labels)
        )
    choices = list(map(list, zip(*(columns[name] for name in files.endings), strict=True)))
    if files.beginning:
        choices = [
            [f"{beginning} {ending}" for ending in endings]
            for beginning, endings in zip(columns[files.beginning], choices, strict=True)
        ]
    ids = columns[files.index] if files.index else list(map(str, numbers))
    check_ids(ids, locations, split, "\r\n")
    return ChoiceExamples(
        contexts=columns[files.context],
        choices=choices,
        labels=labels,
        ids=ids,
        locations=locations,
    )


def choice_features(
    examples: ChoiceExamples, tokenizer: Tokenizer, max_length: int, labels: Sequence[str]
) -> Features:
    """Build features with one sequence per choice, consisting of the context and that choice.

    If the examples have labels, the target "labels" is the int32 index of the correct choice.

    Args:
        examples: the examples to convert.
        tokenizer: the model's tokenizer.
        max_length: the maximum number of tokens in a sequence, including special tokens. Longer
            pairs are truncated by removing tokens from the longer segment.
        labels: the label for each choice, in order.

    Raises:
        ValueError: an example does not have as many choices as there are labels, or a label is not
            one of `labels`.
    """
    check_max_length(max_length, tokenizer.specials_of_pair)
    budget = max_length - tokenizer.specials_of_pair
    if examples.labels is not None:
        check_labels(examples.labels, examples.locations, labels)
    for location, choices in zip(examples.locations, examples.choices, strict=True):
        if len(choices) != len(labels):
            raise ValueError(
                f"{location}: the example has {len(choices)} choices, but there are "
                f"{len(labels)} labels"
            )
    contexts = encode_in_batches(tokenizer, examples.contexts)
    endings = encode_in_batches(tokenizer, [x for choices in examples.choices for x in choices])
    firsts: list[Ids] = []
    seconds: list[Ids | None] = []
    num_truncated = 0
    for context, choices in zip(contexts, examples.choices, strict=True):
        encoded = [next(endings) for _ in choices]
        num_truncated += len(context) + max(map(len, encoded)) > budget
        for ending in encoded:
            first, second = truncate_pair(context, ending, budget)
            firsts.append(id_array(first))
            seconds.append(id_array(second))
    log_truncation(num_truncated, len(examples), max_length, examples.locations)
    return Features(
        build_sequences(tokenizer, firsts, seconds),
        {} if examples.labels is None else {"labels": label_numbers(examples.labels, labels)},
        sequences_per_example=len(labels),
    )
