"""Define example sets of sentences or sentence pairs, and score and write their predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bert_jax.files import write_file
from bert_jax.finetuning.task_data import ExampleSet, Logits, fingerprint_with
from bert_jax.labeled_data.features import Features
from bert_jax.labeled_data.glue import GlueTask, write_glue_submission
from bert_jax.labeled_data.sentences import (
    SentenceExamples,
    SentenceFiles,
)
from bert_jax.tasks.sentence_scores import (
    best_constant,
    label_counts,
    label_set_scores,
    sentence_scores,
)

# With a probability of 1 in 20, a normally distributed variable exceeds its mean by more than this
# number of standard deviations.
_ONE_IN_TWENTY = 1.645


@dataclass(frozen=True)
class MultiLabelSet(ExampleSet):
    """Sentences that can have several labels, each predicted if its probability exceeds 0.5."""

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
        """Return a boolean array [examples, labels] that marks the predicted labels."""
        predicted: NDArray[np.bool_] = logits > 0
        return predicted

    def scores(self, logits: Logits) -> dict[str, float]:
        """See `ExampleSet.scores`."""
        return label_set_scores(self.metrics, self.predictions(logits), self._gold())

    def scores_by_type(self, logits: Logits) -> dict[str, dict[str, float]]:
        """Return precision, recall, F1 and the number of examples for each label."""
        counts = label_counts(self.predictions(logits), self._gold())
        names = self.files.label_names or self.files.labels
        return {name: row.scores() | row._asdict() for name, row in zip(names, counts, strict=True)}

    def chance(self, metric: str) -> float:
        """See `ExampleSet.chance`."""
        return best_constant(metric, self._gold())

    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """Write a .tsv file with indices and labels, laid out as in the task's files.

        Either one cell contains all labels, or each label has its own column of zeros and ones.
        """
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
        """A checksum as in `ExampleSet.written_from` that also covers the example IDs."""
        return fingerprint_with(self.fingerprint, self.examples.ids)

    def _gold(self) -> NDArray[np.bool_]:
        gold: NDArray[np.bool_] = self.features.targets["labels"] > 0.5
        return gold


@dataclass(frozen=True)
class SentenceSet(ExampleSet):
    """Sentences that each have one class or one number.

    Attributes:
      features: the features of the sentences.
      examples: the sentences.
      labels: the labels as written in the files; () for numbers.
      metrics: the metrics that `scores` computes.
      sigmoid: whether two labels share one logit.
      glue: the GLUE task whose submission format is used for predictions; None for other tables.
      names: readable names for the labels.
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
        """Return an array [examples] of indices into `labels`, or of predicted numbers."""
        if not self.labels:
            return logits[:, 0]
        return (logits[:, 0] > 0).astype(np.int64) if self.sigmoid else logits.argmax(axis=1)

    def scores(self, logits: Logits) -> dict[str, float]:
        """See `ExampleSet.scores`."""
        return sentence_scores(self.metrics, self.predictions(logits), self._gold())

    def scores_by_type(self, logits: Logits) -> dict[str, dict[str, float]]:
        """Return precision, recall, F1 and the number of examples per class; {} for numbers."""
        if not self.labels:
            return {}
        classes = np.arange(len(self.labels))
        predicted = self.predictions(logits)[:, None] == classes
        gold = self._gold()[:, None] == classes
        counts = zip(self.names, label_counts(predicted, gold), strict=True)
        return {name: row.scores() | row._asdict() for name, row in counts}

    def chance(self, metric: str) -> float:
        """Return the chance level; see `ExampleSet.chance`.

        The predictions of a collapsed regressor still differ in their last digits, so their
        correlation with the labels is random, with a standard deviation of 1 / sqrt(examples - 1).
        """
        gold = self._gold()
        if not self.labels:
            return min(1.0, _ONE_IN_TWENTY / math.sqrt(max(1, len(gold) - 1)))
        return max(
            sentence_scores([metric], np.full(gold.shape, answer), gold)[metric]
            for answer in range(len(self.labels))
        )

    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """Write a GLUE submission or, for other tables, a .tsv file of indices and predictions."""
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
        """A checksum as in `ExampleSet.written_from` that also covers the example IDs."""
        return fingerprint_with(self.fingerprint, self.examples.ids)

    def _gold(self) -> NDArray[np.generic]:
        gold = self.features.targets["labels"]
        return gold[:, 0].astype(np.int32) if self.sigmoid else gold
