"""Define the multiple-choice task, for SWAG and any table with one column per choice."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from bert_jax.files import write_file
from bert_jax.finetuning.task_data import ExampleSet, HeadConfig, Logits, TaskData, fingerprint_with
from bert_jax.finetuning.task_kind import (
    FilesTaskConfig,
    HuggingFaceTask,
    TaskKind,
    form_keys,
)
from bert_jax.inference.predict_tasks import CHOOSE
from bert_jax.labeled_data.choices import ChoiceExamples, ChoiceFiles, choice_features, read_choices
from bert_jax.labeled_data.features import Features
from bert_jax.labeled_data.files import Split
from bert_jax.models.model import MULTIPLE_CHOICE
from bert_jax.tasks.finetuning import MultipleChoice
from bert_jax.tasks.sentence_scores import sentence_scores
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import renamed_in_errors

_FORM_KEYS = form_keys("choices")


@dataclass(frozen=True)
class ChoiceSet(ExampleSet):
    """Multiple-choice examples. Each has a context and several choices; one choice is correct."""

    endings: ClassVar[tuple[str, ...]] = (".csv",)
    features: Features
    examples: ChoiceExamples
    labels: tuple[str, ...]

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `ExampleSet`."""
        return ("accuracy",)

    def scores(self, logits: Logits) -> dict[str, float]:
        """Return the accuracy."""
        return self._accuracy(logits.argmax(axis=1))

    def chance(self, metric: str) -> float:
        """See `ExampleSet.chance`."""
        size = len(self.features)
        return max(
            self._accuracy(np.full(size, choice))[metric] for choice in range(len(self.labels))
        )

    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """Write a .csv file with the columns index and pred, where pred is one of the labels.

        SWAG's evaluator reads this format (https://github.com/allenai/swag-evaluator).
        """
        file, choices = directory / f"{name}.csv", logits.argmax(axis=1).tolist()
        content = io.StringIO()
        writer = csv.writer(content, lineterminator="\n")
        writer.writerow(("index", "pred"))
        for index, choice in zip(self.examples.ids, choices, strict=True):
            writer.writerow((index, self.labels[choice]))
        write_file(file, content.getvalue())
        return [file]

    @property
    def written_from(self) -> str:
        """A checksum as in `ExampleSet.written_from` that also covers the example IDs."""
        return fingerprint_with(self.fingerprint, self.examples.ids)

    def _accuracy(self, chosen: np.ndarray) -> dict[str, float]:
        return sentence_scores(["accuracy"], chosen, self.features.targets["labels"])


@dataclass(frozen=True)
class ChoicesConfig(FilesTaskConfig):
    """The config section for tables with a context and several endings in each row."""

    files: ChoiceFiles

    def open(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        splits: Collection[Split],
        labels: tuple[str, ...] = (),
    ) -> TaskData:
        """See `TaskConfig.open`."""
        files, names = self.files, self.files.choice_labels

        def read(split: Split) -> ChoiceSet:
            examples = read_choices(files, split, labeled=split != "test")
            features = choice_features(examples, tokenizer, max_length, names)
            return ChoiceSet(features, examples, names)

        with renamed_in_errors(_FORM_KEYS):
            return self._data(HeadConfig(MULTIPLE_CHOICE), "accuracy", splits, read)

    def with_file(self, path: str, split: Split) -> ChoicesConfig:
        """See `TaskConfig.with_file`."""
        task = super().with_file(path, split)
        form = task.files.form
        return task if split == "train" else task._with_files(form=form.for_other_file(path))


CHOICES = TaskKind(
    section="choices",
    config=ChoicesConfig,
    head=MULTIPLE_CHOICE,
    loss=MultipleChoice,
    predict=CHOOSE,
    huggingface=HuggingFaceTask("ForMultipleChoice", "multiple-choice"),
    example='"He opened the door", "and went in."',
)
