"""Reader of TensorFlow Datasets, through their random-access form and without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from bert_jax.data.documents import Document, SourceCounts, SourceOptions, checked_documents
from bert_jax.data.input_paths import TFDS_PREFIX

_BATCH_ROWS = 128
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
    source = _open(name, options.tfds_data_dir)
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


def tfds_bytes(name: str, data_dir: str | None) -> int:
    """Bytes on disk of the split, for progress, taking all rows of the dataset for equally long."""
    source = _open(name, data_dir)
    splits = source.dataset_info.splits.values()
    num_rows = sum(split.num_examples for split in splits)
    return sum(split.num_bytes for split in splits) * len(source) // max(1, num_rows)


@lru_cache(maxsize=8)
def _open(name: str, data_dir: str | None) -> Any:
    builder, split = parse_tfds(name)
    try:
        import tensorflow_datasets as tfds  # seconds to import: only where it is asked for

        return tfds.data_source(builder, split=split, data_dir=data_dir)
    except ImportError as error:
        raise ValueError(
            f"{name}: cannot import TensorFlow Datasets ({error}); "
            "pip install tensorflow-datasets importlib_resources array_record"
        ) from error
    # A builder is someone else's code, which downloads: what it raises cannot be listed.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        where = f"data_dir {data_dir}" if data_dir else "TFDS_DATA_DIR or its default"
        raise ValueError(
            f"{name}: TensorFlow Datasets cannot open it (looked in {where}): "
            f"{type(error).__name__}: {reason}"
        ) from error
