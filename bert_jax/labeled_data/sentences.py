"""Read labeled sentences and sentence pairs, and convert them to features."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

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
from bert_jax.labeled_data.files import Split, check_ids, check_paths, is_held_out, split_path
from bert_jax.labeled_data.labels import (
    check_label_set,
    check_labels,
    check_skipped,
    is_label,
    is_label_cell,
    label_indicators,
    label_numbers,
    label_sets_in_cells,
    label_sets_in_columns,
)
from bert_jax.labeled_data.tables import Skip, Table, read_table
from bert_jax.local_paths import PathOrUrl
from bert_jax.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

AUTO = "auto"
DETECT_LABELS, DETECT_CLASSES = (AUTO,), ("classes",)


@dataclass(frozen=True)
class SentenceFiles:
    """The files and columns for a task on sentences or sentence pairs.

    Columns are specified by name or number. To detect them from the file's content, set `first`,
    `second` and `label` to "auto", and `labels` to ("auto",).

    Files in which an example may have several labels or none come in two formats. If a single
    column contains all of an example's labels, set `separator`. If there is one column per label,
    set `label` to ""; each column must be named after its label and contain 1 (or true) for
    examples that have the label and 0 (or false) for the rest.

    Attributes:
      train: the training file or "tfds:NAME:SPLIT", or "" if there is none.
      validation: the validation file or "tfds:NAME:SPLIT", or "" if there is none.
      test: the test file or "tfds:NAME:SPLIT", or "" if there is none.
      form: the format that all files share.
      first: the column that contains the (first) sentence.
      second: the column that contains the second sentence, or "" for single sentences.
      label: the label column, or "" if each label has its own column.
      separator: the separator between several labels in the label column. If the column contains
        JSON arrays, any character will do.
      index: the ID column, or "" to number the rows from 0.
      labels: the labels as they appear in the files, () for regression, or ("classes",) to detect
        the labels and treat every value as a class, even numbers.
      label_names: the names to display for the labels, or () to display the labels themselves.
      skip_labels: labels whose rows are skipped, such as ("-",) for SNLI; "" stands for rows
        without a label.
      validation_share: the fraction of the rows in `train` to hold out for validation if
        `validation` is "", at least 0 and less than 1. Rows are selected by a hash of their texts.
    """

    train: PathOrUrl = ""
    validation: PathOrUrl = ""
    test: PathOrUrl = ""
    form: TableFormat = TableFormat()
    first: str = "sentence"
    second: str = ""
    label: str = "label"
    separator: str = ""
    index: str = ""
    labels: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()
    skip_labels: tuple[str, ...] = ()
    validation_share: float = 0.0

    def __post_init__(self) -> None:
        check_paths(self.train, self.validation, self.test)
        if not self.needs_label_detection:
            check_label_set(self.labels, self.label_names)
        elif self.is_multi_label or self.label_names:
            raise ValueError(
                f"labels={self.labels}: labels cannot be detected when label_names is set or rows "
                "have multiple labels. List them as a tuple of strings"
            )
        self._check_skipped()
        if not 0.0 <= self.validation_share < 1.0:
            raise ValueError(
                f"validation_share={self.validation_share}: expected at least 0 and less than 1, "
                "such as 0.1"
            )
        if not self.first:
            raise ValueError(
                "first is empty. Set it to the column that contains the (first) sentence"
            )
        names = [self.label] if self.label else self.labels
        label_columns = {"label" if self.label else f"label {name!r}": name for name in names}
        columns = {"first": self.first, "second": self.second} | label_columns
        check_columns(self.form, {key: name for key, name in columns.items() if name != AUTO})
        if self.is_multi_label and not self.labels:
            raise ValueError(
                "labels=(): examples may have several labels, so all labels must be listed here"
            )
        if self.separator and not self.label:
            raise ValueError(
                f"separator={self.separator!r}, but label=''. Set label to the column that "
                "contains the labels, or separator='' if each label has a column"
            )
        if self.separator and any(self.separator in label for label in self.labels):
            raise ValueError(
                f"separator={self.separator!r}: a label contains the separator: {self.labels}"
            )

    def _check_skipped(self) -> None:
        if self.skip_labels and not self.label:
            raise ValueError(
                f"skip_labels={self.skip_labels}: rows are skipped based on the label column, but "
                "label='' means that there is none. Set skip_labels=()"
            )
        check_skipped(self.skip_labels, self.labels)

    @property
    def needs_label_detection(self) -> bool:
        """Whether the labels must be detected."""
        return self.labels in (DETECT_LABELS, DETECT_CLASSES)

    @property
    def needs_detection(self) -> bool:
        """Whether some columns or labels must be detected before the files are read."""
        return self.needs_label_detection or AUTO in (self.first, self.second, self.label)

    def source_of(self, split: Split) -> Split:
        """Return the split whose file contains the rows for the given split.

        For the validation set, this is "train" if part of the training file is held out.
        """
        held_out = self.validation_share and not self.validation
        return "train" if held_out and split == "validation" else split

    @property
    def is_multi_label(self) -> bool:
        """Whether an example may have several labels or none."""
        return bool(self.separator) or not self.label


@dataclass(frozen=True)
class SentenceExamples:
    """Sentences or sentence pairs from a file.

    Attributes:
      firsts: [examples] first sentences.
      seconds: [examples] second sentences, or None if examples are single sentences.
      labels: [examples] labels as written in the file, or None if they were not read or are sets.
      ids: [examples] the ID of each example.
      locations: [examples] "file:line".
      label_sets: [examples] sets of labels, or None if every example has exactly one label.
    """

    firsts: list[str]
    seconds: list[str] | None
    labels: list[str] | None
    ids: list[str]
    locations: list[str]
    label_sets: list[frozenset[str]] | None = None

    def __len__(self) -> int:
        return len(self.firsts)


def read_sentences(files: SentenceFiles, split: Split, *, labeled: bool) -> SentenceExamples:
    """Read the examples in a split.

    Args:
        files: the task's files, in which all columns and labels must already be set.
        split: the split to read.
        labeled: whether to read and check labels.

    Raises:
        ValueError: `read_table`, `check_ids` or `check_no_header` rejects the file, a label is not
            one of `files.labels`, or none or all of the rows are held out. If `files.labels` is
            empty, labels must be finite numbers. Columns or labels that have not been detected yet
            are also an error. The message gives the file, line and value.
    """
    if files.needs_detection:
        raise ValueError("first, second, label or labels is 'auto'. Call detect_columns first")
    source = files.source_of(split)
    path = split_path(files, source)
    texts = [files.first, *([files.second] if files.second else [])]
    label_columns = [files.label] if files.label else list(files.labels)
    scalars = [*(label_columns if labeled else []), *([files.index] if files.index else [])]
    arrays = label_columns if labeled and files.separator else []
    skip = None
    # If two splits share a file, log its skipped rows only once.
    if labeled and files.skip_labels:
        skip = Skip(files.label, files.skip_labels, logged=source == split)
    table = read_table(path, files.form, texts, scalars, arrays, skip)
    columns, locations, numbers = _rows_of_split(table, files, split, texts)
    labels = label_sets = None
    if labeled and files.is_multi_label:
        label_sets = _label_sets(files, columns, locations)
    elif labeled:
        labels = columns[files.label]
        check_labels(labels, locations, files.labels, header=files.form.header)
    else:
        check_no_header(path, files.form, label_columns[0], lambda cell: _is_label(files, cell))
    ids = columns[files.index] if files.index else list(map(str, numbers))
    check_ids(ids, locations, split, "\t\r\n")
    return SentenceExamples(
        firsts=columns[files.first],
        seconds=columns[files.second] if files.second else None,
        labels=labels,
        ids=ids,
        locations=locations,
        label_sets=label_sets,
    )


def _rows_of_split(table: Table, files: SentenceFiles, split: Split, texts: Sequence[str]) -> Table:
    """Return all rows of a table, or only the split's rows if train and validation share a file."""
    if split == "test" or files.validation or not files.validation_share:
        return table
    held_out, share = split == "validation", files.validation_share
    rows = zip(*(table.columns[name] for name in texts), strict=True)
    kept = [number for number, row in enumerate(rows) if is_held_out(row, share) == held_out]
    total = len(table.locations)
    if not kept:
        raise ValueError(
            f"{files.train}: validation_share={share} leaves none of its {total:,} rows for "
            f"{'validation' if held_out else 'training'}. Change it, or specify a validation file"
        )
    if held_out:
        logger.info(
            "%s: %s of %s rows are held out for validation, chosen by a hash of their texts "
            "(validation_share=%s)",
            *(files.train, f"{len(kept):,}", f"{total:,}", share),
        )
    columns = {name: [cells[i] for i in kept] for name, cells in table.columns.items()}
    return Table(columns, [table.locations[i] for i in kept], [table.numbers[i] for i in kept])


def _is_label(files: SentenceFiles, cell: str) -> bool:
    if files.is_multi_label:
        return is_label_cell(cell, files.labels, files.separator)
    return is_label(cell, files.labels)


def _label_sets(
    files: SentenceFiles, columns: Mapping[str, list[str]], locations: Sequence[str]
) -> list[frozenset[str]]:
    if files.label:
        return label_sets_in_cells(columns[files.label], locations, files.labels, files.separator)
    return label_sets_in_columns({label: columns[label] for label in files.labels}, locations)


def sentence_features(
    examples: SentenceExamples, tokenizer: Tokenizer, max_length: int, labels: Sequence[str]
) -> Features:
    """Convert examples to features.

    Token and segment IDs are the same as those of `BertTokenizerFast(first, second,
    truncation=True, max_length=max_length)` in Hugging Face Transformers. If the examples have
    labels, the target "labels" is an int32 index into `labels`. It is a float32 number if `labels`
    is (), and float32 indicators [examples, labels] if an example may have multiple labels.

    Args:
        examples: the examples to convert.
        tokenizer: the model's tokenizer.
        max_length: the maximum number of tokens in a sequence, including special tokens. Longer
            pairs are truncated by removing tokens from the longer sentence.
        labels: the task's labels, or () for regression.

    Raises:
        ValueError: `max_length` is too small, or a label is not one of `labels`.
    """
    if examples.labels is not None:
        check_labels(examples.labels, examples.locations, labels)
    paired = examples.seconds is not None
    specials = tokenizer.specials_of_pair if paired else 2
    check_max_length(max_length, specials)
    budget, num_truncated = max_length - specials, 0
    firsts: list[Ids] = []
    seconds: list[Ids | None] = []
    # A single sentence is truncated like a pair whose second sentence is empty.
    others = (
        repeat([]) if (texts := examples.seconds) is None else encode_in_batches(tokenizer, texts)
    )
    for first, second in zip(encode_in_batches(tokenizer, examples.firsts), others, strict=False):
        num_truncated += len(first) + len(second) > budget
        kept_first, kept_second = truncate_pair(first, second, budget)
        firsts.append(id_array(kept_first))
        seconds.append(id_array(kept_second) if paired else None)
    log_truncation(num_truncated, len(firsts), max_length, examples.locations)
    targets = {}
    if examples.labels is not None:
        targets["labels"] = label_numbers(examples.labels, labels)
    if examples.label_sets is not None:
        targets["labels"] = label_indicators(examples.label_sets, labels)
    return Features(build_sequences(tokenizer, firsts, seconds), targets)
