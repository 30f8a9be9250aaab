"""Sentences and pairs of sentences with a class or a number: files, examples, features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

from bert_jax.data.finetuning.encoding import Ids, as_ids, encoded_by_parts
from bert_jax.data.finetuning.features import Features, sequences_of
from bert_jax.data.finetuning.headers import check_no_header
from bert_jax.data.finetuning.ids import check_ids
from bert_jax.data.finetuning.label_sets import (
    is_label_cell,
    label_truths,
    sets_in_cells,
    sets_in_columns,
)
from bert_jax.data.finetuning.labels import check_label_set, check_labels, is_label, label_numbers
from bert_jax.data.finetuning.splits import Split, check_paths, split_path
from bert_jax.data.finetuning.table_format import TableFormat, check_columns
from bert_jax.data.finetuning.tables import read_table
from bert_jax.data.finetuning.truncation import check_max_length, cut_pair, report_cut
from bert_jax.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class SentenceFiles:
    """Where the examples of a task are: a file (or "tfds:NAME:SPLIT") a split, "" for none.

    form: of all files. first, second, label, index: columns, by name or number; second "" for
    single sentences, index "" for the number of the row from 0. labels: as they stand in the files,
    () for regression. label_names: how people call them, () for the same.

    Where several labels may hold, or none: separator, what stands between them in the label's
    column (any, where that holds JSON arrays); or label "": each label has a column of its own
    name, 1 (or true) where it holds, else 0 (or false).
    """

    train: str = ""
    validation: str = ""
    test: str = ""
    form: TableFormat = TableFormat()
    first: str = "sentence"
    second: str = ""
    label: str = "label"
    separator: str = ""
    index: str = ""
    labels: tuple[str, ...] = ()
    label_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_paths(self.train, self.validation, self.test)
        check_label_set(self.labels, self.label_names)
        if not self.first:
            raise ValueError("first is empty; name the column of the (first) sentence")
        of_labels = [self.label] if self.label else self.labels
        named = {"label" if self.label else f"label {name!r}": name for name in of_labels}
        check_columns(self.form, {"first": self.first, "second": self.second} | named)
        if self.several and not self.labels:
            raise ValueError("labels is (); where several may hold they must be named")
        if self.separator and not self.label:
            raise ValueError(
                f"separator is {self.separator!r} and label is '': name the column that holds the "
                "labels, or leave separator empty where each has a column of its own"
            )
        if self.separator and any(self.separator in label for label in self.labels):
            raise ValueError(f"a label holds the separator {self.separator!r}: {self.labels}")

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
    """Reads the examples of a split; `labelled`, their labels too, and checks them.

    Raises:
        ValueError: as `read_table`, and for a label outside `files.labels` (without them, one that
            is no finite number), and as `check_ids` and `check_no_header`; names file, line and
            value.
    """
    path = split_path(files, split)
    texts = [files.first, *([files.second] if files.second else [])]
    of_labels = [files.label] if files.label else list(files.labels)
    scalars = [*(of_labels if labelled else []), *([files.index] if files.index else [])]
    arrays = of_labels if labelled and files.separator else []
    columns, places, numbers = read_table(path, files.form, texts, scalars, arrays)
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
