"""Use a task's config with another file and the columns of that file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bert_jax.data.compression import COMPRESSIONS
from bert_jax.data.finetuning.column_detection import detect_columns
from bert_jax.data.finetuning.splits import Split
from bert_jax.data.input_paths import is_tfds
from bert_jax.finetuning.config import FORM_KEYS, FinetuneConfig
from bert_jax.finetuning.task_data import ExampleSet
from bert_jax.models.model import ModelConfig
from bert_jax.validation import renamed_in_errors

_FORMATS = (
    *(".tsv", ".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".txt", ".text"),
    *(".conll", ".conll03", ".conll2003", ".conllu", ".bio", ".iob", ".iob2"),
)


def with_file(config: FinetuneConfig, path: str, split: Split) -> FinetuneConfig:
    """Return the config with `path` as its training, validation or test file.

    Args:
      config: the config of any task.
      path: a file in the same format or, for a GLUE task, a directory or "tfds:glue/...". A GLUE
        validation set may also be a file; training and test sets may not, since submissions are
        named after the files in the directory.
      split: the split that the file replaces.

    Raises:
      ValueError: the path is a directory where a file is needed, or the reverse.
    """
    if config.glue is None and Path(path).is_dir():
        raise ValueError(f"{path} is a directory; expected a file with {split} examples")
    if config.glue is not None and split == "train":
        if not (is_tfds(path) or Path(path).is_dir()):
            raise ValueError(
                f"{path} is not a directory: {config.glue.task} is trained on a directory with the "
                "official files (train.tsv and the others) or on tfds:glue/.... For a file of your "
                "own, use configs/finetune/table.py"
            )
        kept = config.glue.tfds_data_dir if is_tfds(path) else ""
        return replace(config, glue=replace(config.glue, directory=path, tfds_data_dir=kept))
    if config.glue is not None:
        if is_tfds(path) or Path(path).is_dir():
            kept = config.glue.tfds_data_dir if is_tfds(path) else ""
            glue = replace(config.glue, directory=path, validation="", tfds_data_dir=kept)
            return replace(config, glue=glue)
        if split == "test":
            raise ValueError(
                f"{path} is no directory: the test sets of {config.glue.task} are taken from one "
                "with the official files in it (test.tsv), or from TensorFlow Datasets"
            )
        return replace(config, glue=replace(config.glue, validation=path))
    for name in ("sentences", "choices", "tags", "spans"):
        section = getattr(config, name)
        if section is not None:
            files = replace(section.files, **{split: path})
            if split != "train" and name in FORM_KEYS:
                files = replace(files, form=files.form.for_another(path))
            return replace(config, **{name: replace(section, files=files)})
    raise AssertionError("a config has a section")


def with_columns(
    config: FinetuneConfig, split: Split = "train", model: ModelConfig | None = None
) -> FinetuneConfig:
    """Return the config with detected columns and labels instead of "auto".

    Args:
      config: the config of any task.
      split: the split whose file is read.
      model: an existing classifier, whose labels are used if they fit; None to train a new one.

    Raises:
      ValueError: see `detect_columns`.
    """
    if config.sentences is None or not config.sentences.files.detected:
        return config
    labels = None
    if model is not None:
        labels = () if model.problem == "regression" else model.labels
    with renamed_in_errors(FORM_KEYS["sentences"]):
        files = detect_columns(config.sentences.files, split, labels)
    try:
        return replace(config, sentences=replace(config.sentences, files=files))
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


def source_of(config: FinetuneConfig, split: Split) -> str:
    """Return a permanent name for a split's input: an absolute path, or "tfds:..."."""
    if config.glue is not None:
        given = config.glue.directory
        if split == "validation" and config.glue.validation:
            given = config.glue.validation
    else:
        section = config.sentences or config.choices or config.tags or config.spans
        assert section is not None
        given = getattr(section.files, split)
    return given if is_tfds(given) else str(Path(given).resolve())


def paths_of(config: FinetuneConfig) -> list[str]:
    """The task's files on disk, of GLUE its directory, as they are given."""
    if config.glue is not None:
        paths = [f"{config.glue.directory}/train.tsv", config.glue.validation]
        if is_tfds(config.glue.directory):
            del paths[0]
    else:
        section = config.sentences or config.choices or config.tags or config.spans
        assert section is not None
        paths = [section.files.train, section.files.validation, section.files.test]
    return [path for path in paths if path and not is_tfds(path)]
