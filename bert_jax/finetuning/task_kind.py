"""Define the parts of a kind of fine-tuning task: its config section, head, loss and so on."""

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
from bert_jax.local_paths import is_url
from bert_jax.models.model import ClassifierHead, ModelConfig
from bert_jax.runs.work_dir import InferenceDefaults
from bert_jax.tasks.finetuning import ClassifierTask
from bert_jax.text.files import is_tfds
from bert_jax.tokenizers.tokenizer import Tokenizer


class TaskConfig(abc.ABC):
    """A section of a fine-tuning config that describes a task; subclasses are frozen dataclasses.

    Attributes:
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
        """Read and tokenize the files for the given splits; all but the test files have labels.

        Args:
          tokenizer: the model's tokenizer.
          max_length: the maximum number of tokens per sequence.
          splits: the splits to read.
          labels: the labels of a model that has already been fine-tuned; if (), they are taken from
            the config or the files.

        Raises:
          ValueError: a file is missing or malformed; the message gives the file, line and value.
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
          model: an existing classifier; its labels are used if they fit. None to train a new
            classifier.
        """
        return self

    def matching(self, model: ModelConfig) -> Self:
        """Return a task that reads examples the way an existing fine-tuned model expects."""
        return self

    @property
    def official_name(self) -> str:
        """The task's name in its benchmark; "" for a task with the user's own files."""
        return ""

    @property
    @abc.abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The training and validation inputs as configured: files, a directory or "tfds:..."."""

    @abc.abstractmethod
    def paths(self) -> list[str]:
        """Return the paths of the task's files on disk, as configured."""

    @abc.abstractmethod
    def input_of(self, split: Split) -> str:
        """Return a split's input as configured: a file, a directory or "tfds:..."."""

    def source_of(self, split: Split) -> str:
        """Return an unambiguous name for a split's input: an absolute path, or "tfds:..."."""
        path = self.input_of(split)
        return path if is_tfds(path) or is_url(path) else str(Path(path).resolve())

    def is_missing(self) -> bool:
        """Return whether the task has relative paths and none of them exists."""
        relative = [
            path for path in self.paths() if not is_url(path) and not Path(path).is_absolute()
        ]
        return bool(relative) and not any(map(has_file, relative))

    def inference_defaults(self, max_length: int, data: TaskData) -> InferenceDefaults:
        """Return the settings that make predictors read texts the way the fine-tuning run did."""
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
        """The file with the test examples; "" if there is none."""


class FilesTaskConfig(TaskConfig):
    """A task with one file per split, as specified under `files` in its config section."""

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
        """Return the data for the given splits, with one set per split.

        Args:
          head: the task's head.
          primary: the metric that runs are compared by.
          splits: the splits to read; the test split is skipped if the task has no test file.
          read: the function that reads and tokenizes a split.
          train: a function that reads the training examples; by default, they are read the same way
            as evaluation sets.
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
    """Return a dict that maps short table-format keys in error messages to full config keys."""
    names = [field.name for field in fields(TableFormat)]
    return {f"form.{name}": f"{section}.files.form.{name}" for name in names}


@dataclass(frozen=True)
class HuggingFaceTask:
    """Hugging Face's names for a kind of task.

    Attributes:
      class_suffix: the part of the class names that follows the name of the model family.
      pipeline: the Hub's name for the task.
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

    Attributes:
      section: the key of the task's section in a fine-tuning config.
      config: the section's dataclass, which reads the examples; each `ExampleSet` computes its own
        metrics.
      head: the head that the task trains.
      loss: the loss and the metrics of a training step.
      predict: the `predict` task for models with this head.
      huggingface: the names in Hugging Face's library; None if it has no such task.
      example: Python source for the arguments of the tokenizer call in model cards.
    """

    section: str
    config: type[TaskConfig]
    head: ClassifierHead
    loss: type[ClassifierTask]
    predict: PredictTask
    huggingface: HuggingFaceTask | None = None
    example: str = '"A delightful film."'
