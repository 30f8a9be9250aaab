"""Sentences and pairs of sentences with classes, sets of labels or numbers.

They come from any table or from the official files of GLUE.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bert_jax.files import write_file
from bert_jax.finetuning.task_data import ExampleSet, HeadConfig, Logits, TaskData, fingerprint_with
from bert_jax.labeled_data.features import Features
from bert_jax.labeled_data.files import Split
from bert_jax.labeled_data.glue import (
    GlueTask,
    check_submission_ids,
    glue_files,
    glue_task,
    write_glue_submission,
)
from bert_jax.labeled_data.labels import check_skipped
from bert_jax.labeled_data.sentences import (
    SentenceExamples,
    SentenceFiles,
    read_sentences,
    sentence_features,
)
from bert_jax.local_paths import LocalPath
from bert_jax.tasks.sentence_scores import (
    LABEL_SET_METRICS,
    METRICS,
    best_constant,
    label_counts,
    label_set_scores,
    sentence_scores,
)
from bert_jax.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class MultiLabelSet(ExampleSet):
    """Sentences, and the labels predicted for each: those more probable than 0.5."""

    features: Features
    examples: SentenceExamples
    files: SentenceFiles
    metrics: tuple[str, ...]
    type_is: ClassVar[str] = "label"

    @property
    def labels_in_files(self) -> tuple[str, ...]:
        """See `ExampleSet`."""
        return self.files.labels

    def predictions(self, logits: Logits) -> NDArray[np.bool_]:
        """[examples, labels] whether a label holds."""
        found: NDArray[np.bool_] = logits > 0
        return found

    def scores(self, logits: Logits) -> dict[str, float]:
        """See `ExampleSet.scores`."""
        return label_set_scores(self.metrics, self.predictions(logits), self._gold())

    def scores_by_type(self, logits: Logits) -> dict[str, dict[str, float]]:
        """precision, recall and f1 of each label, and how often it holds."""
        counts = label_counts(self.predictions(logits), self._gold())
        names = self.files.label_names or self.files.labels
        return {name: row.scores() | row._asdict() for name, row in zip(names, counts, strict=True)}

    def chance(self, metric: str) -> float:
        """See `ExampleSet.chance`."""
        return best_constant(metric, self._gold())

    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """A .tsv of index and prediction as the files have labels: in a cell, or a column each."""
        file, labels = directory / f"{name}.tsv", self.files.labels
        predicted = self.predictions(logits).tolist()
        if self.files.label:
            heads = ["prediction"]
            cells = [[self.files.separator.join(compress(labels, row))] for row in predicted]
        else:
            heads, cells = list(labels), [[str(int(holds)) for holds in row] for row in predicted]
        rows = [["index", *heads]]
        rows += [[index, *row] for index, row in zip(self.examples.ids, cells, strict=True)]
        write_file(file, "".join("\t".join(row) + "\n" for row in rows))
        return [file]

    @property
    def written_from(self) -> str:
        """See `ExampleSet`: with the ids."""
        return fingerprint_with(self.fingerprint, self.examples.ids)

    def _gold(self) -> NDArray[np.bool_]:
        gold: NDArray[np.bool_] = self.features.targets["labels"] > 0.5
        return gold


logger = logging.getLogger(__name__)
# Of a normal distribution so many standard deviations above the mean lies one in twenty.
_ONE_IN_TWENTY = 1.645


@dataclass(frozen=True)
class SentencesConfig:
    """A table of one's own.

    metrics: of bert_jax.tasks.sentence_scores, or of label_set_scores where several labels may
      hold; the first is the one runs are compared by; () for accuracy, for micro_f1 of several
      labels, or for Pearson's and Spearman's correlation where the labels are numbers.
    sigmoid: one logit for two labels, the probability of the second.
    """

    files: SentenceFiles
    metrics: tuple[str, ...] = ()
    sigmoid: bool = False

    def __post_init__(self) -> None:
        if self.files.several:
            self._check_several()
            return
        if self.files.labels_detected:  # checked once detection has found classes or numbers
            return
        need = "class" if self.files.labels else "number"
        for name in self.metrics:
            if name not in METRICS:
                fitting = ", ".join(each for each, what in METRICS.items() if what == need)
                raise ValueError(f"metrics: {name!r} is unknown; of a {need} there are {fitting}")
            if METRICS[name] != need:
                raise ValueError(
                    f"metrics: {name!r} is of a {METRICS[name]}, the labels are each a {need}; "
                    "() takes what fits them"
                )
        if self.sigmoid and len(self.files.labels) != 2:
            raise ValueError(f"sigmoid=True is for two labels, not {self.files.labels}")
        if "f1" in self.metrics and len(self.files.labels) != 2:
            raise ValueError(
                f"metrics: 'f1' is that of the second of two labels, not of {self.files.labels}; "
                "expected 'macro_f1', the mean over all labels, or other metrics"
            )

    def _check_several(self) -> None:
        for name in self.metrics:
            if name not in LABEL_SET_METRICS:
                raise ValueError(
                    f"metrics: {name!r} is none where several labels may hold; expected "
                    f"{', '.join(LABEL_SET_METRICS)}"
                )
        if self.sigmoid:
            raise ValueError(
                "sigmoid=True is for one of two labels; where several may hold each has a logit of "
                "its own without it"
            )


@dataclass(frozen=True)
class SentenceSet(ExampleSet):
    """Sentences, and the classes or numbers predicted for them.

    labels: () for numbers. glue: whose submission format predictions are written in. names: what
    people call the labels.
    """

    features: Features
    examples: SentenceExamples
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    sigmoid: bool
    glue: GlueTask | None = None
    names: tuple[str, ...] = ()
    type_is: ClassVar[str] = "class"

    @property
    def labels_in_files(self) -> tuple[str, ...]:
        """See `ExampleSet`."""
        return self.labels

    def predictions(self, logits: Logits) -> NDArray[np.generic]:
        """[examples] places in `labels`, or numbers."""
        if not self.labels:
            return logits[:, 0]
        return (logits[:, 0] > 0).astype(np.int64) if self.sigmoid else logits.argmax(axis=1)

    def scores(self, logits: Logits) -> dict[str, float]:
        """See `ExampleSet.scores`."""
        return sentence_scores(self.metrics, self.predictions(logits), self._gold())

    def scores_by_type(self, logits: Logits) -> dict[str, dict[str, float]]:
        """precision, recall and f1 of each class, and how often it occurs; of numbers nothing."""
        if not self.labels:
            return {}
        each = np.arange(len(self.labels))
        found, gold = self.predictions(logits)[:, None] == each, self._gold()[:, None] == each
        counts = zip(self.names, label_counts(found, gold), strict=True)
        return {name: row.scores() | row._asdict() for name, row in counts}

    def chance(self, metric: str) -> float:
        """See `ExampleSet.chance`.

        A regressor that has collapsed still differs in the last digits from text to text, and has
        a correlation of either sign: 1.645 standard deviations of it, 1 / sqrt(examples - 1).
        """
        gold = self._gold()
        if not self.labels:
            return min(1.0, _ONE_IN_TWENTY / math.sqrt(max(1, len(gold) - 1)))
        return max(
            sentence_scores([metric], np.full(gold.shape, answer), gold)[metric]
            for answer in range(len(self.labels))
        )

    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """GLUE's submission; for other tables a .tsv of index and prediction."""
        file, predictions = directory / f"{name}.tsv", self.predictions(logits)
        if self.glue is not None:
            write_glue_submission(self.glue, predictions.tolist(), self.examples.ids, file)
            return [file]
        words = [
            self.labels[int(value)] if self.labels else f"{value:.6f}"
            for value in predictions.tolist()
        ]
        lines = (f"{i}\t{word}\n" for i, word in zip(self.examples.ids, words, strict=True))
        write_file(file, "index\tprediction\n" + "".join(lines))
        return [file]

    @property
    def written_from(self) -> str:
        """See `ExampleSet`: with the ids."""
        return fingerprint_with(self.fingerprint, self.examples.ids)

    def _gold(self) -> NDArray[np.generic]:
        gold = self.features.targets["labels"]
        return gold[:, 0].astype(np.int32) if self.sigmoid else gold


def open_sentences(
    config: SentencesConfig, tokenizer: Tokenizer, max_length: int, splits: Collection[Split]
) -> TaskData:
    """Reads a table; ValueError names the file and line of what is not as it should be."""
    files = config.files
    usual = ("accuracy",) if files.labels else ("pearson", "spearman")
    metrics = config.metrics or (("micro_f1",) if files.several else usual)

    def read(split: Split) -> ExampleSet:
        if files.several:
            examples = read_sentences(files, split, labelled=split != "test")
            features = sentence_features(examples, tokenizer, max_length, files.labels)
            _report_absent(examples, files, split)
            return MultiLabelSet(features, examples, files, metrics)
        return read_set(files, split, tokenizer, max_length, metrics, config.sigmoid, None)

    return TaskData(
        head=head_of(files, config.sigmoid),
        train=read("train").features if "train" in splits else None,
        validation={"validation": read("validation")} if "validation" in splits else {},
        test={"test": read("test")} if "test" in splits and files.test else {},
        primary=metrics[0],
    )


def _report_absent(examples: SentenceExamples, files: SentenceFiles, split: Split) -> None:
    """A warning for labels of which there is no example to learn from."""
    if split != "train":
        return
    sets = examples.label_sets or []
    there = set(examples.labels or ()).union(*sets)
    absent = [label for label in files.labels if label not in there]
    if absent:
        few = ", ".join(map(repr, absent[:10])) + (", ..." if len(absent) > 10 else "")
        logger.warning(
            "%s: of %d labels %d occur in no example, so nothing is learned of them: %s",
            files.train,
            len(files.labels),
            len(absent),
            few,
        )


def head_of(files: SentenceFiles, sigmoid: bool) -> HeadConfig:
    """Return the head for the labels: regression for numbers, else one or several classes."""
    names = files.label_names or files.labels
    if not names:
        return HeadConfig("classification", ("score",), "regression")
    if files.several:
        return HeadConfig("classification", names, "multi_label")
    if sigmoid:
        return HeadConfig("classification", names[1:], "multi_label", negative=names[0])
    return HeadConfig("classification", names)


def read_set(
    files: SentenceFiles,
    split: Split,
    tokenizer: Tokenizer,
    max_length: int,
    metrics: tuple[str, ...],
    sigmoid: bool,
    glue: GlueTask | None,
) -> SentenceSet:
    """Read and tokenize a split's examples, with their labels unless it is the test split.

    Raises:
      ValueError: see `read_sentences` and, for GLUE's test sets, `check_submission_ids`.
    """
    examples = read_sentences(files, split, labelled=split != "test")
    if glue is not None:
        check_submission_ids(examples.ids, examples.places)
    features = sentence_features(examples, tokenizer, max_length, files.labels)
    _report_absent(examples, files, split)
    if sigmoid and features.targets:
        positive = features.targets["labels"][:, None].astype(np.float32)
        features = dataclasses.replace(features, targets={"labels": positive})
    names = files.label_names or files.labels
    return SentenceSet(features, examples, files.labels, metrics, sigmoid, glue, names)


@dataclass(frozen=True)
class GlueConfig:
    """A task of GLUE by its official name ("SST-2") and its directory, or "tfds:glue/sst2".

    validation: a validation file in the format of the directory's dev.tsv, "" for that file.
    tfds_data_dir: where TensorFlow Datasets keeps it, "" for its own default. skip_labels: labels
    of the rows to skip in training and validation files.
    """

    task: str
    directory: LocalPath
    sigmoid: bool = False
    validation: LocalPath = ""
    tfds_data_dir: LocalPath = ""
    skip_labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        labels = glue_task(self.task).labels
        if self.sigmoid and len(labels) != 2:
            raise ValueError(f"sigmoid=True is for two labels, which {self.task} has not")
        check_skipped(self.skip_labels, labels)


def open_glue(
    config: GlueConfig, tokenizer: Tokenizer, max_length: int, splits: Collection[Split]
) -> TaskData:
    """Reads a task of GLUE.

    Raises:
      ValueError: no such task, or a file is missing or not what it should be.
    """
    task = glue_task(config.task)
    found = glue_files(config.task, config.directory, config.tfds_data_dir)

    judged_on = found.validation
    if config.validation:
        form = next(iter(judged_on.values()))
        judged_on = {"validation": dataclasses.replace(form, validation=config.validation)}

    def read(files: SentenceFiles, split: Split) -> SentenceSet:
        submitted = task if split == "test" else None
        files = dataclasses.replace(files, skip_labels=config.skip_labels)
        metrics, sigmoid = task.metrics, config.sigmoid
        return read_set(files, split, tokenizer, max_length, metrics, sigmoid, submitted)

    def all_of(sets: Mapping[str, SentenceFiles], split: Split) -> dict[str, SentenceSet]:
        return {name: read(each, split) for name, each in sets.items()} if split in splits else {}

    return TaskData(
        head=head_of(found.train, config.sigmoid),
        train=read(found.train, "train").features if "train" in splits else None,
        validation=all_of(judged_on, "validation"),
        test=all_of(found.test, "test"),
        primary=task.primary,
    )
