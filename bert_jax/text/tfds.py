"""Reader of TensorFlow Datasets, through their random-access form and without TensorFlow."""

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
# Packages of builders whose datasets hold text. TFDS finds a builder by importing all its packages
# and stops, silently, at the first one that cannot be imported: without h5py, which it does not
# require, that comes before `text`, and so it knows no wikipedia, lm1b or c4.
_TEXT_PACKAGES = ("text", "summarization", "translate", "structured", "question_answering")
_NAME = re.compile(
    r"(?P<builder>[\w.+-]+(/[\w.+=,-]+)*(:\d+\.\d+\.\d+)?)(:(?P<split>[^:\s]+(\[[^\]\s]*\].*)?))?"
)


class TfdsName(NamedTuple):
    """A dataset as TFDS names it (NAME, NAME/CONFIG, either with :VERSION), and a split."""

    builder: str
    split: str


def parse_tfds(name: str) -> TfdsName:
    """Takes apart "tfds:NAME[/CONFIG][:VERSION][:SPLIT]"; the split is "train" if not given."""
    match = _NAME.fullmatch(name.removeprefix(TFDS_PREFIX))
    if match is None:
        raise ValueError(
            f"cannot understand {name!r}; expected tfds:NAME/CONFIG, optionally with :VERSION and "
            ":SPLIT, such as tfds:wikipedia/20230601.en:train[:10%]"
        )
    return TfdsName(match["builder"], match["split"] or "train")


def read_tfds(name: str, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yields the documents in the text feature of a dataset, in its stored order.

    TFDS downloads and prepares a dataset that is not there yet. ValueError if it cannot be had or
    has no such feature, whatever the options; for single rows that are not UTF-8, by the options.
    """
    source = _open(name, options.tfds_data_dir).source
    features = list(source.dataset_info.features)
    if options.text_field not in features:
        raise ValueError(
            f"{name}: no feature {options.text_field!r}; its features are "
            f"{', '.join(map(repr, features))}. Name the feature with --text-field"
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
                    f"{place}: feature {options.text_field!r} is a {type(value).__name__}, "
                    "expected text"
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
    """Yields the values of some features of every row, in the dataset's stored order.

    Text is decoded, a class label becomes its name, "" where TFDS says -1 for none. ValueError if
    the dataset cannot be had, has no such feature, or holds text that is not UTF-8 there.
    """
    source = _open(name, data_dir).source
    known = source.dataset_info.features
    if missing := [feature for feature in features if feature not in known]:
        raise ValueError(
            f"{name}: no feature {missing[0]!r}; its features are {', '.join(map(repr, known))}"
        )
    classes = {feature: getattr(known[feature], "names", None) for feature in features}
    for start in range(0, len(source), _BATCH_ROWS):
        stop = min(start + _BATCH_ROWS, len(source))
        for index, row in enumerate(source.__getitems__(list(range(start, stop))), start):
            place = f"{name}[{index}]"
            yield [_plain_value(row[each], classes[each], each, place) for each in features]


def _plain_value(
    value: Any, classes: Sequence[str] | None, feature: str, place: str
) -> str | int | float | bool:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{place}: feature {feature!r} is not UTF-8 at byte {error.start}"
            ) from None
    if isinstance(value, np.generic):
        value = value.item()
    if classes is not None and isinstance(value, int):
        return classes[value] if value >= 0 else ""
    if not isinstance(value, (str, int, float, bool)):
        raise ValueError(
            f"{place}: feature {feature!r} is a {type(value).__name__}; expected text or a number"
        )
    return value


def tfds_bytes(name: str, data_dir: str | None) -> int:
    """Bytes on disk of the split, for progress, taking all rows of the dataset for equally long."""
    source = _open(name, data_dir).source
    splits = source.dataset_info.splits.values()
    num_rows = sum(split.num_examples for split in splits)
    return sum(split.num_bytes for split in splits) * len(source) // max(1, num_rows)


def resolved_tfds(name: str, data_dir: str | None) -> str:
    """The name with what it leaves to TFDS: "tfds:NAME/CONFIG:VERSION:SPLIT"."""
    return _open(name, data_dir).name


class _Opened(NamedTuple):
    name: str  # in full
    source: Any  # a sequence of rows


@lru_cache(maxsize=8)
def _open(name: str, data_dir: str | None) -> _Opened:
    builder_name, split = parse_tfds(name)
    try:
        import tensorflow_datasets as tfds  # seconds to import: only where it is asked for

        for package in _TEXT_PACKAGES:
            importlib.import_module(f"tensorflow_datasets.{package}")
    except ImportError as error:
        raise ValueError(
            f"{name}: cannot import TensorFlow Datasets ({error}); "
            "pip install tensorflow-datasets importlib_resources array_record"
        ) from error
    doing = "cannot find"
    try:
        # Its default, TFRecord, can neither be read at random nor without TensorFlow.
        builder = tfds.builder(builder_name, data_dir=data_dir, file_format="array_record")
        where = builder.data_path
        if not builder.is_prepared():
            _check_beam(builder, name)
            logger.info("%s: TFDS downloads and prepares it into %s", name, where)
            doing = f"found nothing in {where}, and cannot download and prepare"
            builder.download_and_prepare()
        doing = f"cannot read, from {where},"
        source = builder.as_data_source(split=split)
    except _MissingBeamError:
        raise
    except Exception as error:  # a builder is others' code: what it raises cannot be listed
        raise ValueError(
            f"{name}: TensorFlow Datasets {doing} {builder_name}: {type(error).__name__}: "
            f"{_shortened(str(error))}"
        ) from error
    full_name = f"{TFDS_PREFIX}{_versioned(builder)}:{split}"
    logger.info("%s: reading %s", name, full_name)
    return _Opened(full_name, source)


def _shortened(message: str) -> str:
    """The first line; with the list that it announces, but never TFDS's of all its datasets."""
    first, _, rest = message.partition("\n")
    return f"{first} {' '.join(rest.split())[:400]}" if first.rstrip().endswith(":") else first


class _MissingBeamError(ValueError):
    """A dataset must be built by Apache Beam, which is not installed."""


def _check_beam(builder: Any, name: str) -> None:
    """Refuses now what TFDS would only refuse after the download of, say, all of Wikipedia."""
    from tensorflow_datasets.core import BeamBasedBuilder

    if isinstance(builder, BeamBasedBuilder) and importlib.util.find_spec("apache_beam") is None:
        raise _MissingBeamError(
            f"{name}: there is nothing in {builder.data_path}, and TFDS builds the dataset with "
            "Apache Beam, which is not installed. Either pip install apache-beam and what else "
            f"tensorflow-datasets[{builder.name}] asks for; or, in another environment that has "
            f"tensorflow and tensorflow-datasets[{builder.name}], run `tfds build "
            f"{_versioned(builder)} --file_format=array_record --data_dir=DIR` and name DIR here "
            "with --tfds-data-dir"
        )


def _versioned(builder: Any) -> str:
    """The name from which `tfds.builder` makes this builder again, whatever is default then."""
    dataset, _, version = builder.info.full_name.rpartition("/")
    return f"{dataset}:{version}"
