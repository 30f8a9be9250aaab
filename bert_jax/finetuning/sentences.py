"""Define tasks that predict a class, a label set or a number for each sentence or pair."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from bert_jax.finetuning.sentence_sets import MultiLabelSet, SentenceSet
from bert_jax.finetuning.task_data import ExampleSet, HeadConfig, TaskData
from bert_jax.finetuning.task_kind import (
    FilesTaskConfig,
    HuggingFaceTask,
    TaskKind,
    form_keys,
)
from bert_jax.inference.predict_tasks import CLASSIFY
from bert_jax.labeled_data.column_detection import detect_columns
from bert_jax.labeled_data.files import Split
from bert_jax.labeled_data.glue import GlueTask, check_submission_ids
from bert_jax.labeled_data.sentences import (
    SentenceExamples,
    SentenceFiles,
    read_sentences,
    sentence_features,
)
from bert_jax.models.model import CLASSIFICATION, ModelConfig
from bert_jax.runs.work_dir import InferenceDefaults
from bert_jax.tasks.finetuning import Classification
from bert_jax.tasks.sentence_scores import (
    LABEL_SET_METRICS,
    METRICS,
)
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import renamed_in_errors

logger = logging.getLogger(__name__)
_FORM_KEYS = form_keys("sentences")


def _report_absent(examples: SentenceExamples, files: SentenceFiles, split: Split) -> None:
    """Warn about labels that do not occur in any training example."""
    if split != "train":
        return
    sets = examples.label_sets or []
    present = set(examples.labels or ()).union(*sets)
    absent = [label for label in files.labels if label not in present]
    if absent:
        few = ", ".join(map(repr, absent[:10])) + (", ..." if len(absent) > 10 else "")
        logger.warning(
            "%s: %d of %d labels occur in no training example: %s",
            files.train,
            len(absent),
            len(files.labels),
            few,
        )


def head_of(files: SentenceFiles, sigmoid: bool) -> HeadConfig:
    """Return the head that fits the labels: regression for numbers, otherwise classification."""
    names = files.label_names or files.labels
    if not names:
        return HeadConfig(CLASSIFICATION, ("score",), "regression")
    if files.is_multi_label:
        return HeadConfig(CLASSIFICATION, names, "multi_label")
    if sigmoid:
        return HeadConfig(CLASSIFICATION, names[1:], "multi_label", negative=names[0])
    return HeadConfig(CLASSIFICATION, names)


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
      ValueError: `read_sentences` or, for a GLUE test set, `check_submission_ids` rejects the file.
    """
    examples = read_sentences(files, split, labeled=split != "test")
    if glue is not None:
        check_submission_ids(examples.ids, examples.locations)
    features = sentence_features(examples, tokenizer, max_length, files.labels)
    _report_absent(examples, files, split)
    if sigmoid and features.targets:
        positive = features.targets["labels"][:, None].astype(np.float32)
        features = dataclasses.replace(features, targets={"labels": positive})
    names = files.label_names or files.labels
    return SentenceSet(features, examples, files.labels, metrics, sigmoid, glue, names)


@dataclass(frozen=True)
class SentencesConfig(FilesTaskConfig):
    """The config section for tables of sentences or sentence pairs in your own format.

    Attributes:
      files: the files and their format.
      metrics: names of metrics from bert_jax.tasks.sentence_scores, or from its label_set_scores if
        an example can have several labels. Runs are compared by the first metric. () selects the
        default: accuracy if every example has one label, micro_f1 if it can have several, and the
        Pearson and Spearman correlations for numbers.
      sigmoid: for a task with two labels, whether the model computes a single logit. Its sigmoid is
        the probability of the second label.
    """

    files: SentenceFiles
    metrics: tuple[str, ...] = ()
    sigmoid: bool = False

    def __post_init__(self) -> None:
        if self.files.is_multi_label:
            self._check_several()
            return
        # The metrics are checked once it is known whether the labels are classes or numbers.
        if self.files.needs_label_detection:
            return
        need = "class" if self.files.labels else "number"
        for name in self.metrics:
            if name not in METRICS:
                fitting = ", ".join(each for each, what in METRICS.items() if what == need)
                raise ValueError(f"metrics: {name!r} is unknown. Metrics for a {need}: {fitting}.")
            if METRICS[name] != need:
                raise ValueError(
                    f"metrics: {name!r} is a metric for a {METRICS[name]}, but each label is a "
                    f"{need}. Use () for metrics that fit the labels."
                )
        if self.sigmoid and len(self.files.labels) != 2:
            raise ValueError(
                f"sigmoid=True: needs two labels, got {self.files.labels}. Set it to False"
            )
        if "f1" in self.metrics and len(self.files.labels) != 2:
            raise ValueError(
                f"metrics: 'f1' needs two labels, got {self.files.labels}. Use 'macro_f1', the "
                "mean over all labels, or other metrics."
            )

    def _check_several(self) -> None:
        for name in self.metrics:
            if name not in LABEL_SET_METRICS:
                raise ValueError(
                    f"metrics: {name!r} does not support multiple labels per example. Use "
                    f"{', '.join(LABEL_SET_METRICS)}."
                )
        if self.sigmoid:
            raise ValueError(
                "sigmoid=True: applies only if each example has one of two labels. With "
                "multiple labels per example, each label has its own logit anyway. Set it to False."
            )

    def open(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        splits: Collection[Split],
        labels: tuple[str, ...] = (),
    ) -> TaskData:
        """See `TaskConfig.open`."""
        files = self.files
        usual = ("accuracy",) if files.labels else ("pearson", "spearman")
        metrics = self.metrics or (("micro_f1",) if files.is_multi_label else usual)

        def read(split: Split) -> ExampleSet:
            if files.is_multi_label:
                examples = read_sentences(files, split, labeled=split != "test")
                features = sentence_features(examples, tokenizer, max_length, files.labels)
                _report_absent(examples, files, split)
                return MultiLabelSet(features, examples, files, metrics)
            return read_set(files, split, tokenizer, max_length, metrics, self.sigmoid, None)

        with renamed_in_errors(_FORM_KEYS):
            return self._data(head_of(files, self.sigmoid), metrics[0], splits, read)

    def with_file(self, path: str, split: Split) -> SentencesConfig:
        """See `TaskConfig.with_file`."""
        task = super().with_file(path, split)
        form = task.files.form
        return task if split == "train" else task._with_files(form=form.for_other_file(path))

    def with_columns(
        self, split: Split = "train", model: ModelConfig | None = None
    ) -> SentencesConfig:
        """Return the task with its detected columns; see `TaskConfig.with_columns`.

        Raises:
          ValueError: the file cannot be read, or its columns or labels are ambiguous.
        """
        if not self.files.needs_detection:
            return self
        labels = None
        if model is not None:
            labels = model.labels
            # A regression model has no labels.
            if model.problem == "regression":
                labels = ()
        with renamed_in_errors(_FORM_KEYS):
            files = detect_columns(self.files, split, labels)
        try:
            return dataclasses.replace(self, files=files)
        except ValueError as error:
            raise ValueError(f"config.sentences: {error}") from error

    def inference_defaults(self, max_length: int, data: TaskData) -> InferenceDefaults:
        """Return the settings from `TaskConfig.inference_defaults`, and whether texts are pairs."""
        return with_pairs(super().inference_defaults(max_length, data), data)


def with_pairs(usage: InferenceDefaults, data: TaskData) -> InferenceDefaults:
    """Return a copy of the settings that records whether the validation examples are pairs."""
    (sequences, *_) = (examples.features.sequences for examples in data.validation.values())
    pairs = bool((sequences.second_starts < sequences.lengths).any())
    return dataclasses.replace(usage, pairs=pairs)


SENTENCES = TaskKind(
    section="sentences",
    config=SentencesConfig,
    head=CLASSIFICATION,
    loss=Classification,
    predict=CLASSIFY,
    huggingface=HuggingFaceTask("ForSequenceClassification", "text-classification"),
)
