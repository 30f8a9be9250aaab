"""Test that a table reads the same in all file formats, compressed or not."""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import logging
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.tables import read_table

ROWS = [
    ["plain", "0"],
    ['a lone " quote', "1"],
    ['"quoted" at once', "0"],
    ["comma, semicolon; é\u2028ü", "1"],
    [" spaces \u00a0", "0"],
    ["", "1"],
]
TSV = TableFormat(kind="tsv")
CSV = TableFormat(kind="csv")
JSONL = TableFormat(kind="jsonl")
PARQUET = TableFormat(kind="parquet")
BARE = TableFormat(kind="tsv", header=False)
JSON_LINE = b'{"text": "a", "label": 1}\n'


def tsv_bytes(rows: list[list[str]], end: str = "\n") -> bytes:
    return "".join("\t".join(row) + end for row in rows).encode()


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def columns_of(rows: list[list[str]]) -> dict[str, list[str]]:
    return {"text": [row[0] for row in rows], "label": [row[1] for row in rows]}


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("rest", [b"", b"\n", b"\r\n"])
def test_tsv_has_no_quoting(tmp_path: Path, mark: bytes, end: str, rest: bytes) -> None:
    data = mark + tsv_bytes([["text", "label"], *ROWS], end) + rest
    path = write(tmp_path / "a.tsv", data)
    table = read_table(path, TSV, ["text", "label"])
    assert table.columns == columns_of(ROWS)
    assert table.locations == [f"{path}:{number}" for number in range(2, len(ROWS) + 2)]


def test_columns_are_numbered_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv_bytes(ROWS).removesuffix(b"\n"))
    table = read_table(path, BARE, ["1", "0"])
    assert table.columns == {"1": columns_of(ROWS)["label"], "0": columns_of(ROWS)["text"]}
    assert table.locations[0] == f"{path}:1"


@pytest.mark.parametrize("suffix, compress", [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_files_are_found_without_their_suffix(tmp_path: Path, suffix, compress) -> None:
    data = tsv_bytes([["text", "label"], *ROWS])
    compressed = write(tmp_path / f"a.tsv{suffix}", compress(data))
    table = read_table(str(tmp_path / "a.tsv"), TSV, ["text", "label"])
    assert table == read_table(compressed, TSV, ["text", "label"])
    assert table.columns == columns_of(ROWS) and table.locations[0] == f"{compressed}:2"
    write(tmp_path / f"b.tsv{suffix}", compress(data * 1000)[:-20])
    with pytest.raises(ValueError, match=r"b\.tsv\.\wz:\d+: the .* archive is truncated"):
        read_table(str(tmp_path / "b.tsv"), TSV, ["text"])


def test_texts_in_csv_may_be_long(tmp_path: Path) -> None:
    """Read cells above 131,072 characters, the default limit of Python's csv module."""
    path, text = tmp_path / "a.csv", "a, b " * 30_000
    path.write_text(f'text,label\n"{text}",1\n')
    assert read_table(str(path), CSV, ["text"]).columns["text"] == [text]


def test_csv_files_written_by_python_are_read_correctly(tmp_path: Path) -> None:
    rows = [*ROWS, ["two\nlines", "1"], ["after", "0"]]
    path = tmp_path / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "label"], *rows])
    table = read_table(str(path), CSV, ["label", "text"])
    assert table.columns == columns_of(rows)
    first = 2 + len(ROWS)  # The location of a row is its first line.
    assert table.locations[-2:] == [f"{path}:{first}", f"{path}:{first + 2}"]


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_csv_can_have_another_delimiter(tmp_path: Path, delimiter: str) -> None:
    """Read files as spreadsheet programs write them in locales with a decimal comma."""
    rows = [*ROWS, ["two\nlines", "1,5"], [f"a{delimiter}b", "0"]]
    path = tmp_path / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([["text", "label"], *rows])
    form = TableFormat(kind="csv", delimiter=delimiter)
    assert read_table(str(path), form, ["label", "text"]).columns == columns_of(rows)


def test_numbers_in_json_lines_are_converted_to_text(tmp_path: Path) -> None:
    records = [
        {"text": "a", "label": 1, "more": {"choices": ["x", "y"]}},
        {"text": "é", "label": 2.5, "more": {"choices": ["z", "w"]}},
        {"text": "b", "label": True, "more": {"choices": ["u", "v"]}},
        {"text": "c", "label": "neutral", "more": {"choices": ["s", "t"]}},
    ]
    data = "\n\n".join(json.dumps(record) for record in records) + "\n"
    path = write(tmp_path / "a.jsonl", data.encode())
    table = read_table(path, JSONL, ["text", "more.choices.1"], ["label"])
    assert table.columns["label"] == ["1", "2.5", "true", "neutral"]
    assert table.columns["more.choices.1"] == ["y", "w", "v", "t"]
    assert table.locations[1] == f"{path}:3"


def test_parquet_is_read_like_json_lines(tmp_path: Path) -> None:
    records = [
        {"text": f"é{n}", "label": n % 3, "more": {"choices": ["x", f"y{n}"]}, "sets": ["a", "b"]}
        for n in range(2500)
    ]
    path, lines = tmp_path / "a.parquet", tmp_path / "a.jsonl"
    pq.write_table(pa.Table.from_pylist(records), path, row_group_size=700)
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    columns = (["text", "more.choices.1"], ["label", "sets"], ["sets"])
    table = read_table(str(path), PARQUET, *columns)
    assert table.columns == read_table(str(lines), JSONL, *columns).columns
    assert table.columns["sets"][0] == '["a", "b"]'
    assert table.locations[2400] == f"{path}:row 2400" and table.numbers[2400] == 2400


def test_errors_name_the_row_of_invalid_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a"
    rows = [{"text": "a", "day": datetime.date(2026, 1, 1)}, {"text": None, "day": None}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    for columns, message in (
        (["body"], "a: no column 'body'; the columns are 'text', 'day'"),
        (["text"], "a:row 1: column 'text' is null"),
        (["day"], "a:row 0: column 'day' contains a value of type date"),
    ):
        with pytest.raises(ValueError, match=message):
            read_table(str(path), PARQUET, columns)
    not_utf8 = pa.array([b"ab", b"a\xff"]).view(pa.string())
    pq.write_table(pa.table({"text": not_utf8}), path)
    with pytest.raises(ValueError, match="a: not a complete Parquet file with text in UTF-8"):
        read_table(str(path), PARQUET, ["text"])
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="a: not a complete Parquet file"):
        read_table(str(path), PARQUET, ["text"])


@pytest.mark.parametrize(
    "form, data, columns, message",
    [
        (TSV, b"text\tlabel\na\t0\n", ["label", "body"], r"a:1: no column is named 'body'.*'text'"),
        (TSV, b"x\tx\na\t0\n", ["x"], "a:1: 2 columns are named 'x'"),
        (TSV, b"text,label\na,0\n", ["text"], "named 'text'. .*If commas .*, set form.kind=.csv."),
        (
            CSV,
            b"text\tlabel\na\t0\n",
            ["text"],
            "the columns 'text.*If tabs .*, set form.kind=.tsv.",
        ),
        (CSV, b"text;label\na;0\n", ["text"], "If semicolons .*, set form.delimiter=.;."),
        (
            CSV,
            b"text;label\na, b;0\n",
            ["text;label"],
            "a:2: the line has 2 columns, .*set form.delimiter=.;.",
        ),
        (TSV, b"text;label\na;0\n", ["text"], "set form.kind=.csv. and form.delimiter=.;."),
        (BARE, b"a\tb\nc\td\n", ["0", "7"], "This line has the columns '0' to '1'. Fix"),
        (
            TableFormat(kind="tsv", header=False, short_rows="skip"),
            b"a;b\n",
            ["1"],
            "only the column '0'.*delimiter=.;.",
        ),
        (TSV, b"a\tlabel\na\t0\n", ["text"], "Rename one of the columns in the file to 'text'"),
        (TSV, JSON_LINE, ["text"], "JSON Lines, set form.kind=.jsonl."),
        (CSV, JSON_LINE, ["text"], "JSON Lines, set form.kind=.jsonl."),
        (
            CSV,
            JSON_LINE.replace(b" ", b""),
            ["text"],
            "RFC 4180.*JSON Lines, set form.kind=.jsonl.",
        ),
        (
            CSV,
            b"text,label\ra,0\rb,1\r",
            ["text"],
            r"a:1: there is a carriage return .*with `tr '\\r' '\\n'`",
        ),
        (
            TSV,
            b"text\tlabel\ra\t0\rb\t1\r",
            ["text"],
            r"a:1: there is a carriage return .*with `tr '\\r' '",
        ),
        (BARE, b"a\t0\rb\t1", ["0"], "a:1: there is a carriage return"),
        (TSV, b"good film\t1\nbad film\t0\n", ["text"], "'good film', '1'.*header=False"),
        (TSV, b"text\tlabel\na\t0\nb\n", ["text", "label"], "a:3: the row ends .*'label'"),
        (
            TSV,
            b"text\tlabel\na\t0\n\nb\t1\n",
            ["text", "label"],
            "a:3: the row ends .*'label'",
        ),
        (TSV, b"text\tlabel\n", ["text"], "contains no rows"),
        (TSV, b"", ["text"], "a is empty. Add at least one example"),
        (
            TSV,
            b"text\tlabel\na\t0\nb\tc\t1\n",
            ["text"],
            "a:3: the line has 3 columns, but the first line has 2",
        ),
        (
            CSV,
            b"label,text\n1,well, this\n",
            ["text"],
            "a:2: the line has 3 columns, .* has 2. Put .* quotes",
        ),
        (BARE, b"a\tb\na\tb\tc\n", ["0"], "a:2: the line has 3 columns, but the first"),
        (TSV, b"text\nab\xff\n", ["text"], "a:2: byte 0xff is not UTF-8"),
        (BARE, b"a\tb\n", ["text"], "'text' is specified by name, but header=False"),
        (BARE, b"a\tb\n", ["2"], "a:1: there is no column '2'. .* '0' to '1'"),
        (CSV, b'text\nok\n"open\nand on', ["text"], r"a:3: not valid CSV \(RFC 4180\)"),
        (CSV, b'text\n"open\nand on', ["text"], 'the opening quote, ", in this row is never cl'),
        (JSONL, b'{"text": "a"}\n{"text": 3}\n', ["text"], "a:2: column 'text' is 3, a JSON num"),
        (JSONL, b'{"text": null}\n', ["text"], "a:1: column 'text' is null, a JSON null"),
        (JSONL, b'{"text": "\\ud800"}\n', ["text"], "a:1: .*lone surrogate at character 0"),
        (
            JSONL,
            b'{"body": "a"}\n',
            ["text"],
            "a:1: the object has no field 'text'. Its fields are 'body'",
        ),
        (JSONL, b'{"text": ["a"]}\n', ["text.1"], r"a:1: the object has no field 'text\.1'"),
        (
            JSONL,
            b'["text"]\n',
            ["text"],
            "a:1: the line contains an array. Each line must contain one JSON object",
        ),
        (JSONL, b'{"text": "a"\n', ["text"], "a:1: not valid JSON"),
    ],
)
def test_errors_name_the_line_of_malformed_content(
    tmp_path: Path, form, data, columns, message
) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(write(tmp_path / "a", data), form, columns)


def test_short_rows_can_be_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.tsv", b"text\tlabel\na\t0\nbroken\nb\t1\n")
    with caplog.at_level(logging.WARNING):
        table = read_table(path, TableFormat(short_rows="skip"), ["text", "label"])
    assert table.locations == [f"{path}:2", f"{path}:4"]
    assert table.numbers == [0, 2]  # Skipped rows count too.
    assert "skipped 1 rows" in caplog.text


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tsv", b't\n"x, y\n'),
        ("a.csv", b't\n"""x, y"\n'),
        ("A.CSV", b't\n"""x, y"\n'),
        ("a.jsonl", b'{"t": "\\"x, y"}\n'),
        ("a.json", b'{"t": "\\"x, y"}\n'),
        ("a.jsonl.gz", gzip.compress(b'{"t": "\\"x, y"}\n', mtime=0)),
    ],
)
def test_the_format_is_recognized_by_the_extension(tmp_path: Path, name: str, data: bytes) -> None:
    path = write(tmp_path / name, data)
    assert read_table(path, TableFormat(), ["t"]).columns == {"t": ['"x, y']}


def test_the_delimiter_is_dropped_for_other_formats() -> None:
    semicolons = TableFormat(delimiter=";")
    assert semicolons.for_other_file("b.csv") == semicolons.for_other_file("b.txt") == semicolons
    assert (
        semicolons.for_other_file("b.jsonl.gz")
        == semicolons.for_other_file("b.tsv")
        == TableFormat()
    )
    csv = TableFormat(kind="csv", delimiter=";")
    assert csv.for_other_file("b.tsv") == csv


def test_the_format_of_compressed_files_is_recognized(tmp_path: Path) -> None:
    write(tmp_path / "a.csv.gz", gzip.compress(b"t;u\nx;y\n"))
    form = TableFormat(delimiter=";")
    assert read_table(str(tmp_path / "a.csv"), form, ["u"]).columns == {"u": ["y"]}


@pytest.mark.parametrize(
    ("name", "form", "message"),
    [
        (
            "a.txt",
            {},
            "a.txt: the extension .* Set form.kind to one of .* end in one of .tsv, .csv",
        ),
        ("a", {}, "Set form.kind to one of tsv, csv, jsonl, parquet, or rename"),
        ("a.jsonl", {"header": False}, "a.jsonl: header=False: the columns of JSON Lines"),
        ("a.tsv", {"delimiter": ";"}, "a.tsv: delimiter=';': only supported for kind='csv'"),
    ],
)
def test_unknown_and_incompatible_extensions_are_rejected(
    tmp_path: Path, name: str, form: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / name, b"t\nx\n")
    with pytest.raises(ValueError, match=message):
        read_table(path, TableFormat(**form), ["t"])


def test_missing_files_and_invalid_formats_are_rejected() -> None:
    message = "nowhere.tsv: no such file, with or without one of the extensions .gz, .xz"
    with pytest.raises(ValueError, match=message):
        read_table("nowhere.tsv", TSV, ["text"])
    for arguments, message in [
        ({"kind": "xls"}, "expected one of 'auto', 'tsv', 'csv', 'jsonl', 'parquet'"),
        ({"kind": "parquet", "header": False}, "JSON Lines and Parquet files always have names"),
        ({"kind": "jsonl", "header": False}, "always have names"),
        ({"kind": "csv", "delimiter": ""}, "delimiter='': expected one character"),
        ({"kind": "csv", "delimiter": "\n"}, r"delimiter='\\n': expected one character"),
        ({"kind": "tsv", "delimiter": ";"}, "only supported for kind='csv', but kind is 'tsv'"),
        ({"kind": "jsonl", "short_rows": "skip"}, "JSON Lines and Parquet files are never short"),
        ({"short_rows": "pad"}, "expected 'error' or 'skip'"),
    ]:
        with pytest.raises(ValueError, match=message):
            TableFormat(**arguments)
