"""Sentences and pairs of them for which several labels may hold, or none."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.finetuning.features import Features
from bert_jax.data.finetuning.sentences import SentenceExamples, SentenceFiles
from bert_jax.files import write_file
from bert_jax.finetuning.task_data import ExampleSet, Logits, fingerprint_with
from bert_jax.tasks.label_set_scores import best_constant, label_counts, label_set_scores


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
