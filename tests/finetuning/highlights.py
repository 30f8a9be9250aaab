"""Define a kind of task that bert_jax lacks: marking the relevant words in a text.

This module contains everything the kind needs: its files, loss, metrics, predictor and head.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import optax
from numpy.typing import NDArray

from bert_jax.files import write_file
from bert_jax.finetuning.task_data import ExampleSet, HeadConfig, Logits, TaskData
from bert_jax.finetuning.task_kind import FilesTaskConfig, TaskKind
from bert_jax.inference.predict_tasks import PredictTask
from bert_jax.inference.predictor import Outputs, Predictor
from bert_jax.labeled_data.features import Features
from bert_jax.labeled_data.files import Split, file_lines, split_path
from bert_jax.labeled_data.tag_features import TagFeatures, tag_features
from bert_jax.labeled_data.tags import TagSentences
from bert_jax.models.model import ClassifierHead, Model, infer
from bert_jax.tasks.finetuning import Arrays, ClassifierTask
from bert_jax.tasks.sentence_scores import sentence_scores
from bert_jax.tasks.task import Batch
from bert_jax.tokenizers.tokenizer import Tokenizer

HEAD = ClassifierHead("highlighting", "tokens", labels=("relevant",))
LABELS = ("no", "yes")


@dataclass(frozen=True)
class HighlightFiles:
    """JSON Lines files with the fields "words" and, except in test files, "marks" (0 or 1)."""

    train: str = ""
    validation: str = ""
    test: str = ""


class HighlightLoss(ClassifierTask):
    """Sigmoid cross-entropy on each word's first word piece."""

    loss_terms = {"binary_cross_entropy": 1.0}

    def weights(self, batch: Batch) -> Arrays:
        """See `ClassifierTask.weights`."""
        weights = batch["label_weights"] * batch["example_weights"][:, None]
        return {"binary_cross_entropy": weights}

    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """See `ClassifierTask.values`."""
        loss = optax.sigmoid_binary_cross_entropy(logits[..., 0], batch["labels"])
        return {"binary_cross_entropy": loss}


@dataclass(frozen=True)
class HighlightSet(ExampleSet):
    """Texts in which the relevant words are marked."""

    endings: ClassVar[tuple[str, ...]] = (".jsonl",)
    windows: TagFeatures
    metrics: tuple[str, ...] = ("f1",)

    @property
    def features(self) -> Features:  # type: ignore[override]
        """The features of the texts."""
        return self.windows.features

    def scores(self, logits: Logits) -> dict[str, float]:
        """Return the F1 of the marked words."""
        return self._f1(self._marks(logits))

    def chance(self, metric: str) -> float:
        """Return the F1 of marking every word."""
        return self._f1(np.ones(len(self.windows.positions), np.int64))[metric]

    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """Write one line of marks per text."""
        owners, marks = self.windows.sentences, self._marks(logits)
        rows = [marks[owners == text].tolist() for text in range(len(self.windows.sizes))]
        file = directory / f"{name}.jsonl"
        write_file(file, "".join(json.dumps({"marks": row}) + "\n" for row in rows))
        return [file]

    def _marks(self, logits: Logits) -> NDArray[np.int64]:
        return (logits[self.windows.positions, 0] > 0).astype(np.int64)

    def _f1(self, marks: NDArray[np.int64]) -> dict[str, float]:
        gold = self.windows.features.token_targets["labels"][self.windows.positions]
        return sentence_scores(["f1"], marks, gold)


@dataclass(frozen=True)
class HighlightsConfig(FilesTaskConfig):
    """Text files in which the relevant words are marked."""

    files: HighlightFiles

    def open(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        splits: Collection[Split],
        labels: tuple[str, ...] = (),
    ) -> TaskData:
        """See `TaskConfig.open`."""

        def read(split: Split) -> HighlightSet:
            lines = file_lines(Path(split_path(self.files, split)))
            rows = [json.loads(line) for line in lines]
            marks = [[LABELS[mark] for mark in row["marks"]] for row in rows if "marks" in row]
            sentences = TagSentences([row["words"] for row in rows], marks or None)
            windows = tag_features(sentences, tokenizer, max_length, LABELS, document_context=False)
            return HighlightSet(windows)

        return self._data(HeadConfig(HEAD), "f1", splits, read)


@dataclass(frozen=True)
class Highlighted:
    """The words of a text, each with the probability that it is relevant."""

    words: tuple[str, ...]
    probabilities: tuple[float, ...]


class Highlight(Predictor):
    """A predictor that marks the relevant words in texts."""

    heads = (HEAD.name,)
    purpose = "mark relevant words"
    made_by = "`bert-jax finetune`"

    def __call__(self, texts: Sequence[Sequence[str]]) -> list[Highlighted]:
        """Return the words of each text with their probabilities."""
        sentences = TagSentences([list(words) for words in texts])
        windows = tag_features(
            sentences, self.tokenizer, self.max_length, LABELS, document_context=False
        )
        rows = self._run(_probabilities, windows.features)
        lengths = windows.features.lengths.tolist()
        tokens = np.concatenate(
            [row["probabilities"][:length] for row, length in zip(rows, lengths, strict=True)]
        )
        of_words = tokens[windows.positions]
        return [
            Highlighted(tuple(words), tuple(of_words[windows.sentences == text].tolist()))
            for text, words in enumerate(texts)
        ]


@jax.jit
def _probabilities(model: Model, batch: Batch) -> Outputs:
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    return {"probabilities": jax.nn.sigmoid(outputs["logits"][..., 0])}


HIGHLIGHTS = TaskKind(
    section="highlights",
    config=HighlightsConfig,
    head=HEAD,
    loss=HighlightLoss,
    predict=PredictTask(
        "highlight",
        Highlight,
        [("words",)],
        lambda model, texts, _: model(texts),
        list_fields=frozenset({"words"}),
    ),
)
