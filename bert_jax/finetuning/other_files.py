"""The same task on another file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bert_jax.data.compression import COMPRESSIONS
from bert_jax.data.finetuning.splits import Split
from bert_jax.data.input_paths import is_tfds
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.task_data import ExampleSet


def with_file(config: FinetuneConfig, path: str, split: Split) -> FinetuneConfig:
    """The config with `path` in place of its validation or test file.

    path: a file of the same form; of a task of GLUE also a directory or "tfds:glue/...", which its
    test sets must be: submissions are called after the files in it.
    """
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
            return replace(config, **{name: replace(section, files=files)})
    raise AssertionError("a config has a section")


def named_after(path: str, sets: Mapping[str, ExampleSet]) -> dict[str, ExampleSet]:
    """The one set that was read from the file `path`, by the file's name without its ending.

    The sets of a directory or of TensorFlow Datasets keep theirs.
    """
    if is_tfds(path) or Path(path).is_dir():
        return dict(sets)
    (examples,) = sets.values()
    file = Path(path)
    return {(file.with_suffix("") if file.suffix in COMPRESSIONS else file).stem: examples}


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
