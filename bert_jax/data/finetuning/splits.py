"""The three files of a task: train, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from bert_jax.data.deduplication import document_digest, folded_digest
from bert_jax.data.finetuning.file_lines import has_file
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
    """The path of a split. ValueError if the task has none, or no such split or test file is there.

    A training or validation file that is not there is for who reads it to refuse: no task goes
    without, and there is no more to say.
    """
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split is {split!r}; expected 'train', 'validation' or 'test'")
    path: str = getattr(files, split)
    if not path:
        raise ValueError(f"no {split} file was given; set {split}")
    if split == "test" and not is_tfds(path) and not has_file(path):
        raise ValueError(
            f"{path}, the test file, does not exist, nor does it packed. Name another; a run that "
            "is to predict none has files.test=''"
        )
    return path


def is_held_out(texts: Sequence[str], share: float) -> bool:
    """Return whether a row with these texts belongs to the share held out for validation.

    The result depends only on a hash of the texts, ignoring case and white space: duplicates are on
    the same side, adding rows to a file moves no other rows, and a larger share contains all rows
    of a smaller one.
    """
    digest = document_digest(b"".join(map(folded_digest, texts)))
    return int.from_bytes(digest[:8], "big") < share * 2**64
