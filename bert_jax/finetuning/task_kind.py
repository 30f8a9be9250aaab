"""The interface of a kind of task: its section of the config and its parts in other packages."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, cast

from bert_jax.finetuning.task_data import ExampleSet, HeadConfig, TaskData
from bert_jax.inference.predict_tasks import PredictTask
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.features import Features
from bert_jax.labeled_data.files import Split, has_file
from bert_jax.models.model import ClassifierHead, ModelConfig
from bert_jax.runs.work_dir import InferenceDefaults
from bert_jax.tasks.finetuning import ClassifierTask
from bert_jax.text.files import is_tfds
from bert_jax.tokenizers.tokenizer import Tokenizer


class TaskConfig(abc.ABC):
    """A section of a fine-tuning config that describes a task; subclasses are frozen dataclasses.

    training_examples: a description of the training examples, printed after their number.
    """

    training_examples: ClassVar[str] = "for training"

    @abc.abstractmethod
    def open(
        self,
        tokenizer: Tokenizer,
        max_length: int,
        splits: Collection[Split],
        labels: tuple[str, ...] = (),
    ) -> TaskData:
        """Read and tokenize the task's files for some splits; only test files lack labels.

        Args:
          tokenizer: the tokenizer of the model.
          max_length: the number of tokens to truncate sequences to.
          splits: the splits to read.
          labels: the labels of a model that was fine-tuned before; () takes them from the config
            or the files.

        Raises:
          ValueError: a file is missing or malformed; the message names file, line and value.
        """

    @abc.abstractmethod
    def with_file(self, path: str, split: Split) -> Self:
        """Return the task with `path` as its training, validation or test file.

        Raises:
          ValueError: the path is a directory where a file is needed, or vice versa.
        """

    def with_columns(self, split: Split = "train", model: ModelConfig | None = None) -> Self:
        """Return the task with each "auto" replaced by the detected columns or labels.

        Args:
          split: the split whose file is read.
          model: an existing classifier, whose labels are used if they fit; None to train a new one.
        """
        return self

    def matching(self, model: ModelConfig) -> Self:
        """Return the task, adapted to read examples for an existing fine-tuned model."""
        return self

    @property
    def official_name(self) -> str:
        """The name of a benchmark's task; "" for a task with files of the user's own."""
        return ""

    @property
    @abc.abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The training and validation inputs as given: files, a directory or "tfds:..."."""

    @abc.abstractmethod
    def paths(self) -> list[str]:
        """Return the paths of the task's files on disk as given."""

    @abc.abstractmethod
    def input_of(self, split: Split) -> str:
        """Return a split's input as given: a file, a directory or "tfds:..."."""

    def source_of(self, split: Split) -> str:
        """Return a permanent name for a split's input: an absolute path, or "tfds:..."."""
        path = self.input_of(split)
        return path if is_tfds(path) else str(Path(path).resolve())

    def is_missing(self) -> bool:
        """Return whether the task has relative paths and none of them exists in this directory."""
        relative = [Path(path) for path in self.paths() if not Path(path).is_absolute()]
        return bool(relative) and not any(map(has_file, relative))

    def inference_defaults(self, max_length: int, data: TaskData) -> InferenceDefaults:
        """Return the settings with which predictors read texts as the fine-tuning run does."""
        return InferenceDefaults(max_length, negative=data.head.negative)


class TaskFiles(Protocol):
    """The files of a task, with one path per split."""

    @property
    def train(self) -> str:
        """The file with the training examples."""

    @property
    def validation(self) -> str:
        """The file with the validation examples."""

    @property
    def test(self) -> str:
        """The file with the test examples; "" for none."""


class FilesTaskConfig(TaskConfig):
    """A task whose splits are files, given in the section's `files`."""

    files: TaskFiles

    def with_file(self, path: str, split: Split) -> Self:
        """See `TaskConfig.with_file`."""
        if Path(path).is_dir():
            raise ValueError(f"{path} is a directory; expected a file with {split} examples")
        return self._with_files(**{split: path})

    def _data(
        self,
        head: HeadConfig,
        primary: str,
        splits: Collection[Split],
        read: Callable[[Split], ExampleSet],
        *,
        train: Callable[[], Features] | None = None,
    ) -> TaskData:
        """Return the data of some splits, with one set per split.

        Args:
          head: the head of the task.
          primary: the metric that compares runs.
          splits: the splits to read; a missing test file is skipped.
          read: reads and tokenizes a split.
          train: reads the training examples, if they are not read like a set to evaluate on.
        """
        train = train or (lambda: read("train").features)
        return TaskData(
            head=head,
            train=train() if "train" in splits else None,
            validation={"validation": read("validation")} if "validation" in splits else {},
            test={"test": read("test")} if "test" in splits and self.files.test else {},
            primary=primary,
        )

    def _with_files(self, **changes: Any) -> Self:
        files = replace(cast(Any, self.files), **changes)
        task: Self = replace(cast(Any, self), files=files)
        return task

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `TaskConfig.inputs`."""
        return (self.files.train, self.files.validation)

    def paths(self) -> list[str]:
        """See `TaskConfig.paths`."""
        paths = (self.files.train, self.files.validation, self.files.test)
        return [path for path in paths if path and not is_tfds(path)]

    def input_of(self, split: Split) -> str:
        """See `TaskConfig.input_of`."""
        path: str = getattr(self.files, split)
        return path


def form_keys(section: str) -> Mapping[str, str]:
    """Return the full config keys of a table's format by their names in errors."""
    names = [field.name for field in fields(TableFormat)]
    return {f"form.{name}": f"{section}.files.form.{name}" for name in names}


@dataclass(frozen=True)
class HuggingFaceTask:
    """Hugging Face's names for a kind of task.

    class_suffix: the end of the class names, after the name of the family.
    pipeline: the hub's name of the task.
    classifier: the name of the dense layer that computes the scores.
    outputs: the names of the outputs: one for all scores, or one for each score.
    """

    class_suffix: str
    pipeline: str
    classifier: str = "classifier"
    outputs: tuple[str, ...] = ("logits",)


@dataclass(frozen=True)
class TaskKind:
    """A kind of task that models can be fine-tuned for.

    section: the key of the task's section in a fine-tuning config.
    config: the dataclass of the section, which reads the examples; each `ExampleSet` computes its
      metrics.
    head: the head that the task trains.
    loss: the loss and the metrics of a training step.
    predict: the task of `predict` for models with the head.
    huggingface: the names in Hugging Face's library; None if it has no such task.
    example: arguments for a call to the tokenizer, as Python source, for model cards.
    """

    section: str
    config: type[TaskConfig]
    head: ClassifierHead
    loss: type[ClassifierTask]
    predict: PredictTask
    huggingface: HuggingFaceTask | None = None
    example: str = '"A delightful film."'
