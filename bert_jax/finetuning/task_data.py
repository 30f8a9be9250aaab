"""Define the data of a fine-tuning task: its training examples, evaluation sets and head."""

from __future__ import annotations

import abc
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bert_jax.labeled_data.features import Features
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ClassifierHead, ModelConfig, Problem

# The default dropout rate is from appendix A.3 of Devlin et al. 2019.
_HEAD_DROPOUT = 0.1
Logits = NDArray[np.float32]


class ExampleSet(abc.ABC):
    """The examples in one file, with methods that score or write a model's predictions for them.

    The logits are float32 [examples, ...] or, if the model scores every token, [tokens, ...] in the
    order of `features.sequences.token_ids`.

    Attributes:
      features: the tokenized examples.
      metrics: the metrics that `scores` computes.
      type_is: the word for a type in `scores_by_type`, such as "label".
      endings: the suffixes that are appended to the set's name to form the names of the prediction
        files.
    """

    features: Features
    metrics: tuple[str, ...]
    type_is: ClassVar[str] = "type"
    endings: ClassVar[tuple[str, ...]] = (".tsv",)

    @property
    def num_examples(self) -> int:
        """The number of examples; a model may read multiple sequences per example."""
        return len(self.features)

    @property
    def labels_in_files(self) -> tuple[str, ...]:
        """The labels of a classification task, spelled as in the files; () for other tasks."""
        return ()

    @property
    def fingerprint(self) -> str:
        """A checksum of the model's inputs and of any other data that affects the scores."""
        return self.features.fingerprint

    @property
    def written_from(self) -> str:
        """A checksum of all data that `write` depends on, except the logits."""
        return self.fingerprint

    @abc.abstractmethod
    def scores(self, logits: Logits) -> dict[str, float]:
        """Return the metrics on a labeled set, computed as in the task's official scorer."""

    def scores_by_type(self, logits: Logits) -> dict[str, dict[str, float]]:
        """Return the metrics for each type of answer; {} if the task has no types."""
        return {}

    @abc.abstractmethod
    def chance(self, metric: str) -> float:
        """Return the best score that can be reached on a labeled set without reading the examples.

        This is the score of the best constant answer. Constant answers have no correlation with the
        labels, so for correlation metrics, the result is the score that random predictions would
        reach one time in 20.
        """

    def file_names(self, name: str) -> list[str]:
        """Return the names of the files that `write` creates for a set called `name`."""
        return [f"{name}{ending}" for ending in self.endings]

    @abc.abstractmethod
    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """Write the predictions in the format of the task's official scorer, and return the files.

        Args:
          logits: the model's logits.
          directory: the directory to write the files to.
          name: the name of the set; every file name begins with it.
        """


def fingerprint_with(fingerprint: str, value: object) -> str:
    """Return a checksum that combines another checksum with a JSON-serializable value."""
    return hashlib.sha256(json.dumps([fingerprint, value]).encode()).hexdigest()


@dataclass(frozen=True)
class HeadConfig:
    """A task's head, with the names and the meaning of its scores.

    Attributes:
      head: the kind of head.
      labels: the names of the scores.
      problem: the meaning of the scores.
      negative: the name of the negative class in a "multi_label" problem with a single label.
    """

    head: ClassifierHead
    labels: tuple[str, ...] = ()
    problem: Problem = "single_label"
    negative: str = ""

    def on(self, encoder: EncoderConfig, head_dropout: float) -> ModelConfig:
        """Return the model with this head; a `head_dropout` of -1 means the head's default.

        Raises:
          ValueError: the head has no dropout, but `head_dropout` is positive.
        """
        usual = _HEAD_DROPOUT if self.head.dropout else 0.0
        dropout = usual if head_dropout == -1.0 else head_dropout
        return ModelConfig(
            encoder, self.head.name, self.labels, head_dropout=dropout, problem=self.problem
        )


@dataclass(frozen=True)
class TaskData:
    """The tokenized data of a task.

    Attributes:
      head: the task's head.
      train: the training examples; None if they were not read.
      validation: the validation sets, keyed by name.
      test: the test sets, which have no labels, keyed by name.
      primary: the metric that runs are compared by; for all metrics, higher is better.
    """

    head: HeadConfig
    train: Features | None
    validation: Mapping[str, ExampleSet]
    test: Mapping[str, ExampleSet]
    primary: str

    def metric_of(self, name: str, metric: str) -> str:
        """Return a metric's name, prefixed with the set's name if there are multiple sets."""
        return metric if len(self.validation) == 1 else f"{name}_{metric}"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics on all validation sets."""
        sets = self.validation.items()
        return tuple(self.metric_of(name, metric) for name, each in sets for metric in each.metrics)

    @property
    def features(self) -> dict[str, Features]:
        """The features of each set, keyed by set name."""
        train = {} if self.train is None else {"train": self.train}
        sets = {**self.validation, **self.test}
        return train | {name: examples.features for name, examples in sets.items()}

    @property
    def best_metric(self) -> str:
        """The name of the primary metric on the first validation set."""
        return self.metric_of(next(iter(self.validation)), self.primary)

    def chance(self, metric: str) -> float:
        """Return the chance-level score for a metric name returned by `metric_of`."""
        for name, examples in self.validation.items():
            prefix = self.metric_of(name, "")
            if metric.startswith(prefix):
                return examples.chance(metric.removeprefix(prefix))
        raise AssertionError(f"{metric} does not belong to any validation set")
