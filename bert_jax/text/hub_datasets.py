"""Read the datasets of the Hugging Face Hub as a stream, without downloading them first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bert_jax.text.documents import Document, SourceCounts, SourceOptions, checked_documents
from bert_jax.text.hub_names import hub_builder, parse_hub, unreadable_hub


def hub_bytes(name: str) -> int:
    """Return the size of a split in bytes according to its dataset card, or 0 if unknown."""
    split = _split_info(name)
    return int(split.num_bytes or 0) if split is not None else 0


def read_hub(name: str, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yield the documents in a dataset's text column, in the order in which rows are stored.

    The rows are streamed, so nothing is downloaded in advance. Rows whose text is null or not UTF-8
    are skipped if `options.on_bad_line` is "skip".

    Args:
      name: a name from `pinned_hub`.
      options: the options for reading.
      counts: the counts to update.

    Raises:
      ValueError: the dataset cannot be read or has no such column, or a row cannot be used.
    """
    field, split, bytes_before = options.text_field, _split_info(name), counts.bytes_read
    num_rows = split.num_examples if split is not None else 0
    size = hub_bytes(name)
    for index, row in enumerate(_rows(name, field)):
        place = f"{name}[{index}]"
        if field not in row:
            raise _no_column(name, field, row)
        value = row[field]
        if num_rows:
            counts.bytes_read = bytes_before + size * min(index + 1, num_rows) // num_rows
        if value is None:
            counts.reject(options, place, f"column {field!r} is null")
            continue
        if not isinstance(value, (bytes, str)):
            raise ValueError(
                f"{place}: column {field!r} has the type {type(value).__name__}. Expected text."
            )
        try:
            text = value.decode("utf-8") if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            counts.reject(options, place, f"not UTF-8 at byte {error.start} of the text")
            continue
        yield from checked_documents(text, place, options, counts)


def _rows(name: str, field: str) -> Iterator[dict[str, Any]]:
    builder = hub_builder(name)
    try:
        rows = builder.as_streaming_dataset(split=parse_hub(name).split)
    except Exception as error:
        raise unreadable_hub(name, "cannot open this dataset", error) from error
    if rows.features is not None:
        if field not in rows.features:
            raise _no_column(name, field, rows.features)
        rows = rows.select_columns([field])
    number, iterator = 0, iter(rows)
    while True:
        try:
            row = next(iterator)
        except StopIteration:
            return
        except Exception as error:  # the network and many file formats can raise any exception
            raise unreadable_hub(name, f"cannot read row {number}", error) from error
        yield row
        number += 1


def _split_info(name: str) -> Any:
    """Return the description of a split in the dataset card, or None if there is none."""
    splits = hub_builder(name).info.splits
    return splits.get(parse_hub(name).split) if splits else None


def _no_column(name: str, field: str, columns: Any) -> ValueError:
    return ValueError(
        f"{name}: no column {field!r}; the columns are {', '.join(map(repr, columns))}. Choose "
        "the column with --text-field."
    )
