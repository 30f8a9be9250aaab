"""The three files of a task: train, validation and test."""

from __future__ import annotations

from typing import Literal

from bert_jax.data.input_paths import is_tfds
from bert_jax.data.readers_tfds import parse_tfds

Split = Literal["train", "validation", "test"]


def check_paths(train: str, validation: str, test: str) -> None:
    """Refuses a task without files, and TFDS's train split under another name."""
    if not (train or validation or test):
        raise ValueError("train, validation and test are all empty; name at least one file")
    for split, path in (("validation", validation), ("test", test)):
        if is_tfds(path) and parse_tfds(path).split == "train":
            raise ValueError(
                f"{split} is {path!r}, which is the train split; name another, such as "
                f"{path.removesuffix(':train')}:{split}"
            )


def split_path(files: object, split: Split) -> str:
    """The path of a split. ValueError if the task has none, or there is no such split."""
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split is {split!r}; expected 'train', 'validation' or 'test'")
    path: str = getattr(files, split)
    if not path:
        raise ValueError(f"no {split} file was given; set {split}")
    return path
