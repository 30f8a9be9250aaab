"""Define the GLUE tasks: their files, labels, metrics and submissions.

The tasks come from table 1 of Wang et al. 2019 (GLUE), and the primary metrics from section 4.1 of
Devlin et al. 2019. That paper leaves out WNLI and the diagnostic set AX, but a complete submission
requires them too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.files import write_file
from bert_jax.labeled_data.delimited import TableFormat, delimited_cells
from bert_jax.labeled_data.files import find_file, has_file
from bert_jax.labeled_data.labels import is_label
from bert_jax.labeled_data.sentences import SentenceFiles
from bert_jax.text.files import TFDS_PREFIX, is_tfds

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_MNLI = ("entailment", "neutral", "contradiction")
# Scores on STS-B range from 0 to this maximum.
_MAX_STSB_SCORE = 5.0
# The names of the submission, the file and the TFDS config for the diagnostic set, which is meant
# for MNLI models.
_AX, _AX_FILE, _AX_TFDS = "AX", "diagnostic.tsv", "ax"


@dataclass(frozen=True)
class GlueTask:
    """A GLUE task.

    Attributes:
      name: the official name.
      metrics: the metrics, in the order of the GLUE paper.
      primary: the metric that the BERT paper reports.
      first: the column that contains the first segment in the official files.
      second: the column that contains the second segment, or "" if there is none.
      label: the label column.
      tfds_config: the name of the config in TFDS.
      tfds_columns: the columns that contain the first and second segment in TFDS.
      labels: the labels used in files and submissions, or () for regression.
      label_names: the names of the labels in TFDS, or () if they are the same as `labels`.
      test_index: the ID column in the test files.
      train_columns: for training and validation files without a header, the column numbers of the
        first segment, the second segment and the label; None for files with a header.
      short_rows: whether train.tsv contains rows that are broken by line feeds.
      parts: the names of the two parts into which the validation and test sets are divided, or ()
        if they are not divided.
      has_diagnostic_set: whether GLUE's diagnostic set AX is one of the task's test sets.
    """

    name: str
    metrics: tuple[str, ...]
    primary: str
    first: str
    second: str
    label: str
    tfds_config: str
    tfds_columns: tuple[str, str]
    labels: tuple[str, ...] = _BINARY
    label_names: tuple[str, ...] = ()
    test_index: str = "index"
    train_columns: tuple[str, str, str] | None = None
    short_rows: bool = False
    parts: tuple[str, ...] = ()
    has_diagnostic_set: bool = False


class GlueFiles(NamedTuple):
    """The files that belong to a task.

    Attributes:
      train: the training set.
      validation: the validation sets, keyed by name.
      test: the test sets, keyed by the name of their submission. Test sets without a file are left
        out, since many copies of GLUE do not include the test sets.
    """

    train: SentenceFiles
    validation: dict[str, SentenceFiles]
    test: dict[str, SentenceFiles]


_PAIR = ("sentence1", "sentence2")
_TASKS = (
    GlueTask(
        "CoLA", ("matthews",), "matthews", "sentence", "", "label", "cola", ("sentence", ""),
        label_names=("unacceptable", "acceptable"), train_columns=("3", "", "1"),
    ),
    GlueTask(
        "SST-2", ("accuracy",), "accuracy", "sentence", "", "label", "sst2", ("sentence", ""),
        label_names=("negative", "positive"),
    ),
    GlueTask(
        "MRPC", ("accuracy", "f1"), "f1", "#1 String", "#2 String", "Quality", "mrpc", _PAIR,
        label_names=("not_equivalent", "equivalent"),
    ),
    GlueTask(
        "QQP", ("accuracy", "f1"), "f1", "question1", "question2", "is_duplicate", "qqp",
        ("question1", "question2"), label_names=("not_duplicate", "duplicate"), test_index="id",
        short_rows=True,
    ),
    GlueTask(
        "STS-B", ("pearson", "spearman"), "spearman", *_PAIR, "score", "stsb", _PAIR, labels=(),
    ),
    GlueTask(
        "MNLI", ("accuracy",), "accuracy", *_PAIR, "gold_label", "mnli", ("premise", "hypothesis"),
        labels=_MNLI, parts=("matched", "mismatched"), has_diagnostic_set=True,
    ),
    GlueTask(
        "QNLI", ("accuracy",), "accuracy", "question", "sentence", "label", "qnli",
        ("question", "sentence"), labels=_ENTAILMENT,
    ),
    GlueTask("RTE", ("accuracy",), "accuracy", *_PAIR, "label", "rte", _PAIR, labels=_ENTAILMENT),
    GlueTask(
        "WNLI", ("accuracy",), "accuracy", *_PAIR, "label", "wnli", _PAIR,
        label_names=("not_entailment", "entailment"),
    ),
)  # fmt: skip
GLUE_TASKS = {task.name: task for task in _TASKS}


def glue_task(name: str) -> GlueTask:
    """Look up a task by its official name, such as "SST-2".

    Raises:
      ValueError: there is no such task.
    """
    if name not in GLUE_TASKS:
        raise ValueError(f"unknown GLUE task {name!r}. Use one of {', '.join(GLUE_TASKS)}")
    return GLUE_TASKS[name]


def glue_files(task_name: str, source: str, tfds_data_dir: str = "") -> GlueFiles:
    """Find a task's files in its official directory or in TensorFlow Datasets.

    The validation set is called "validation"; MNLI has "validation_matched" and
    "validation_mismatched" instead. Test sets are named after their submissions, such as "CoLA",
    "MNLI-m" and "MNLI-mm". MNLI's test set "AX" is included if the directory contains
    diagnostic.tsv, and is the only test set in "tfds:glue/ax".

    Args:
      task_name: the task's official name.
      source: the task's own directory with train.tsv (files may be compressed, such as
        train.tsv.xz), or "tfds:glue/CONFIG[:VERSION]".
      tfds_data_dir: the directory where TensorFlow Datasets stores its data, or "" for its default
        directory.

    Raises:
      ValueError: the task is unknown, the TFDS config is unknown or belongs to another task, the
        directory contains another task's files, or `tfds_data_dir` is set although `source` is a
        directory.
    """
    task = glue_task(task_name)
    if is_tfds(source):
        return _tfds_files(task, source, tfds_data_dir)
    if tfds_data_dir:
        raise ValueError(
            f"tfds_data_dir={tfds_data_dir!r}: only supported for 'tfds:glue/...', but the files "
            f"of {task_name} are in {source!r}. Omit it"
        )
    return _directory_files(task, source)


def submission_names(task: GlueTask) -> tuple[str, ...]:
    """Return the submission names, without ".tsv", for the task's own test sets."""
    return (f"{task.name}-m", f"{task.name}-mm") if task.parts else (task.name,)


def _directory_files(task: GlueTask, directory: str) -> GlueFiles:
    columns: dict[str, Any] = {
        "first": task.first,
        "second": task.second,
        "label": task.label,
        "labels": task.labels,
        "label_names": task.label_names,
    }
    labeled_columns, form = dict(columns), TableFormat(kind="tsv")
    if task.train_columns is not None:
        form = TableFormat(kind="tsv", header=False)
        labeled_columns |= dict(zip(("first", "second", "label"), task.train_columns, strict=True))
    train_form = replace(form, short_rows="skip") if task.short_rows else form
    suffixes = _suffixes(task)
    tests = dict(zip(submission_names(task), (f"test{s}.tsv" for s in suffixes), strict=True))
    if task.has_diagnostic_set:
        tests[_AX] = _AX_FILE
    train = SentenceFiles(train=f"{directory}/train.tsv", form=train_form, **labeled_columns)
    _check_task(task, train)
    return GlueFiles(
        train=train,
        validation={
            f"validation{suffix}": SentenceFiles(
                validation=f"{directory}/dev{suffix}.tsv", form=form, **labeled_columns
            )
            for suffix in suffixes
        },
        test={
            name: SentenceFiles(test=path, index=task.test_index, **columns)
            for name, file in tests.items()
            if has_file(path := f"{directory}/{file}")
        },
    )


def _check_task(task: GlueTask, files: SentenceFiles) -> None:
    """Check that the training set, if there is one, begins with the task's columns."""
    if not has_file(files.train):
        return
    first = next(delimited_cells(find_file(files.train), files.form), None)
    if first is None:
        return
    (location, cells), columns = first, [files.first, files.second, files.label]
    columns = [column for column in columns if column]
    if files.form.header:
        matches = set(columns) <= set(cells)
        expected = f"has the columns {', '.join(map(repr, columns))}"
    else:
        matches = len(cells) > max(map(int, columns)) and is_label(
            cells[int(files.label)], files.labels
        )
        expected = f"has no header and a label in column {files.label}"
    if not matches:
        beginning = ", ".join(repr(cell[:40]) for cell in cells[:20])
        raise ValueError(
            f"{location}: this is not {task.name}'s train.tsv, which {expected}. The file begins "
            f"with {beginning}. Set glue.directory to the directory that contains {task.name}'s "
            "own files or, to train on other files, use --config table"
        )


def _suffixes(task: GlueTask) -> list[str]:
    return [f"_{part}" for part in task.parts] or [""]


def _tfds_files(task: GlueTask, source: str, data_dir: str) -> GlueFiles:
    configs = [task.tfds_config, *([_AX_TFDS] if task.has_diagnostic_set else [])]
    match = re.fullmatch(rf"{TFDS_PREFIX}glue/({'|'.join(configs)})(:\d+\.\d+\.\d+)?", source)
    if match is None:
        expected = " or ".join(f"{TFDS_PREFIX}glue/{config}" for config in configs)
        raise ValueError(
            f"{source!r} does not contain {task.name}. Use {expected}, without a split"
        )
    columns: dict[str, Any] = {
        "first": task.tfds_columns[0],
        "second": task.tfds_columns[1],
        "index": "idx",
        "form": TableFormat(tfds_data_dir=data_dir),
        "labels": task.label_names or task.labels,
    }
    suffixes = _suffixes(task)
    tests = dict(zip(submission_names(task), (f"test{s}" for s in suffixes), strict=True))
    if match[1] == _AX_TFDS:
        tests = {_AX: "test"}
    return GlueFiles(
        train=SentenceFiles(train=f"{source}:train", **columns),
        validation={
            f"validation{suffix}": SentenceFiles(
                validation=f"{source}:validation{suffix}", **columns
            )
            for suffix in suffixes
        },
        test={
            name: SentenceFiles(test=f"{source}:{split}", **columns)
            for name, split in tests.items()
        },
    )


def check_submission_ids(ids: Sequence[str], locations: Sequence[str]) -> None:
    """Check that a test set's IDs are distinct non-negative integers.

    Args:
      ids: [examples] the IDs.
      locations: [examples] "file:line".

    Raises:
      ValueError: an ID is negative, not an integer, or repeated. The message gives the file and
        line.
    """
    seen: dict[int, str] = {}
    for index, location in zip(ids, locations, strict=True):
        if not (index.isascii() and index.isdigit()):
            raise ValueError(f"{location}: index {index!r} is not a non-negative integer")
        if (first := seen.setdefault(int(index), location)) != location:
            raise ValueError(f"{location}: index {index!r} is also used by {first}")


def write_glue_submission(
    task: GlueTask, predictions: Sequence[float], ids: Sequence[str], file: Path
) -> None:
    """Write the predictions for a test set in the format that gluebenchmark.com accepts.

    Rows are sorted by ID, since TensorFlow Datasets orders them differently from the official
    files.

    Args:
      task: the task that the predictions are for.
      predictions: [examples] indices into `task.labels` or, for STS-B, numbers, which are clipped
        to the range from 0 to 5.
      ids: [examples] IDs that `check_submission_ids` has accepted.
      file: the file to write. It must be named after a submission, such as "CoLA.tsv" or
        "MNLI-m.tsv".

    Raises:
      ValueError: the file has the wrong name, there are no predictions, or a prediction is not the
        index of a label (for STS-B, not a finite number).
    """
    submissions = (*submission_names(task), *([_AX] if task.has_diagnostic_set else []))
    names = [f"{name}.tsv" for name in submissions]
    if file.name not in names:
        raise ValueError(
            f"{file}: a submission for {task.name} must be called {' or '.join(names)}"
        )
    if not len(predictions):
        raise ValueError(f"{file}: there are no predictions to write")
    rows = sorted(zip(map(int, ids), predictions, strict=True))
    lines = [f"{index}\t{_format_prediction(task, value, index)}\n" for index, value in rows]
    write_file(file, "index\tprediction\n" + "".join(lines))


def _format_prediction(task: GlueTask, value: float, index: int) -> str:
    if not task.labels:
        if not math.isfinite(value):
            raise ValueError(f"prediction {index} is {value}, not a finite number")
        return f"{min(max(float(value), 0.0), _MAX_STSB_SCORE):.6f}"
    if value != int(value) or not 0 <= value < len(task.labels):
        raise ValueError(
            f"prediction {index} is {value}, not an integer from 0 to {len(task.labels) - 1}"
        )
    return task.labels[int(value)]
