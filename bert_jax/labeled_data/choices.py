"""Multiple choice: contexts with several endings, one of them right; files, examples, features.

Source: Zellers et al. 2018, SWAG; as sequences: Devlin et al. 2019, section 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
from bert_jax.labeled_data.files import Split, check_ids, check_paths, split_path
from bert_jax.labeled_data.labels import (
    check_label_set,
    check_labels,
    check_skipped,
    is_label,
    label_numbers,
)
from bert_jax.labeled_data.tables import Skip, read_table
from bert_jax.local_paths import LocalPath
from bert_jax.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChoiceFiles:
    """Where the examples of a task are: a file (or "tfds:NAME:SPLIT") a split, "" for none.

    Columns by name or number; those of a JSON list as "choices.0", "choices.1". context: the first
    segment. beginning: what every ending goes on from, "" for none. endings: a column a choice.
    labels: how the label column calls the endings in turn; () for "0", "1", ... skip_labels: labels
    of the rows to skip; "" for rows without a label.
    """

    train: LocalPath = ""
    validation: LocalPath = ""
    test: LocalPath = ""
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
            raise ValueError("context is empty; name its column")
        if len(set(self.endings)) < max(2, len(self.endings)):
            raise ValueError(f"endings is {self.endings!r}; expected two different columns or more")
        endings = {f"endings[{number}]": name for number, name in enumerate(self.endings)}
        texts = {"context": self.context, "beginning": self.beginning}
        check_columns(self.form, texts | endings | {"label": self.label})
        if self.labels and len(self.labels) != len(self.endings):
            raise ValueError(
                f"{len(self.labels)} labels for {len(self.endings)} endings; expected one each"
            )
        check_skipped(self.skip_labels, self.choice_labels)

    @property
    def choice_labels(self) -> tuple[str, ...]:
        """What the label column may hold, by ending."""
        return self.labels or tuple(map(str, range(len(self.endings))))


@dataclass(frozen=True)
class ChoiceExamples:
    """Contexts [examples] and their choices [examples][endings], second segments as they are read.

    labels: as in the file, None where they were not read. places: "file:line" of each.
    """

    contexts: list[str]
    choices: list[list[str]]
    labels: list[str] | None
    ids: list[str]
    places: list[str]

    def __len__(self) -> int:
        return len(self.contexts)


def swag_files(directory: str) -> ChoiceFiles:
    """SWAG as published: train.csv, val.csv, test.csv; each choice is (sent1, sent2 + ending)."""
    return ChoiceFiles(
        train=f"{directory}/train.csv",
        validation=f"{directory}/val.csv",
        test=f"{directory}/test.csv",
        form=TableFormat(kind="csv"),
        context="sent1",
        beginning="sent2",
        endings=tuple(f"ending{choice}" for choice in range(4)),
    )


def read_choices(files: ChoiceFiles, split: Split, *, labelled: bool) -> ChoiceExamples:
    """Reads the examples of a split; `labelled`, their labels too, and checks them.

    Raises:
        ValueError: as `read_table`, and for a label outside `files.choice_labels`, and as
            `check_ids` and `check_no_header`; names file, line and value.
    """
    texts = [files.context, *([files.beginning] if files.beginning else []), *files.endings]
    scalars = [*([files.label] if labelled else []), *([files.index] if files.index else [])]
    path = split_path(files, split)
    skip = Skip(files.label, files.skip_labels) if labelled and files.skip_labels else None
    columns, places, numbers = read_table(path, files.form, texts, scalars, skip=skip)
    labels = columns[files.label] if labelled else None
    if labels is not None:
        check_labels(labels, places, files.choice_labels, header=files.form.header)
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
    check_ids(ids, places, split, "\r\n")
    return ChoiceExamples(
        contexts=columns[files.context],
        choices=choices,
        labels=labels,
        ids=ids,
        places=places,
    )


def choice_features(
    examples: ChoiceExamples, tokenizer: Tokenizer, max_length: int, labels: Sequence[str]
) -> Features:
    """Features with a sequence a choice: the context and, cut longest first, the choice.

    Target "labels", int32 places of the right choices, if the examples have theirs. All examples
    have as many choices as there are `labels` (ValueError naming the one that has not).
    """
    check_max_length(max_length, tokenizer.specials_of_pair)
    room = max_length - tokenizer.specials_of_pair
    if examples.labels is not None:
        check_labels(examples.labels, examples.places, labels)
    for place, choices in zip(examples.places, examples.choices, strict=True):
        if len(choices) != len(labels):
            raise ValueError(f"{place}: {len(choices)} choices; expected {len(labels)}")
    contexts = encoded_by_parts(tokenizer, examples.contexts)
    endings = encoded_by_parts(tokenizer, [text for each in examples.choices for text in each])
    firsts: list[Ids] = []
    seconds: list[Ids | None] = []
    num_cut = 0
    for context, choices in zip(contexts, examples.choices, strict=True):
        own = [next(endings) for _ in choices]
        num_cut += len(context) + max(map(len, own)) > room
        for ending in own:
            first, second = cut_pair(context, ending, room)
            firsts.append(as_ids(first))
            seconds.append(as_ids(second))
    report_cut(num_cut, len(examples), max_length, examples.places)
    return Features(
        sequences_of(tokenizer, firsts, seconds),
        {} if examples.labels is None else {"labels": label_numbers(examples.labels, labels)},
        sequences_per_example=len(labels),
    )
