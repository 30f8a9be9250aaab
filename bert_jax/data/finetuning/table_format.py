"""How rows stand in a table, and which of its columns are whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from bert_jax.data.input_paths import (
    JSON_LINES_SUFFIXES,
    PARQUET_SUFFIXES,
    content_suffix,
    is_tfds,
)
from bert_jax.local_paths import LocalPath

Kind = Literal["auto", "tsv", "csv", "jsonl", "parquet"]
_KINDS: dict[str, Kind] = {
    ".tsv": "tsv",
    ".csv": "csv",
    **dict.fromkeys(JSON_LINES_SUFFIXES, "jsonl"),
    **dict.fromkeys(PARQUET_SUFFIXES, "parquet"),
}


@dataclass(frozen=True)
class TableFormat:
    """How rows stand in a file.

    kind: "tsv", a row a line, columns between tabs, no quoting at all; "csv", RFC 4180; "jsonl",
    one object a line; "parquet"; "auto" is what each file's name says. header: whether the first
    line of a TSV or CSV file names its columns; if not, they go by number, "0" the first.
    short_rows: whether a row that ends before a wanted column is an error, or left out and counted
    in the log. delimiter: what a CSV file has for the comma, such as ";". Of these nothing bears on
    `tfds:...`, whose columns have names and whose rows are whole; tfds_data_dir: where TensorFlow
    Datasets keeps it, "" for its own default.
    """

    kind: Kind = "auto"
    header: bool = True
    short_rows: Literal["error", "skip"] = "error"
    tfds_data_dir: LocalPath = ""
    delimiter: str = ","

    def __post_init__(self) -> None:
        if self.kind not in (kinds := get_args(Kind)):
            expected = ", ".join(map(repr, kinds))
            raise ValueError(f"kind is {self.kind!r}; expected one of {expected}")
        if self.short_rows not in ("error", "skip"):
            raise ValueError(f"short_rows is {self.short_rows!r}; expected 'error' or 'skip'")
        if self.kind in ("jsonl", "parquet") and not self.header:
            raise ValueError("header is False; JSON Lines and Parquet always have names")
        if self.kind in ("jsonl", "parquet") and self.short_rows == "skip":
            raise ValueError("short_rows is 'skip'; rows of JSON Lines and Parquet are never short")
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"delimiter is {self.delimiter!r}; expected one character, as ';'")
        if self.kind not in ("auto", "csv") and self.delimiter != ",":
            raise ValueError(
                f"delimiter is {self.delimiter!r}; it is for kind='csv' alone, and kind is "
                f"{self.kind!r}"
            )

    def of(self, path: str) -> TableFormat:
        """The same with the kind of the file `path` in place of "auto", as its name says.

        ValueError: the name says none, or one that does not go with the rest.
        """
        if self.kind != "auto" or is_tfds(path):
            return self
        kind = _KINDS.get(content_suffix(Path(path)))
        if kind is None:
            raise ValueError(
                f"{path}: the format cannot be recognized by the extension. Set form.kind to one "
                f"of {', '.join(get_args(Kind)[1:])}, or rename the file to end in one of "
                f"{', '.join(_KINDS)}"
            )
        try:
            return replace(self, kind=kind)
        except ValueError as error:
            raise ValueError(
                f"{path}: {error} (by the file's extension, as form.kind is 'auto')"
            ) from None

    def for_another(self, path: str) -> TableFormat:
        """Return the format for another file, without a CSV delimiter if it is not a CSV file."""
        csv = is_tfds(path) or _KINDS.get(content_suffix(Path(path))) in (None, "csv")
        return self if csv or self.kind != "auto" else replace(self, delimiter=",")


def check_columns(form: TableFormat, columns: Mapping[str, str]) -> None:
    """Refuses one column for two of `columns`, {what it is for: its name or number}, "" for none.

    ValueError says which two: a model that reads its label as a text learns nothing else.
    """
    seen: dict[str, str] = {}
    for what, name in columns.items():
        number = not form.header and name.isascii() and name.isdigit()
        column = str(int(name)) if number else name  # "01" is "1"
        if column and (before := seen.setdefault(column, what)) != what:
            raise ValueError(
                f"{before} and {what} are both column {name!r}; expected a column of its own for "
                "each"
            )
