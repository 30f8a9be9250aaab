"""The tasks of GLUE: their files, labels, metrics and submissions.

Source: Wang et al. 2019, GLUE, table 1; Devlin et al. 2019, section 4.1, for the primary metrics
(it leaves WNLI out, and so the diagnostic set AX, which a complete submission wants too).
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
_LARGEST_SCORE = 5.0  # of STS-B; the least is 0
# What models of MNLI are asked besides: the submission, the file, its place in TFDS.
_AX, _AX_FILE, _AX_TFDS = "AX", "diagnostic.tsv", "ax"


@dataclass(frozen=True)
class GlueTask:
    """One task. Columns are those of the official files; label_names and classes as in TFDS.

    metrics: in the order of the GLUE paper. primary: the one the BERT paper reports. labels: in
    the files and in submissions, () for regression. test_index: column of the test files.
    train_columns: first, second and label by number where train and dev files have no header.
    tfds_columns: first and second in TFDS. parts: of validation and test sets that come in two.
    diagnosed: whether GLUE's diagnostic set, AX, is a test set of it.
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
    short_rows: bool = False  # whether train.tsv has rows broken by line feeds
    parts: tuple[str, ...] = ()
    diagnosed: bool = False


class GlueFiles(NamedTuple):
    """Files of a task: `train`; those of `validation` by name; those of `test` by submission.

    A test set is left out where its file is not there: many copies of GLUE come without.
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
        labels=_MNLI, parts=("matched", "mismatched"), diagnosed=True,
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
    """The task of an official name, such as "SST-2". ValueError for another."""
    if name not in GLUE_TASKS:
        raise ValueError(
            f"no GLUE task is called {name!r}; expected one of {', '.join(GLUE_TASKS)}"
        )
    return GLUE_TASKS[name]


def glue_files(task_name: str, where: str, tfds_data_dir: str = "") -> GlueFiles:
    """The files of a task in its official directory, or in TensorFlow Datasets.

    where: the task's own directory, with train.tsv in it (files may be packed: train.tsv.xz), or
    "tfds:glue/CONFIG[:VERSION]", kept in tfds_data_dir ("" for TFDS's default). Validation sets are
    called "validation", MNLI's "validation_matched" and "validation_mismatched"; test sets as the
    submissions of their predictions, "CoLA", "MNLI-m", "MNLI-mm". MNLI's "AX" is in a directory
    with diagnostic.tsv in it, and is all there is in "tfds:glue/ax". ValueError: unknown or
    another task's TFDS config; tfds_data_dir with a directory.
    """
    task = glue_task(task_name)
    if is_tfds(where):
        return _tfds_files(task, where, tfds_data_dir)
    if tfds_data_dir:
        raise ValueError(
            f"tfds_data_dir={tfds_data_dir!r} is for 'tfds:glue/...', and the files of {task_name} "
            f"are in {where!r}: leave it out"
        )
    return _directory_files(task, where)


def submission_names(task: GlueTask) -> tuple[str, ...]:
    """What the submissions of its own test sets are called, without ".tsv"."""
    return (f"{task.name}-m", f"{task.name}-mm") if task.parts else (task.name,)


def _directory_files(task: GlueTask, directory: str) -> GlueFiles:
    columns: dict[str, Any] = {
        "first": task.first,
        "second": task.second,
        "label": task.label,
        "labels": task.labels,
        "label_names": task.label_names,
    }
    learning, form = dict(columns), TableFormat(kind="tsv")
    if task.train_columns is not None:
        form = TableFormat(kind="tsv", header=False)
        learning |= dict(zip(("first", "second", "label"), task.train_columns, strict=True))
    train_form = replace(form, short_rows="skip") if task.short_rows else form
    suffixes = _suffixes(task)
    tests = dict(zip(submission_names(task), (f"test{each}.tsv" for each in suffixes), strict=True))
    if task.diagnosed:
        tests[_AX] = _AX_FILE
    train = SentenceFiles(train=f"{directory}/train.tsv", form=train_form, **learning)
    _check_is_of(task, train)
    return GlueFiles(
        train=train,
        validation={
            f"validation{suffix}": SentenceFiles(
                validation=f"{directory}/dev{suffix}.tsv", form=form, **learning
            )
            for suffix in suffixes
        },
        test={
            name: SentenceFiles(test=path, index=task.test_index, **columns)
            for name, file in tests.items()
            if has_file(path := f"{directory}/{file}")
        },
    )


def _check_is_of(task: GlueTask, files: SentenceFiles) -> None:
    """Refuses the training set of another task, if there is one, by its first line."""
    if not has_file(files.train):
        return
    first = next(delimited_cells(find_file(files.train), files.form), None)
    if first is None:
        return
    (place, cells), wanted = first, [files.first, files.second, files.label]
    wanted = [column for column in wanted if column]
    if files.form.header:
        fits = set(wanted) <= set(cells)
        told = f"columns {', '.join(map(repr, wanted))}"
    else:
        fits = len(cells) > max(map(int, wanted)) and is_label(
            cells[int(files.label)], files.labels
        )
        told = f"no names of columns, and column {files.label} is a label"
    if not fits:
        found = ", ".join(repr(cell[:40]) for cell in cells[:20])
        raise ValueError(
            f"{place}: not {task.name}'s train.tsv, which has {told}; this one begins with {found}"
            f". glue.directory is the folder of {task.name}'s own files; files of your own are "
            "learned from by configs/finetune/table.py"
        )


def _suffixes(task: GlueTask) -> list[str]:
    return [f"_{part}" for part in task.parts] or [""]


def _tfds_files(task: GlueTask, where: str, data_dir: str) -> GlueFiles:
    known = [task.tfds_config, *([_AX_TFDS] if task.diagnosed else [])]
    found = re.fullmatch(rf"{TFDS_PREFIX}glue/({'|'.join(known)})(:\d+\.\d+\.\d+)?", where)
    if found is None:
        expected = " or ".join(f"{TFDS_PREFIX}glue/{name}" for name in known)
        raise ValueError(f"{task.name} is {expected}, got {where!r}; give it without a split")
    columns: dict[str, Any] = {
        "first": task.tfds_columns[0],
        "second": task.tfds_columns[1],
        "index": "idx",
        "form": TableFormat(tfds_data_dir=data_dir),
        "labels": task.label_names or task.labels,
    }
    suffixes = _suffixes(task)
    tests = dict(zip(submission_names(task), (f"test{each}" for each in suffixes), strict=True))
    if found[1] == _AX_TFDS:
        tests = {_AX: "test"}
    return GlueFiles(
        train=SentenceFiles(train=f"{where}:train", **columns),
        validation={
            f"validation{suffix}": SentenceFiles(
                validation=f"{where}:validation{suffix}", **columns
            )
            for suffix in suffixes
        },
        test={
            name: SentenceFiles(test=f"{where}:{split}", **columns) for name, split in tests.items()
        },
    )


def check_submission_ids(ids: Sequence[str], places: Sequence[str]) -> None:
    """Refuses a test set whose index column is not a number of its own for every row."""
    seen: dict[int, str] = {}
    for index, place in zip(ids, places, strict=True):
        if not (index.isascii() and index.isdigit()):
            raise ValueError(f"{place}: index {index!r}; expected a whole number from 0 on")
        if (before := seen.setdefault(int(index), place)) != place:
            raise ValueError(f"{place}: index {index!r} is that of {before} too")


def write_glue_submission(
    task: GlueTask, predictions: Sequence[float], ids: Sequence[str], file: Path
) -> None:
    """Writes the predictions of a test set as gluebenchmark.com takes them, in order of `ids`.

    predictions: places in `task.labels`; of STS-B numbers, written within 0 to 5. ids: what the
    index column has for each, which `check_submission_ids` has seen: TensorFlow Datasets has rows
    in another order than the official files. The file's name must be that of a submission
    ("CoLA.tsv", "MNLI-m.tsv").

    Raises:
        ValueError: another file name, no predictions, one that is no place of a label or not
            finite.
    """
    known = (*submission_names(task), *([_AX] if task.diagnosed else []))
    names = [f"{name}.tsv" for name in known]
    if file.name not in names:
        raise ValueError(f"{file}: a submission of {task.name} is called {' or '.join(names)}")
    if not len(predictions):
        raise ValueError(f"{file}: no predictions to write")
    rows = sorted(zip(map(int, ids), predictions, strict=True))
    lines = [f"{index}\t{_submitted(task, value, index)}\n" for index, value in rows]
    write_file(file, "index\tprediction\n" + "".join(lines))


def _submitted(task: GlueTask, value: float, index: int) -> str:
    if not task.labels:
        if not math.isfinite(value):
            raise ValueError(f"prediction {index} is {value}; expected a finite number")
        return f"{min(max(float(value), 0.0), _LARGEST_SCORE):.6f}"
    if value != int(value) or not 0 <= value < len(task.labels):
        raise ValueError(
            f"prediction {index} is {value}; expected a whole number of 0 to {len(task.labels) - 1}"
        )
    return task.labels[int(value)]
