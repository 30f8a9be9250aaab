"""Read TensorFlow Datasets with random access, without requiring TensorFlow."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from bert_jax.text.documents import Document, SourceCounts, SourceOptions, checked_documents
from bert_jax.text.files import TFDS_PREFIX

logger = logging.getLogger(__name__)

_BATCH_ROWS = 128
# The TFDS packages with builders for text datasets. TFDS looks for a builder by importing its
# packages one after another, and silently stops at the first one that cannot be imported. Without
# h5py, which TFDS does not require, it stops before `text` and does not find wikipedia, lm1b or c4.
_TEXT_PACKAGES = ("text", "summarization", "translate", "structured", "question_answering")
_NAME = re.compile(
    r"(?P<builder>[\w.+-]+(/[\w.+=,-]+)*(:\d+\.\d+\.\d+)?)(:(?P<split>[^:\s]+(\[[^\]\s]*\].*)?))?"
)


class TfdsName(NamedTuple):
    """A dataset's name in TFDS (NAME or NAME/CONFIG, optionally with :VERSION), and a split."""

    builder: str
    split: str


def parse_tfds(name: str) -> TfdsName:
    """Parse "tfds:NAME[/CONFIG][:VERSION][:SPLIT]"; the split defaults to "train".

    Raises:
      ValueError: the name does not have this form.
    """
    match = _NAME.fullmatch(name.removeprefix(TFDS_PREFIX))
    if match is None:
        raise ValueError(
            f"{name}: not a valid name. Expected tfds:NAME/CONFIG, optionally with :VERSION and "
            ":SPLIT, such as tfds:wikipedia/20230601.en:train[:10%]."
        )
    return TfdsName(match["builder"], match["split"] or "train")


def read_tfds(name: str, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yield the documents in a dataset's text feature, in the order in which they are stored.

    TFDS downloads and prepares the dataset if it does not exist yet. Rows that are not UTF-8 are
    skipped if `options.on_bad_line` is "skip".

    Raises:
      ValueError: the dataset cannot be obtained or has no such feature, or a row cannot be used.
    """
    source = _open(name, options.tfds_data_dir).source
    features = list(source.dataset_info.features)
    if options.text_field not in features:
        raise ValueError(
            f"{name}: no feature {options.text_field!r}; the features are "
            f"{', '.join(map(repr, features))}. Choose the feature with --text-field."
        )
    size, bytes_before = tfds_bytes(name, options.tfds_data_dir), counts.bytes_read
    for start in range(0, len(source), _BATCH_ROWS):
        stop = min(start + _BATCH_ROWS, len(source))
        rows = source.__getitems__(list(range(start, stop)))
        counts.bytes_read = bytes_before + size * stop // len(source)
        for index, row in enumerate(rows, start):
            place = f"{name}[{index}]"
            value = row[options.text_field]
            if not isinstance(value, (bytes, str)):
                raise ValueError(
                    f"{place}: feature {options.text_field!r} has the type "
                    f"{type(value).__name__}. Expected text."
                )
            try:
                text = value.decode("utf-8") if isinstance(value, bytes) else value
            except UnicodeDecodeError as error:
                counts.reject(options, place, f"not UTF-8 at byte {error.start} of the text")
                continue
            yield from checked_documents(text, place, options, counts)


def tfds_values(
    name: str, data_dir: str | None, features: Sequence[str]
) -> Iterator[list[str | int | float | bool]]:
    """Yield the given features of every row, in the order in which rows are stored.

    Text is decoded. A class label is replaced by its name, or by "" if the label is missing (-1 in
    TFDS).

    Raises:
      ValueError: the dataset cannot be obtained or has no such feature, or a requested feature is
        neither a number nor UTF-8 text.
    """
    source = _open(name, data_dir).source
    available = source.dataset_info.features
    if missing := [feature for feature in features if feature not in available]:
        names = ", ".join(map(repr, available))
        raise ValueError(f"{name}: no feature {missing[0]!r}; the features are {names}.")
    classes = {feature: getattr(available[feature], "names", None) for feature in features}
    for start in range(0, len(source), _BATCH_ROWS):
        stop = min(start + _BATCH_ROWS, len(source))
        for index, row in enumerate(source.__getitems__(list(range(start, stop))), start):
            place = f"{name}[{index}]"
            yield [
                _plain_value(row[feature], classes[feature], feature, place) for feature in features
            ]


def _plain_value(
    value: Any, classes: Sequence[str] | None, feature: str, place: str
) -> str | int | float | bool:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{place}: feature {feature!r} is not UTF-8 at byte {error.start}."
            ) from None
    if isinstance(value, np.generic):
        value = value.item()
    if classes is not None and isinstance(value, int):
        return classes[value] if value >= 0 else ""
    if not isinstance(value, (str, int, float, bool)):
        raise ValueError(
            f"{place}: feature {feature!r} has the type {type(value).__name__}. Expected text or a "
            "number."
        )
    return value


def tfds_bytes(name: str, data_dir: str | None) -> int:
    """Return a split's approximate size on disk in bytes, which is used to show progress.

    All rows in the dataset are assumed to have the same size.
    """
    source = _open(name, data_dir).source
    splits = source.dataset_info.splits.values()
    num_rows = sum(split.num_examples for split in splits)
    return sum(split.num_bytes for split in splits) * len(source) // max(1, num_rows)


def resolved_tfds(name: str, data_dir: str | None) -> str:
    """Return the full name "tfds:NAME/CONFIG:VERSION:SPLIT", filling in TFDS's defaults."""
    return _open(name, data_dir).name


class _Opened(NamedTuple):
    # The name includes the config, the version and the split.
    name: str
    # The rows, as a sequence.
    source: Any


@lru_cache(maxsize=8)
def _open(name: str, data_dir: str | None) -> _Opened:
    builder_name, split = parse_tfds(name)
    try:
        import tensorflow_datasets as tfds  # takes seconds to import

        for package in _TEXT_PACKAGES:
            importlib.import_module(f"tensorflow_datasets.{package}")
    except ImportError as error:
        raise ValueError(
            f"{name}: cannot import TensorFlow Datasets ({error}). Run "
            "`pip install tensorflow-datasets importlib_resources array_record`."
        ) from error
    problem = f"cannot find {builder_name}"
    try:
        # The default format, TFRecord, does not allow random access and needs TensorFlow.
        builder = tfds.builder(builder_name, data_dir=data_dir, file_format="array_record")
        directory = builder.data_path
        if not builder.is_prepared():
            _check_beam(builder, name)
            logger.info("%s: TFDS is downloading and preparing this dataset in %s", name, directory)
            problem = (
                f"found no dataset in {directory} and cannot download and prepare {builder_name}"
            )
            builder.download_and_prepare()
        problem = f"cannot read {builder_name} from {directory}"
        source = builder.as_data_source(split=split)
    except _MissingBeamError:
        raise
    except Exception as error:  # a builder is third-party code and may raise any exception
        raise ValueError(
            f"{name}: TensorFlow Datasets {problem}: {type(error).__name__}: "
            f"{_shortened(str(error))}"
        ) from error
    full_name = f"{TFDS_PREFIX}{_versioned(builder)}:{split}"
    logger.info("%s: reading %s", name, full_name)
    return _Opened(full_name, source)


def _shortened(message: str) -> str:
    """Return a message's first line, plus the list that follows if the line ends with a colon.

    TFDS appends a list of all its datasets to some messages. No colon comes before that list, so
    it is left out.
    """
    first, _, rest = message.partition("\n")
    return f"{first} {' '.join(rest.split())[:400]}" if first.rstrip().endswith(":") else first


class _MissingBeamError(ValueError):
    """The dataset must be built with Apache Beam, which is not installed."""


def _check_beam(builder: Any, name: str) -> None:
    """Check for Apache Beam before the download, since TFDS checks only after downloading."""
    from tensorflow_datasets.core import BeamBasedBuilder

    if isinstance(builder, BeamBasedBuilder) and importlib.util.find_spec("apache_beam") is None:
        raise _MissingBeamError(
            f"{name}: no dataset in {builder.data_path}, and TFDS builds it with Apache Beam, "
            "which is not installed. Either install apache-beam and the other requirements of "
            f"tensorflow-datasets[{builder.name}]; or, in another environment with tensorflow and "
            f"tensorflow-datasets[{builder.name}], run `tfds build {_versioned(builder)} "
            "--file_format=array_record --data_dir=DIR` and specify DIR with --tfds-data-dir."
        )


def _versioned(builder: Any) -> str:
    """Return a name for `tfds.builder` that includes the version, since the default may change."""
    dataset, _, version = builder.info.full_name.rpartition("/")
    return f"{dataset}:{version}"
