"""GLUE's tasks: read the official files and write predictions in the server's format."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bert_jax.data.finetuning.glue import glue_files, glue_task
from bert_jax.data.finetuning.labels import check_skipped
from bert_jax.data.finetuning.sentences import SentenceFiles
from bert_jax.data.finetuning.splits import Split
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.finetuning.sentences import SentenceSet, head_of, read_set
from bert_jax.finetuning.task_data import TaskData
from bert_jax.local_paths import LocalPath


@dataclass(frozen=True)
class GlueConfig:
    """A task of GLUE by its official name ("SST-2") and its directory, or "tfds:glue/sst2".

    validation: a validation file in the format of the directory's dev.tsv, "" for that file.
    tfds_data_dir: where TensorFlow Datasets keeps it, "" for its own default. skip_labels: labels
    of the rows to skip in training and validation files.
    """

    task: str
    directory: LocalPath
    sigmoid: bool = False
    validation: LocalPath = ""
    tfds_data_dir: LocalPath = ""
    skip_labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        labels = glue_task(self.task).labels
        if self.sigmoid and len(labels) != 2:
            raise ValueError(f"sigmoid=True is for two labels, which {self.task} has not")
        check_skipped(self.skip_labels, labels)


def open_glue(
    config: GlueConfig, tokenizer: Tokenizer, max_length: int, splits: Collection[Split]
) -> TaskData:
    """Reads a task of GLUE.

    Raises:
      ValueError: no such task, or a file is missing or not what it should be.
    """
    task = glue_task(config.task)
    found = glue_files(config.task, config.directory, config.tfds_data_dir)

    judged_on = found.validation
    if config.validation:
        form = next(iter(judged_on.values()))
        judged_on = {"validation": dataclasses.replace(form, validation=config.validation)}

    def read(files: SentenceFiles, split: Split) -> SentenceSet:
        submitted = task if split == "test" else None
        files = dataclasses.replace(files, skip_labels=config.skip_labels)
        metrics, sigmoid = task.metrics, config.sigmoid
        return read_set(files, split, tokenizer, max_length, metrics, sigmoid, submitted)

    def all_of(sets: Mapping[str, SentenceFiles], split: Split) -> dict[str, SentenceSet]:
        return {name: read(each, split) for name, each in sets.items()} if split in splits else {}

    return TaskData(
        head=head_of(found.train, config.sigmoid),
        train=read(found.train, "train").features if "train" in splits else None,
        validation=all_of(judged_on, "validation"),
        test=all_of(found.test, "test"),
        primary=task.primary,
    )
