"""The task of a fine-tuning config: its files, and the same task with another file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, assert_never

from bert_jax.finetuning.choices import ChoicesConfig, open_choices
from bert_jax.finetuning.sentences import GlueConfig, SentencesConfig, open_glue, open_sentences
from bert_jax.finetuning.spans import SpansConfig, open_spans
from bert_jax.finetuning.tags import TagsConfig, open_tags
from bert_jax.finetuning.task_data import ExampleSet, TaskData
from bert_jax.labeled_data.column_detection import detect_columns
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.files import Split
from bert_jax.models.model import ModelConfig
from bert_jax.text.files import COMPRESSIONS, is_tfds
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import renamed_in_errors

TaskConfig = GlueConfig | SentencesConfig | ChoicesConfig | TagsConfig | SpansConfig

# Full keys of a table's format, by the names in errors, for each section that has one.
FORM_KEYS = {
    section: {
        f"form.{field.name}": f"{section}.files.form.{field.name}" for field in fields(TableFormat)
    }
    for section in ("sentences", "choices")
}


def open_task(
    task: TaskConfig,
    tokenizer: Tokenizer,
    max_length: int,
    splits: Collection[Split],
    labels: tuple[str, ...] = (),
) -> TaskData:
    """Read the task's files of these splits; test files are those without labels.

    Args:
      labels: the labels of an existing model; without them, tags are collected from the files.

    Raises:
      ValueError: a file is missing or has another form; names file, line and value.
    """
    match task:
        case GlueConfig():
            return open_glue(task, tokenizer, max_length, splits)
        case SentencesConfig():
            with renamed_in_errors(FORM_KEYS["sentences"]):
                return open_sentences(task, tokenizer, max_length, splits)
        case ChoicesConfig():
            with renamed_in_errors(FORM_KEYS["choices"]):
                return open_choices(task, tokenizer, max_length, splits)
        case TagsConfig():
            return open_tags(task, tokenizer, max_length, splits, labels)
        case SpansConfig():
            return open_spans(task, tokenizer, max_length, splits)
        case _:
            assert_never(task)


_FORMATS = (
    *(".tsv", ".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".txt", ".text"),
    *(".conll", ".conll03", ".conll2003", ".conllu", ".bio", ".iob", ".iob2"),
)


def with_file(task: TaskConfig, path: str, split: Split) -> TaskConfig:
    """Return the task with `path` as its training, validation or test file.

    Args:
      path: a file in the same format or, for a GLUE task, a directory or "tfds:glue/...". A GLUE
        validation set may also be a file; training and test sets may not, since submissions are
        named after the files in the directory.
      split: the split that the file replaces.

    Raises:
      ValueError: the path is a directory where a file is needed, or the reverse.
    """
    if isinstance(task, GlueConfig):
        return _glue_with_file(task, path, split)
    if Path(path).is_dir():
        raise ValueError(f"{path} is a directory; expected a file with {split} examples")
    changed: dict[str, Any] = {split: path}
    another = split != "train"
    match task:
        case SentencesConfig():
            files = replace(task.files, **changed)
            form = files.form.for_another(path) if another else files.form
            return replace(task, files=replace(files, form=form))
        case ChoicesConfig():
            choices = replace(task.files, **changed)
            form = choices.form.for_another(path) if another else choices.form
            return replace(task, files=replace(choices, form=form))
        case TagsConfig():
            return replace(task, files=replace(task.files, **changed))
        case SpansConfig():
            return replace(task, files=replace(task.files, **changed))
        case _:
            assert_never(task)


def _glue_with_file(glue: GlueConfig, path: str, split: Split) -> GlueConfig:
    is_directory = is_tfds(path) or Path(path).is_dir()
    kept = glue.tfds_data_dir if is_tfds(path) else ""
    if split == "train":
        if not is_directory:
            raise ValueError(
                f"{path} is not a directory: {glue.task} is trained on a directory with the "
                "official files (train.tsv and the others) or on tfds:glue/.... For a file of your "
                "own, use configs/finetune/table.py"
            )
        return replace(glue, directory=path, tfds_data_dir=kept)
    if is_directory:
        return replace(glue, directory=path, validation="", tfds_data_dir=kept)
    if split == "test":
        raise ValueError(
            f"{path} is no directory: the test sets of {glue.task} are taken from one "
            "with the official files in it (test.tsv), or from TensorFlow Datasets"
        )
    return replace(glue, validation=path)


def with_columns(
    task: TaskConfig, split: Split = "train", model: ModelConfig | None = None
) -> TaskConfig:
    """Return the task with detected columns and labels instead of "auto".

    Args:
      split: the split whose file is read.
      model: an existing classifier, whose labels are used if they fit; None to train a new one.

    Raises:
      ValueError: see `detect_columns`.
    """
    if not isinstance(task, SentencesConfig) or not task.files.detected:
        return task
    labels = None
    if model is not None:
        labels = model.labels
        if model.problem == "regression":  # its scores are numbers, and have no labels
            labels = ()
    with renamed_in_errors(FORM_KEYS["sentences"]):
        files = detect_columns(task.files, split, labels)
    try:
        return replace(task, files=files)
    except ValueError as error:
        raise ValueError(f"config.sentences: {error}") from error


def named_after(path: str, sets: Mapping[str, ExampleSet]) -> dict[str, ExampleSet]:
    """Return the set that was read from the file `path`, named after the file.

    The name leaves out the extension of a known format but keeps others, as in "eng.testa". The
    sets of a directory or of TensorFlow Datasets keep their names.
    """
    if is_tfds(path) or Path(path).is_dir():
        return dict(sets)
    (examples,) = sets.values()
    file = Path(path)
    file = file.with_suffix("") if file.suffix.lower() in COMPRESSIONS else file
    return {file.stem if file.suffix.lower() in _FORMATS else file.name: examples}


def source_of(task: TaskConfig, split: Split) -> str:
    """Return a permanent name for a split's input: an absolute path, or "tfds:..."."""
    if isinstance(task, GlueConfig):
        given: str = task.directory
        if split == "validation" and task.validation:
            given = task.validation
    else:
        given = getattr(task.files, split)
    return given if is_tfds(given) else str(Path(given).resolve())


def paths_of(task: TaskConfig) -> list[str]:
    """Return the paths of the task's files on disk as they were given; for GLUE its directory."""
    if isinstance(task, GlueConfig):
        paths = [f"{task.directory}/train.tsv", task.validation]
        if is_tfds(task.directory):
            del paths[0]
    else:
        paths = [task.files.train, task.files.validation, task.files.test]
    return [path for path in paths if path and not is_tfds(path)]
