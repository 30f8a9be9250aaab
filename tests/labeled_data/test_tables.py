"""Tables: what a column holds and where it came from, whatever the file is and is packed in."""

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
    assert table.places == [f"{path}:{number}" for number in range(2, len(ROWS) + 2)]


def test_columns_go_by_number_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", tsv_bytes(ROWS).removesuffix(b"\n"))
    table = read_table(path, BARE, ["1", "0"])
    assert table.columns == {"1": columns_of(ROWS)["label"], "0": columns_of(ROWS)["text"]}
    assert table.places[0] == f"{path}:1"


@pytest.mark.parametrize("suffix, pack", [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed_files_are_found_by_the_plain_name(tmp_path: Path, suffix, pack) -> None:
    data = tsv_bytes([["text", "label"], *ROWS])
    packed = write(tmp_path / f"a.tsv{suffix}", pack(data))
    plain = read_table(str(tmp_path / "a.tsv"), TSV, ["text", "label"])
    assert plain == read_table(packed, TSV, ["text", "label"])
    assert plain.columns == columns_of(ROWS) and plain.places[0] == f"{packed}:2"
    write(tmp_path / f"b.tsv{suffix}", pack(data * 1000)[:-20])
    with pytest.raises(ValueError, match=r"b\.tsv\.\wz:\d+: the .* archive is truncated"):
        read_table(str(tmp_path / "b.tsv"), TSV, ["text"])


def test_a_text_of_csv_may_be_long(tmp_path: Path) -> None:
    """Longer than what Python's module takes unless told otherwise, 131,072 characters."""
    path, text = tmp_path / "a.csv", "a, b " * 30_000
    path.write_text(f'text,label\n"{text}",1\n')
    assert read_table(str(path), CSV, ["text"]).columns["text"] == [text]


def test_csv_is_that_of_python(tmp_path: Path) -> None:
    rows = [*ROWS, ["two\nlines", "1"], ["after", "0"]]
    path = tmp_path / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text", "label"], *rows])
    table = read_table(str(path), CSV, ["label", "text"])
    assert table.columns == columns_of(rows)
    first = 2 + len(ROWS)  # a row is where it begins
    assert table.places[-2:] == [f"{path}:{first}", f"{path}:{first + 2}"]


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_a_delimiter_of_csv(tmp_path: Path, delimiter: str) -> None:
    """As spreadsheets write it where the comma is in numbers."""
    rows = [*ROWS, ["two\nlines", "1,5"], [f"a{delimiter}b", "0"]]
    path = tmp_path / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows([["text", "label"], *rows])
    form = TableFormat(kind="csv", delimiter=delimiter)
    assert read_table(str(path), form, ["label", "text"]).columns == columns_of(rows)


def test_json_lines_give_numbers_as_text_where_they_may(tmp_path: Path) -> None:
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
    assert table.places[1] == f"{path}:3"


def test_parquet_gives_what_json_lines_do(tmp_path: Path) -> None:
    records = [
        {"text": f"é{n}", "label": n % 3, "more": {"choices": ["x", f"y{n}"]}, "sets": ["a", "b"]}
        for n in range(2500)
    ]
    path, lines = tmp_path / "a.parquet", tmp_path / "a.jsonl"
    pq.write_table(pa.Table.from_pylist(records), path, row_group_size=700)
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    wanted = (["text", "more.choices.1"], ["label", "sets"], ["sets"])
    found = read_table(str(path), PARQUET, *wanted)
    assert found.columns == read_table(str(lines), JSONL, *wanted).columns
    assert found.columns["sets"][0] == '["a", "b"]'
    assert found.places[2400] == f"{path}:row 2400" and found.numbers[2400] == 2400


def test_bad_parquet_is_refused_by_row(tmp_path: Path) -> None:
    path = tmp_path / "a"
    rows = [{"text": "a", "day": datetime.date(2026, 1, 1)}, {"text": None, "day": None}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    for columns, message in (
        (["body"], "a: no column 'body'; its columns are 'text', 'day'"),
        (["text"], "a:row 1: column 'text' is null"),
        (["day"], "a:row 0: column 'day' contains a date; expected strings or numbers"),
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
        (TSV, b"text,label\na,0\n", ["text"], "named 'text'; .*If commas .*, set form.kind=.csv."),
        (CSV, b"text\tlabel\na\t0\n", ["text"], "columns are .*If tabs .*, set form.kind=.tsv."),
        (CSV, b"text;label\na;0\n", ["text"], "If semicolons .*, set form.delimiter=.;."),
        (CSV, b"text;label\na, b;0\n", ["text;label"], "a:2: 2 columns, .*set form.delimiter=.;."),
        (TSV, b"text;label\na;0\n", ["text"], "set form.kind=.csv. and form.delimiter=.;."),
        (BARE, b"a\tb\nc\td\n", ["0", "7"], "columns are '0' to '1'. Fix"),
        (
            TableFormat(kind="tsv", header=False, short_rows="skip"),
            b"a;b\n",
            ["1"],
            "only '0'.*delimiter=.;.",
        ),
        (TSV, b"a\tlabel\na\t0\n", ["text"], "Name a column 'text' in the file, in a line before"),
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
            r"a:1: a carriage return .*with `tr '\\r' '\\n'`",
        ),
        (TSV, b"text\tlabel\ra\t0\rb\t1\r", ["text"], r"a:1: a carriage return .*with `tr '\\r' '"),
        (BARE, b"a\t0\rb\t1", ["0"], "a:1: a carriage return"),
        (TSV, b"good film\t1\nbad film\t0\n", ["text"], "'good film', '1'.*header=False"),
        (TSV, b"text\tlabel\na\t0\nb\n", ["text", "label"], "a:3: the row ends .*'label'"),
        (
            TSV,
            b"text\tlabel\na\t0\n\nb\t1\n",
            ["text", "label"],
            "a:3: the row ends .*'label'",
        ),
        (TSV, b"text\tlabel\n", ["text"], "holds no row"),
        (TSV, b"", ["text"], "a is empty; expected at least one example"),
        (TSV, b"text\tlabel\na\t0\nb\tc\t1\n", ["text"], "a:3: 3 columns, the first line has 2"),
        (CSV, b"label,text\n1,well, this\n", ["text"], "a:2: 3 columns, .* has 2: .* quotes"),
        (BARE, b"a\tb\na\tb\tc\n", ["0"], "a:2: 3 columns, the first"),
        (TSV, b"text\nab\xff\n", ["text"], "a:2: byte 0xff is not UTF-8"),
        (BARE, b"a\tb\n", ["text"], "'text' is asked for by name, but header"),
        (BARE, b"a\tb\n", ["2"], "a:1: no column '2'; .* '0' to '1'"),
        (CSV, b'text\nok\n"open\nand on', ["text"], "a:3: not CSV as of RFC 4180"),
        (CSV, b'text\n"open\nand on', ["text"], r'a quote, ", opens here that nothing closes'),
        (JSONL, b'{"text": "a"}\n{"text": 3}\n', ["text"], "a:2: column 'text' is 3, a JSON num"),
        (JSONL, b'{"text": null}\n', ["text"], "a:1: column 'text' is null, a JSON null"),
        (JSONL, b'{"text": "\\ud800"}\n', ["text"], "a:1: .*lone surrogate at character 0"),
        (JSONL, b'{"body": "a"}\n', ["text"], "a:1: no field 'text'; its fields are 'body'"),
        (JSONL, b'{"text": ["a"]}\n', ["text.1"], r"a:1: no field 'text\.1'"),
        (JSONL, b'["text"]\n', ["text"], "a:1: a JSON list; expected one object"),
        (JSONL, b'{"text": "a"\n', ["text"], "a:1: not valid JSON"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, form, data, columns, message) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(write(tmp_path / "a", data), form, columns)


def test_short_rows_can_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.tsv", b"text\tlabel\na\t0\nbroken\nb\t1\n")
    with caplog.at_level(logging.WARNING):
        table = read_table(path, TableFormat(short_rows="skip"), ["text", "label"])
    assert table.places == [f"{path}:2", f"{path}:4"]
    assert table.numbers == [0, 2]  # that which is left out has one too
    assert "left out 1 rows" in caplog.text


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
def test_a_name_tells_how_rows_stand(tmp_path: Path, name: str, data: bytes) -> None:
    path = write(tmp_path / name, data)
    assert read_table(path, TableFormat(), ["t"]).columns == {"t": ['"x, y']}


def test_another_file_needs_no_delimiter_unless_it_is_csv() -> None:
    semicolons = TableFormat(delimiter=";")
    assert semicolons.for_another("b.csv") == semicolons.for_another("b.txt") == semicolons
    assert semicolons.for_another("b.jsonl.gz") == semicolons.for_another("b.tsv") == TableFormat()
    csv = TableFormat(kind="csv", delimiter=";")
    assert csv.for_another("b.tsv") == csv


def test_a_packed_file_beside_the_name_is_told_by_that_name(tmp_path: Path) -> None:
    write(tmp_path / "a.csv.gz", gzip.compress(b"t;u\nx;y\n"))
    form = TableFormat(delimiter=";")
    assert read_table(str(tmp_path / "a.csv"), form, ["u"]).columns == {"u": ["y"]}


@pytest.mark.parametrize(
    ("name", "form", "message"),
    [
        (
            "a.txt",
            {},
            "a.txt: the format cannot be .* Set form.kind to one of .* end in one of .tsv, .csv",
        ),
        ("a", {}, "Set form.kind to one of tsv, csv, jsonl, parquet, or rename"),
        ("a.jsonl", {"header": False}, "a.jsonl: header is False; JSON Lines"),
        ("a.tsv", {"delimiter": ";"}, "a.tsv: delimiter is ';'; it is for kind='csv' alone"),
    ],
)
def test_a_name_that_tells_nothing_or_what_cannot_be_is_refused(
    tmp_path: Path, name: str, form: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / name, b"t\nx\n")
    with pytest.raises(ValueError, match=message):
        read_table(path, TableFormat(**form), ["t"])


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match="nowhere.tsv does not exist, nor does it with .gz, .xz"):
        read_table("nowhere.tsv", TSV, ["text"])
    for arguments, message in [
        ({"kind": "xls"}, "expected one of 'auto', 'tsv', 'csv', 'jsonl', 'parquet'"),
        ({"kind": "parquet", "header": False}, "JSON Lines and Parquet always have names"),
        ({"kind": "jsonl", "header": False}, "always have names"),
        ({"kind": "csv", "delimiter": ""}, "delimiter is ''; expected one character"),
        ({"kind": "csv", "delimiter": "\n"}, r"delimiter is '\\n'; expected one character"),
        ({"kind": "tsv", "delimiter": ";"}, "it is for kind='csv' alone, and kind is 'tsv'"),
        ({"kind": "jsonl", "short_rows": "skip"}, "JSON Lines and Parquet are never short"),
        ({"short_rows": "pad"}, "expected 'error' or 'skip'"),
    ]:
        with pytest.raises(ValueError, match=message):
            TableFormat(**arguments)
