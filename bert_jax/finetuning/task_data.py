"""What every fine-tuning task has: examples to learn from, sets to be judged on, a head."""

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

_HEAD_DROPOUT = 0.1  # Devlin et al. 2019, A.3
Logits = NDArray[np.float32]


class ExampleSet(abc.ABC):
    """Examples of one file, and what is made of a model's logits for them.

    The logits are float32 [examples, ...], or [tokens, ...] of `features.sequences.token_ids`
    where the model scores every token.

    metrics: the names of the `scores`. type_is: what a type of `scores_by_type` is. endings: the
    endings of the prediction files, after the set's name.
    """

    features: Features
    metrics: tuple[str, ...]
    type_is: ClassVar[str] = "type"
    endings: ClassVar[tuple[str, ...]] = (".tsv",)

    @property
    def num_examples(self) -> int:
        """How many there are to predict, of each of which a model may read several sequences."""
        return len(self.features)

    @property
    def labels_in_files(self) -> tuple[str, ...]:
        """What its files call the labels of a classifier; () for other tasks."""
        return ()

    @property
    def fingerprint(self) -> str:
        """Of what a model reads and of all that its answers are judged by."""
        return self.features.fingerprint

    @property
    def written_from(self) -> str:
        """Of what `write` makes a file from besides a model's answers."""
        return self.fingerprint

    @abc.abstractmethod
    def scores(self, logits: Logits) -> dict[str, float]:
        """The task's metrics, as its official scorer has them. For sets with labels."""

    def scores_by_type(self, logits: Logits) -> dict[str, dict[str, float]]:
        """The metrics of each type of answer, where the task's scorer tells them apart."""
        return {}

    @abc.abstractmethod
    def chance(self, metric: str) -> float:
        """What a model may score that has learned nothing. For sets with labels.

        The best of what can be had without reading, such as one answer for all; of correlations,
        which one answer has none of, what unrelated numbers reach one time in twenty.
        """

    def file_names(self, name: str) -> list[str]:
        """Return the names of the files that `write` makes for a set called `name`."""
        return [f"{name}{ending}" for ending in self.endings]

    @abc.abstractmethod
    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """Writes the predictions in the form that the task's scorer or its server takes.

        name: of the set, and so of the files.
        """


def fingerprint_with(found: str, other: object) -> str:
    """A fingerprint of what one tells and of another value, which JSON can hold."""
    return hashlib.sha256(json.dumps([found, other]).encode()).hexdigest()


@dataclass(frozen=True)
class HeadConfig:
    """The head of a task, with the names and the meaning of its scores.

    negative: what an example is called whose one label, of "multi_label", does not hold.
    """

    head: ClassifierHead
    labels: tuple[str, ...] = ()
    problem: Problem = "single_label"
    negative: str = ""

    def on(self, encoder: EncoderConfig, head_dropout: float) -> ModelConfig:
        """The model; head_dropout -1 for the usual one. ValueError if the head has none."""
        usual = _HEAD_DROPOUT if self.head.dropout else 0.0
        dropout = usual if head_dropout == -1.0 else head_dropout
        return ModelConfig(
            encoder, self.head.name, self.labels, head_dropout=dropout, problem=self.problem
        )


@dataclass(frozen=True)
class TaskData:
    """A task, read and tokenised.

    train: None if it was not asked for. validation, test: by name; test sets have no labels.
    primary: the metric that runs are compared by; higher is better, as for all metrics.
    per_token: whether the model scores every token.
    """

    head: HeadConfig
    train: Features | None
    validation: Mapping[str, ExampleSet]
    test: Mapping[str, ExampleSet]
    primary: str
    per_token: bool = False

    def metric_of(self, name: str, metric: str) -> str:
        """What a metric of the validation set `name` is called: with the set's name from two on."""
        return metric if len(self.validation) == 1 else f"{name}_{metric}"

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics of all validation sets."""
        sets = self.validation.items()
        return tuple(self.metric_of(name, metric) for name, each in sets for metric in each.metrics)

    @property
    def features(self) -> dict[str, Features]:
        """The features of every set, by the set's name."""
        train = {} if self.train is None else {"train": self.train}
        sets = {**self.validation, **self.test}
        return train | {name: examples.features for name, examples in sets.items()}

    @property
    def best_metric(self) -> str:
        """The name of the primary metric on the first validation set."""
        return self.metric_of(next(iter(self.validation)), self.primary)

    def chance(self, metric: str) -> float:
        """`ExampleSet.chance` of a metric as `metric_of` names it."""
        for name, examples in self.validation.items():
            prefix = self.metric_of(name, "")
            if metric.startswith(prefix):
                return examples.chance(metric.removeprefix(prefix))
        raise AssertionError(f"{metric} is of no validation set")
