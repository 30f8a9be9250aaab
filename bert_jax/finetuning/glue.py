"""Define the GLUE tasks, read from their official files or from TensorFlow Datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bert_jax.finetuning.sentences import (
    SENTENCES,
    SentenceSet,
    head_of,
    read_set,
    with_pairs,
)
from bert_jax.finetuning.task_data import TaskData
from bert_jax.finetuning.task_kind import TaskConfig
from bert_jax.labeled_data.files import Split
from bert_jax.labeled_data.glue import glue_files, glue_task
from bert_jax.labeled_data.labels import check_skipped
from bert_jax.labeled_data.sentences import SentenceFiles
from bert_jax.local_paths import LocalPath, PathOrUrl
from bert_jax.runs.work_dir import InferenceDefaults
from bert_jax.storage.locations import exists, is_directory
from bert_jax.storage.urls import parse_location
from bert_jax.text.files import is_tfds
from bert_jax.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class GlueConfig(TaskConfig):
    """The config section for a GLUE task.

    Attributes:
      task: the task's official name, such as "SST-2".
      directory: the directory with the task's official files, or "tfds:glue/sst2".
      sigmoid: for a task with two labels, whether the model computes a single logit. Its sigmoid is
        the probability of the second label.
      validation: a validation file in the format of the directory's dev.tsv; "" means dev.tsv.
      tfds_data_dir: the data directory for TensorFlow Datasets; "" means the default.
      skip_labels: labels whose rows are skipped in the training and validation files.
    """

    task: str
    directory: PathOrUrl
    sigmoid: bool = False
    validation: PathOrUrl = ""
    tfds_data_dir: LocalPath = ""
    skip_labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        labels = glue_task(self.task).labels
        if self.sigmoid and len(labels) != 2:
            raise ValueError(
                f"sigmoid=True: needs two labels, but {self.task} has {len(labels)}. Set it to "
                "False"
            )
        check_skipped(self.skip_labels, labels)

    @property
    def official_name(self) -> str:
        """See `TaskConfig.official_name`."""
        return self.task

    @property
    def inputs(self) -> tuple[str, ...]:
        """See `TaskConfig.inputs`."""
        return (self.directory,)

    def paths(self) -> list[str]:
        """See `TaskConfig.paths`."""
        paths = [] if is_tfds(self.directory) else [f"{self.directory}/train.tsv"]
        paths.append(self.validation)
        return [path for path in paths if path and not is_tfds(path)]

    def input_of(self, split: Split) -> str:
        """See `TaskConfig.input_of`."""
        if split == "validation" and self.validation:
            return self.validation
        return self.directory

    def is_missing(self) -> bool:
        """See `TaskConfig.is_missing`."""
        return super().is_missing() and not is_directory(parse_location(self.directory))

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
        """Return the settings from `TaskConfig.inference_defaults`, and whether texts are pairs."""
        return with_pairs(super().inference_defaults(max_length, data), data)

    def with_file(self, path: str, split: Split) -> GlueConfig:
        """Return the task with another directory, "tfds:glue/..." name or validation file.

        Only the validation set can be a single file. A test set cannot, since submissions are named
        after the files in the directory.

        Raises:
          ValueError: the split needs a directory, but the path is not one.
        """
        whole = is_tfds(path) or is_directory(parse_location(path))
        kept = self.tfds_data_dir if is_tfds(path) else ""
        if split == "train":
            if not whole:
                there = exists(parse_location(path))
                problem = "not a directory" if there else "no such directory"
                raise ValueError(
                    f"{path}: {problem}. To train on {self.task}, specify the directory "
                    "with its official files (train.tsv, dev.tsv) or tfds:glue/NAME. For your own "
                    "files, use configs/finetune/table.py"
                )
            return dataclasses.replace(self, directory=path, tfds_data_dir=kept)
        if whole:
            return dataclasses.replace(self, directory=path, validation="", tfds_data_dir=kept)
        if split == "test":
            raise ValueError(
                f"{path} is not a directory. To predict the test sets of {self.task}, specify the "
                "directory with its official files (test.tsv) or tfds:glue/NAME"
            )
        return dataclasses.replace(self, validation=path)


def _open(
    config: GlueConfig, tokenizer: Tokenizer, max_length: int, splits: Collection[Split]
) -> TaskData:
    """Read and tokenize the files of a GLUE task.

    Raises:
      ValueError: the task is unknown, or a file is missing or malformed.
    """
    task = glue_task(config.task)
    files_of_task = glue_files(config.task, config.directory, config.tfds_data_dir)

    validation = files_of_task.validation
    if config.validation:
        form = next(iter(validation.values()))
        validation = {"validation": dataclasses.replace(form, validation=config.validation)}

    def read(files: SentenceFiles, split: Split) -> SentenceSet:
        submitted = task if split == "test" else None
        files = dataclasses.replace(files, skip_labels=config.skip_labels)
        metrics, sigmoid = task.metrics, config.sigmoid
        return read_set(files, split, tokenizer, max_length, metrics, sigmoid, submitted)

    def all_of(sets: Mapping[str, SentenceFiles], split: Split) -> dict[str, SentenceSet]:
        return {name: read(each, split) for name, each in sets.items()} if split in splits else {}

    return TaskData(
        head=head_of(files_of_task.train, config.sigmoid),
        train=read(files_of_task.train, "train").features if "train" in splits else None,
        validation=all_of(validation, "validation"),
        test=all_of(files_of_task.test, "test"),
        primary=task.primary,
    )


GLUE = dataclasses.replace(SENTENCES, section="glue", config=GlueConfig)
