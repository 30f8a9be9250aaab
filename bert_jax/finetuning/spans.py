"""Questions whose answer is a span of a passage: SQuAD v1.1."""

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
from bert_jax.labeled_data.squad import (
    SpanExample,
    SpanFiles,
    SpanWindows,
    read_squad,
    span_windows,
)
from bert_jax.models.model import SPAN
from bert_jax.runs.work_dir import InferenceDefaults, SpanDefaults
from bert_jax.tasks.finetuning import Span
from bert_jax.tasks.span_scores import squad_scores
from bert_jax.tokenizers.tokenizer import Tokenizer

_METRICS = ("f1", "exact_match")
# Words of a passage's beginning that are tried as the answer to every question.
_FIRST_WORDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True)
class SpansConfig(FilesTaskConfig):
    """Files in SQuAD's form, and how passages are cut and answers chosen (Devlin et al. 2019, 4.2).

    doc_stride: tokens from the beginning of a window to that of the next one. max_query_length:
      tokens of a question that are kept. max_answer_length: of an answer. n_best: candidates kept.
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
        return _open(self, tokenizer, max_length, splits)

    def inference_defaults(self, max_length: int, data: TaskData) -> InferenceDefaults:
        """See `TaskConfig.inference_defaults`: adds how passages are cut."""
        spans = SpanDefaults(self.doc_stride, self.max_query_length, self.max_answer_length)
        return replace(super().inference_defaults(max_length, data), spans=spans)


@dataclass(frozen=True)
class SpanSet(ExampleSet):
    """Questions, and the answers predicted for them."""

    endings: ClassVar[tuple[str, ...]] = (".json", "_n_best.json")
    windows: SpanWindows
    examples: list[SpanExample]
    config: SpansConfig

    @property
    def features(self) -> Features:  # type: ignore[override]
        """Of the windows."""
        return self.windows.features

    @property
    def metrics(self) -> tuple[str, ...]:  # type: ignore[override]
        """See `ExampleSet`."""
        return _METRICS

    @property
    def num_examples(self) -> int:
        """The questions."""
        return len(self.examples)

    @property
    def fingerprint(self) -> str:
        """See `ExampleSet`: with all right answers and how long one may be."""
        told = [(each.id, each.context, each.answer_texts) for each in self.examples]
        judged = json.dumps([self.config.max_answer_length, told])
        return hashlib.sha256(f"{self.features.fingerprint} {judged}".encode()).hexdigest()

    @property
    def written_from(self) -> str:
        """See `ExampleSet`: with how many candidates are kept."""
        return fingerprint_with(self.fingerprint, self.config.n_best)

    def answers(self, logits: Logits) -> list[Answer]:
        """The candidates for every question."""
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
        """f1 and exact_match, as fractions."""
        return self._scores({answer.id: answer.text for answer in self.answers(logits)})

    def chance(self, metric: str) -> float:
        """Of the whole passage or as many words of its beginning as do best, for every question.

        On SQuAD's dev set the first 24 words have an F1 of 0.095, the whole passage 0.066, and
        random scores 0.071.
        """
        words = {each.id: each.context.split() for each in self.examples}
        longest = self.config.max_answer_length
        sizes = [size for size in _FIRST_WORDS if size <= longest]
        answers = [{name: " ".join(each[:size]) for name, each in words.items()} for size in sizes]
        answers.append({name: " ".join(each) for name, each in words.items()})
        return max(self._scores(each)[metric] for each in answers)

    def write(self, logits: Logits, directory: Path, name: str) -> list[Path]:
        """The official predictions, {id: text}, and the candidates of every question."""
        answers = self.answers(logits)
        files = [directory / each for each in self.file_names(name)]
        write_squad_predictions(answers, files[0])
        write_squad_n_best(answers, files[1])
        return files

    def _scores(self, predictions: dict[str, str]) -> dict[str, float]:
        percent = squad_scores(predictions, self._references)
        return {name: percent[name] / 100 for name in _METRICS}

    @cached_property
    def _references(self) -> dict[str, tuple[str, ...]]:
        return {example.id: example.answer_texts for example in self.examples}


def _open(
    config: SpansConfig, tokenizer: Tokenizer, max_length: int, splits: Collection[Split]
) -> TaskData:
    """Read the files and cut the passages into windows."""

    def read(split: Split) -> SpanSet:
        labeled = split != "test"
        examples = read_squad(Path(split_path(config.files, split)), labeled=labeled)
        windows = span_windows(
            examples,
            tokenizer,
            max_length=max_length,
            doc_stride=config.doc_stride,
            max_query_length=config.max_query_length,
            labeled=labeled,
        )
        return SpanSet(windows, examples, config)

    return TaskData(
        head=HeadConfig(SPAN),
        train=read("train").features if "train" in splits else None,
        validation={"validation": read("validation")} if "validation" in splits else {},
        test={"test": read("test")} if "test" in splits and config.files.test else {},
        primary="f1",
        per_token=True,
    )


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
