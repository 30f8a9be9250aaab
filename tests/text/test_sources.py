import gzip
import json
import lzma
import random
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from bert_jax.text.documents import Document, SourceCounts, SourceOptions
from bert_jax.text.sources import read_documents, total_bytes

COMPRESS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}
DEFAULTS = SourceOptions()
SKIP = SourceOptions(on_bad_line="skip")


def read(*inputs: Path | str, options: SourceOptions = DEFAULTS):
    counts = SourceCounts()
    documents = list(read_documents([str(name) for name in inputs], options, counts))
    return documents, counts


def texts(*inputs: Path | str, options: SourceOptions = DEFAULTS) -> list[str]:
    return [document.text for document in read(*inputs, options=options)[0]]


def json_lines(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_blank_lines_separate_text_documents(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(
        b"\xef\xbb\xbf\n\nFirst line,\nsecond.\n \t\nNext \xc3\xa9.\r\nCR LF\r\n\r\nlast"
    )
    documents, counts = read(path)
    assert documents == [
        Document("First line,\nsecond.", f"{path}:3"),
        Document("Next é.\nCR LF", f"{path}:6"),
        Document("last", f"{path}:9"),
    ]
    assert counts == SourceCounts(
        documents=3,
        text_bytes=sum(len(document.text.encode()) for document in documents),
        bytes_read=path.stat().st_size,
        files=1,
    )


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_text_and_json_lines_are_read(tmp_path, suffix):
    text = tmp_path / f"a.txt{suffix}"
    text.write_bytes(COMPRESS[suffix]("eins é\n\nzwei\n".encode()))
    jsonl = tmp_path / f"b.jsonl{suffix}"
    jsonl.write_bytes(COMPRESS[suffix](json_lines({"text": "drei\n\nvier 中"}, {"text": "fünf"})))
    documents, counts = read(text, jsonl)
    assert [document.text for document in documents] == [
        "eins é",
        "zwei",
        "drei\n\nvier 中",
        "fünf",
    ]
    assert [document.source for document in documents[2:]] == [f"{jsonl}:1", f"{jsonl}:2"]
    size = text.stat().st_size + jsonl.stat().st_size
    assert counts.bytes_read == size == total_bytes([str(text), str(jsonl)])


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "a.txt.gz", "a.jsonl.zst"])
def test_an_empty_file_is_refused_or_counted(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{name}: the file is empty"):
        texts(path)
    documents, counts = read(path, options=SKIP)
    assert documents == []
    assert (counts.empty_files, counts.files) == (1, 1)


def test_a_file_without_a_document_is_refused_or_counted(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n  \n\n")
    with pytest.raises(ValueError, match="no usable document"):
        texts(path)
    assert read(path, options=SKIP)[1].empty_files == 1


def test_errors_name_the_line_and_position_of_undecodable_bytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfgood\nbad \xff here\nmore\n\nnext\nends mid \xc3")
    with pytest.raises(ValueError, match=r"a\.txt:2: cannot decode byte 0xff as utf-8 at byte 12 "):
        texts(path)
    documents, counts = read(path, options=SKIP)
    assert [document.text for document in documents] == ["good\nmore", "next"]
    assert counts.bad_lines == 2
    assert texts(path, options=SourceOptions(encoding="latin-1"))[1] == "next\nends mid Ã"


def test_an_undecodable_byte_in_a_line_longer_than_the_buffer_is_found(tmp_path):
    line = "é" * 2_000_001  # The read buffer ends in the middle of a character.
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" + line.encode() + b"\xff" + line.encode() + b"\nafter\n")
    position = 1 + 2 * len(line)
    with pytest.raises(ValueError, match=rf"a\.txt:1: .*0xff as utf-8 at byte {position} "):
        texts(path)
    documents, counts = read(path, options=SKIP)
    assert counts.bad_lines == 1
    assert documents[0].text.endswith("é\nafter")
    path.write_bytes(b"x" + line.encode())
    assert texts(path) == ["x" + line]


def test_skipped_json_lines_are_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        json_lines({"id": 1, "text": "good"})
        + b'{"text": "cut\n'
        + b"\n"  # Blank lines are ignored.
        + b'["text"]\n'
        + b'{"id": 2, "title": "x"}\n'
        + b'{"text": null}\n'
        + b'{"text": ["a"]}\n'
        + b'{"text": "bad \xff"}\n'
        + b'{"text": "\\ud83d alone"}\n'
        + b'{"text": "n", "n": ' + b"9" * 5000 + b"}\n"
        + b"[" * 100_000 + b"\n"
        + b'{"text": ""}\n'
        + b'{"text": "\\ud83d\\ude00 pair"}'
    )  # fmt: skip
    documents, counts = read(path, options=SKIP)
    assert [document.text for document in documents] == ["good", "😀 pair"]
    assert (counts.bad_lines, counts.empty_documents) == (9, 1)
    assert documents[1].source == f"{path}:13"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut', r"a\.jsonl:2: not valid JSON: Unterminated string"),
        (b'["text"]', r"a\.jsonl:2: expected a JSON object on each line, not an array"),
        (
            b'{"id": 2}',
            r"a\.jsonl:2: no field 'text'; the fields are 'id' \(choose one with --text",
        ),
        (b'{"text": null}', r"a\.jsonl:2: field 'text' is null, not a string"),
        (b'{"text": 3}', r"a\.jsonl:2: field 'text' is a number, not a string"),
        (b'{"text": "\xff"}', r"a\.jsonl:2: cannot decode byte 0xff as utf-8 at byte 27 "),
        (b'{"text": "\\ud83d"}', r"a\.jsonl:2: the text has a lone surrogate at character 0"),
    ],
)
def test_a_bad_json_line_is_an_error_by_default(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=message):
        texts(path)


def test_a_field_missing_from_all_lines_is_always_an_error(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines({"body": "one"}, {"body": "two"}))
    with pytest.raises(
        ValueError, match="no line has the field 'text'; the fields of the last line are 'body'"
    ):
        texts(path, options=SKIP)
    assert texts(path, options=SourceOptions(text_field="body")) == ["one", "two"]


def test_a_long_text_document_is_split_at_line_ends_without_loss(tmp_path):
    lines = [f"line {i} " + "wörter " * (i % 9) for i in range(2000)]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines) + "\n\nsecond", encoding="utf-8")
    documents, counts = read(path, options=SourceOptions(max_document_bytes=4096))
    assert counts.split_documents == 1
    assert documents[-1].text == "second"
    parts = [document.text for document in documents[:-1]]
    assert max(len(part.encode()) for part in parts) <= 4096
    assert min(len(part.encode()) for part in parts[:-1]) > 4096 - 100
    assert [line.strip() for part in parts for line in part.split("\n")] == [
        line.strip() for line in lines
    ]


@pytest.mark.parametrize("separator", [" ", ""])
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".parquet"])
def test_a_long_line_is_split_at_spaces_or_characters_without_loss(tmp_path, suffix, separator):
    words = separator.join(["größe中😀"] * 3000)
    path = tmp_path / f"a{suffix}"
    match suffix:
        case ".txt":
            path.write_text(words, encoding="utf-8")
        case ".jsonl":
            path.write_text(json.dumps({"text": words}, ensure_ascii=False), encoding="utf-8")
        case ".parquet":
            pq.write_table(pa.table({"text": [words]}), path)
    options = SourceOptions(max_document_bytes=10_000)
    documents, counts = read(path, options=options)
    assert counts.split_documents == 1
    assert all(9_900 < len(document.text.encode()) <= 10_000 for document in documents[:-1])
    assert separator.join(document.text for document in documents) == words


def test_a_json_line_over_the_limit_is_a_bad_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(json_lines({"text": "x" * 10_000}, {"text": "short"}))
    options = SourceOptions(max_document_bytes=1024)
    with pytest.raises(ValueError, match=r"a\.jsonl:1: the line is longer than 8192 bytes"):
        texts(path, options=options)
    documents, counts = read(
        path, options=SourceOptions(max_document_bytes=1024, on_bad_line="skip")
    )
    assert [document.text for document in documents] == ["short"]
    assert counts.bad_lines == 1


@pytest.mark.parametrize("suffix", COMPRESS)
def test_memory_does_not_grow_with_the_file(tmp_path, suffix):
    generator = random.Random(0)
    lines = json_lines(*({"text": generator.randbytes(1000).hex()} for _ in range(12_000)))
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(lzma.compress(lines, preset=0) if suffix == ".xz" else COMPRESS[suffix](lines))
    counts = SourceCounts()
    tracemalloc.start()
    num_bytes = sum(
        len(document.text) for document in read_documents([str(path)], SourceOptions(), counts)
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert num_bytes == counts.text_bytes == 24e6
    assert peak < 6e6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"encoding": "utf-16"},
            "encoding='utf-16': a newline is not a single byte in this encoding",
        ),
        ({"encoding": "utf-8-sig"}, "encoding='utf-8-sig': use 'utf-8', which also skips a byte"),
        ({"encoding": "utf-ate"}, "encoding='utf-ate': Python has no such codec"),
        ({"on_bad_line": "ignore"}, "on_bad_line='ignore': expected 'error' or 'skip'"),
        ({"max_document_bytes": 10}, "max_document_bytes=10: expected at least 1024"),
        ({"text_field": ""}, "text_field='': expected the name of the field"),
    ],
)
def test_options_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        SourceOptions(**arguments)


def test_a_real_corpus_has_its_published_size(shared_data):
    pattern = str(shared_data / "corpus_small" / "*.jsonl.xz")
    documents, counts = read(pattern)
    assert counts.documents == 15 + 365
    assert counts.text_bytes == 5_560_847 + 3_592_780
    assert counts.bytes_read == total_bytes([pattern])
