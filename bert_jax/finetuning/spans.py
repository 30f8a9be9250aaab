"""Define the question-answering task, where answers are spans of a passage, as in SQuAD v1.1."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from bert_jax.finetuning.task_data import ExampleSet, HeadConfig, Logits, TaskData, fingerprint_with
from bert_jax.finetuning.task_kind import FilesTaskConfig, HuggingFaceTask, TaskKind
from bert_jax.inference.predict_tasks import ANSWER
from bert_jax.labeled_data.answers import (
    Answer,
    best_answers,
    write_squad_n_best,
    write_squad_predictions,
)
from bert_jax.labeled_data.features import Features
from bert_jax.labeled_data.files import Split, split_path
from bert_jax.labeled_data.span_windows import SpanWindows, span_windows
from bert_jax.labeled_data.squad import SpanExample, SpanFiles, read_squad
from bert_jax.models.model import SPAN
from bert_jax.runs.work_dir import InferenceDefaults, SpanDefaults
from bert_jax.tasks.finetuning import Span
from bert_jax.tasks.span_scores import squad_scores
from bert_jax.tokenizers.tokenizer import Tokenizer

_METRICS = ("f1", "exact_match")
# For each N in this list, `SpanSet.chance` tries the first N words of each passage as the answer.
_FIRST_WORDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class SpansConfig(FilesTaskConfig):
    """The config section for files in SQuAD's format (Devlin et al. 2019, section 4.2).

    Attributes:
      files: the training, validation and test files.
      doc_stride: number of tokens between the starts of consecutive windows.
      max_query_length: maximum number of tokens per question; longer questions are cut at the end.
      max_answer_length: maximum number of tokens per answer.
      n_best: number of candidate answers to keep per question.
    """

    training_examples: ClassVar[str] = "windows of passages for training"
    files: SpanFiles
    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    n_best: int = 20

    def __post_init__(self) -> None:
        for name in ("doc_stride", "max_query_length", "max_answer_length", "n_best"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    def open(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        splits: Collection[Split],
        labels: tuple[str, ...] = (),
    ) -> TaskData:
        """See `TaskConfig.open`."""

        def read(split: Split) -> SpanSet:
            labeled = split != "test"
            examples = read_squad(split_path(self.files, split), labeled=labeled)
            windows = span_windows(
                examples,
                tokenizer,
                max_length=max_length,
                doc_stride=self.doc_stride,
                max_query_length=self.max_query_length,
                labeled=labeled,
            )
            return SpanSet(windows, examples, self)

        return self._data(HeadConfig(SPAN), "f1", splits, read)

    def inference_defaults(self, max_length: int, data: TaskData) -> InferenceDefaults:
        """Return the settings from `TaskConfig.inference_defaults`, and how to split passages."""
        spans = SpanDefaults(self.doc_stride, self.max_query_length, self.max_answer_length)
        return replace(super().inference_defaults(max_length, data), spans=spans)


@dataclass(frozen=True)
class SpanSet(ExampleSet):
    """Questions about passages, which are read in overlapping windows."""

    endings: ClassVar[tuple[str, ...]] = (".json", "_n_best.json")
    windows: SpanWindows
    examples: list[SpanExample]
    config: SpansConfig

    @property
    def features(self) -> Features:  # type: ignore[override]
        """The features of the windows."""
        return self.windows.features

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `ExampleSet`."""
        return _METRICS

    @property
    def num_examples(self) -> int:
        """The number of questions."""
        return len(self.examples)

    @property
    def fingerprint(self) -> str:
        """A checksum as in `ExampleSet.fingerprint` that also covers answers and length limit."""
        answers = [(example.id, example.context, example.answer_texts) for example in self.examples]
        text = json.dumps([self.config.max_answer_length, answers])
        return hashlib.sha256(f"{self.features.fingerprint} {text}".encode()).hexdigest()

    @property
    def written_from(self) -> str:
        """A checksum as in `ExampleSet.written_from` that also covers the number of candidates."""
        return fingerprint_with(self.fingerprint, self.config.n_best)

    def answers(self, logits: Logits) -> list[Answer]:
        """Return the best answer candidates for each question."""
        sequences = self.features.sequences
        rows = np.zeros((len(sequences), int(sequences.lengths.max()), 2), np.float32)
        rows[np.arange(rows.shape[1]) < sequences.lengths[:, None]] = logits
        return best_answers(
            self.windows,
            self.examples,
            rows[..., 0],
            rows[..., 1],
            n_best=self.config.n_best,
            max_answer_length=self.config.max_answer_length,
        )

    def scores(self, logits: Logits) -> dict[str, float]:
        """Return F1 and exact match as fractions."""
        return self._scores({answer.id: answer.text for answer in self.answers(logits)})

    def chance(self, metric: str) -> float:
        """Return the best score of a fixed answer: the whole passage or its first few words.

        On SQuAD's dev set, the F1 is 0.095 for the first 24 words, 0.066 for the whole passage, and
        0.071 for random scores.
        """
        words = {example.id: example.context.split() for example in self.examples}
        longest = self.config.max_answer_length
        sizes = [size for size in _FIRST_WORDS if size <= longest]
        answers = [{name: " ".join(text[:size]) for name, text in words.items()} for size in sizes]
        answers.append({name: " ".join(text) for name, text in words.items()})
        return max(self._scores(predictions)[metric] for predictions in answers)

    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """Write predictions in the official format, {id: text}, and each question's candidates."""
        answers = self.answers(logits)
        files = [directory / file_name for file_name in self.file_names(name)]
        write_squad_predictions(answers, files[0])
        write_squad_n_best(answers, files[1])
        return files

    def _scores(self, predictions: dict[str, str]) -> dict[str, float]:
        percent = squad_scores(predictions, self._references)
        return {name: percent[name] / 100 for name in _METRICS}

    @cached_property
    def _references(self) -> dict[str, tuple[str, ...]]:
        return {example.id: example.answer_texts for example in self.examples}


SPANS = TaskKind(
    section="spans",
    config=SpansConfig,
    head=SPAN,
    loss=Span,
    predict=ANSWER,
    huggingface=HuggingFaceTask(
        "ForQuestionAnswering",
        "question-answering",
        classifier="qa_outputs",
        outputs=("start_logits", "end_logits"),
    ),
    example='"Where does Matt live?", "Matt lives in Canada."',
)
