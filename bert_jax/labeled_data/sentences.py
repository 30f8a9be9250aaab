"""Sentences and pairs of sentences with a class or a number: files, examples, features."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from bert_jax.labeled_data.delimited import TableFormat, check_columns, check_no_header
from bert_jax.labeled_data.features import (
    Features,
    Ids,
    as_ids,
    check_max_length,
    cut_pair,
    encoded_by_parts,
    report_cut,
    sequences_of,
)
from bert_jax.labeled_data.files import Split, check_ids, check_paths, is_held_out, split_path
from bert_jax.labeled_data.labels import (
    check_label_set,
    check_labels,
    check_skipped,
    is_label,
    is_label_cell,
    label_numbers,
    label_truths,
    sets_in_cells,
    sets_in_columns,
)
from bert_jax.labeled_data.tables import Skip, Table, read_table
from bert_jax.local_paths import LocalPath
from bert_jax.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

AUTO = "auto"
DETECT_LABELS, DETECT_CLASSES = (AUTO,), ("classes",)


@dataclass(frozen=True)
class SentenceFiles:
    """Where the examples of a task are: a file (or "tfds:NAME:SPLIT") a split, "" for none.

    form: of all files. first, second, label, index: columns, by name or number; second "" for
    single sentences, index "" for the number of the row from 0. labels: as they stand in the files,
    () for regression. label_names: how people call them, () for the same.

    first, second and label may be "auto", and labels ("auto",), for `detect_columns` to detect;
    labels ("classes",) makes every value a class, including numbers. skip_labels: labels of the
    rows to skip, ("-",) in SNLI; "" for rows without a label. validation_share: share of the rows
    of `train` that are held out for validation if `validation` is "", see `is_held_out`; 0 for
    none.

    Where several labels may hold, or none: separator, what stands between them in the label's
    column (any, where that holds JSON arrays); or label "": each label has a column of its own
    name, 1 (or true) where it holds, else 0 (or false).
    """

    train: LocalPath = ""
    validation: LocalPath = ""
    test: LocalPath = ""
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
        if not self.labels_detected:
            check_label_set(self.labels, self.label_names)
        elif self.several or self.label_names:
            raise ValueError(
                f"labels={self.labels}: labels cannot be detected with label_names or with several "
                "labels per row. Give them as a tuple of strings"
            )
        self._check_skipped()
        if not 0.0 <= self.validation_share < 1.0:
            raise ValueError(
                f"validation_share={self.validation_share}: expected 0 <= share < 1, such as 0.1"
            )
        if not self.first:
            raise ValueError("first is empty; name the column of the (first) sentence")
        of_labels = [self.label] if self.label else self.labels
        named = {"label" if self.label else f"label {name!r}": name for name in of_labels}
        columns = {"first": self.first, "second": self.second} | named
        given = {what: name for what, name in columns.items() if name != AUTO}
        check_columns(self.form, given)
        if self.several and not self.labels:
            raise ValueError("labels is (); where several may hold they must be named")
        if self.separator and not self.label:
            raise ValueError(
                f"separator is {self.separator!r} and label is '': name the column that holds the "
                "labels, or leave separator empty where each has a column of its own"
            )
        if self.separator and any(self.separator in label for label in self.labels):
            raise ValueError(f"a label holds the separator {self.separator!r}: {self.labels}")

    def _check_skipped(self) -> None:
        if self.skip_labels and not self.label:
            raise ValueError(
                f"skip_labels={self.skip_labels}: rows are skipped by the label column's value, "
                "but label is ''. Leave skip_labels empty"
            )
        check_skipped(self.skip_labels, self.labels)

    @property
    def labels_detected(self) -> bool:
        """Whether the labels have to be detected."""
        return self.labels in (DETECT_LABELS, DETECT_CLASSES)

    @property
    def detected(self) -> bool:
        """Whether columns or labels have to be detected before the files are read."""
        return self.labels_detected or AUTO in (self.first, self.second, self.label)

    def source_of(self, split: Split) -> Split:
        """Return the split whose file has a split's rows: train if a share of it is held out."""
        held_out = self.validation_share and not self.validation
        return "train" if held_out and split == "validation" else split

    @property
    def several(self) -> bool:
        """Whether several labels may hold for an example, or none."""
        return bool(self.separator) or not self.label


@dataclass(frozen=True)
class SentenceExamples:
    """Sentences as they stand in a file, the second ones None without pairs.

    labels: as in the file, None where they were not read. places: "file:line" of each. label_sets:
    in place of labels where several may hold.
    """

    firsts: list[str]
    seconds: list[str] | None
    labels: list[str] | None
    ids: list[str]
    places: list[str]
    label_sets: list[frozenset[str]] | None = None

    def __len__(self) -> int:
        return len(self.firsts)


def read_sentences(files: SentenceFiles, split: Split, *, labelled: bool) -> SentenceExamples:
    """Read the examples of a split, with their labels if `labelled`, and check them.

    Raises:
        ValueError: as `read_table`, and for a label outside `files.labels` (without them, one that
            is no finite number), and as `check_ids` and `check_no_header`; names file, line and
            value. Also if `files` has columns to detect or holds out none or all of the rows.
    """
    if files.detected:
        raise ValueError("first, second, label or labels are 'auto': call detect_columns first")
    source = files.source_of(split)
    path = split_path(files, source)
    texts = [files.first, *([files.second] if files.second else [])]
    of_labels = [files.label] if files.label else list(files.labels)
    scalars = [*(of_labels if labelled else []), *([files.index] if files.index else [])]
    arrays = of_labels if labelled and files.separator else []
    skip = None
    if labelled and files.skip_labels:  # if validation shares the file, train logs the rows
        skip = Skip(files.label, files.skip_labels, logged=source == split)
    table = read_table(path, files.form, texts, scalars, arrays, skip)
    columns, places, numbers = _of_split(table, files, split, texts)
    labels = label_sets = None
    if labelled and files.several:
        label_sets = _label_sets(files, columns, places)
    elif labelled:
        labels = columns[files.label]
        check_labels(labels, places, files.labels, header=files.form.header)
    else:
        check_no_header(path, files.form, of_labels[0], lambda cell: _is_label(files, cell))
    ids = columns[files.index] if files.index else list(map(str, numbers))
    check_ids(ids, places, split, "\t\r\n")
    return SentenceExamples(
        firsts=columns[files.first],
        seconds=columns[files.second] if files.second else None,
        labels=labels,
        ids=ids,
        places=places,
        label_sets=label_sets,
    )


def _of_split(table: Table, files: SentenceFiles, split: Split, texts: Sequence[str]) -> Table:
    """Return a split's rows: a part of a file shared by train and validation, else all rows."""
    if split == "test" or files.validation or not files.validation_share:
        return table
    wanted, share = split == "validation", files.validation_share
    rows = zip(*(table.columns[name] for name in texts), strict=True)
    kept = [number for number, row in enumerate(rows) if is_held_out(row, share) == wanted]
    total = len(table.places)
    if not kept:
        raise ValueError(
            f"{files.train}: validation_share={share} leaves none of its {total:,} rows to "
            f"{'validate' if wanted else 'train'} on. Set another share, or give a validation file"
        )
    if wanted:
        logger.info(
            "%s: %s of %s rows are held out for validation, chosen by a hash of their texts "
            "(validation_share=%s)",
            *(files.train, f"{len(kept):,}", f"{total:,}", share),
        )
    columns = {name: [cells[i] for i in kept] for name, cells in table.columns.items()}
    return Table(columns, [table.places[i] for i in kept], [table.numbers[i] for i in kept])


def _is_label(files: SentenceFiles, cell: str) -> bool:
    if files.several:
        return is_label_cell(cell, files.labels, files.separator)
    return is_label(cell, files.labels)


def _label_sets(
    files: SentenceFiles, columns: Mapping[str, list[str]], places: Sequence[str]
) -> list[frozenset[str]]:
    if files.label:
        return sets_in_cells(columns[files.label], places, files.labels, files.separator)
    return sets_in_columns({label: columns[label] for label in files.labels}, places)


def sentence_features(
    examples: SentenceExamples, tokenizer: Tokenizer, max_length: int, labels: Sequence[str]
) -> Features:
    """Features of at most `max_length` tokens; pairs are cut longest first, single ones at the end.

    Token and segment ids are those of Hugging Face's `BertTokenizerFast(first, second,
    truncation=True, max_length=max_length)`. Target "labels" if the examples have theirs: int32
    places in `labels`, float32 numbers where that is (); where several may hold float32
    [examples, labels], 1 where one does.
    """
    if examples.labels is not None:
        check_labels(examples.labels, examples.places, labels)
    paired = examples.seconds is not None
    specials = tokenizer.specials_of_pair if paired else 2
    check_max_length(max_length, specials)
    room, num_cut = max_length - specials, 0
    firsts: list[Ids] = []
    seconds: list[Ids | None] = []
    # A single sentence is cut as a pair whose second is empty.
    others = (
        repeat([]) if (texts := examples.seconds) is None else encoded_by_parts(tokenizer, texts)
    )
    for first, second in zip(encoded_by_parts(tokenizer, examples.firsts), others, strict=False):
        num_cut += len(first) + len(second) > room
        kept, beside = cut_pair(first, second, room)
        firsts.append(as_ids(kept))
        seconds.append(as_ids(beside) if paired else None)
    report_cut(num_cut, len(firsts), max_length, examples.places)
    targets = {}
    if examples.labels is not None:
        targets["labels"] = label_numbers(examples.labels, labels)
    if examples.label_sets is not None:
        targets["labels"] = label_truths(examples.label_sets, labels)
    return Features(sequences_of(tokenizer, firsts, seconds), targets)
