"""Make raw text for `prepare` and lines for `predict`, in many encodings and file formats."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from assets import Assets, prepare_words
from cases import Case, Ended, Expectation, command_case
from damage import deep_json, truncations

Made = tuple[str, str, bytes, tuple[str, ...], Expectation]


def text_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield cases that run `prepare` on generated inputs and `predict` on generated lines."""
    rng = random.Random(f"{seed}/text")
    number = 0
    for name, file, content, more, expectation in [*_texts(assets, rng), *_lines(assets, rng)]:
        number += 1
        yield command_case(
            "texts",
            f"{number:03d} {file} {name}",
            partial(_prepare, assets, file, more),
            expectation=expectation,
            write=partial(_write, file, content),
            mentions="" if more else file.replace(".", r"\."),
            check=partial(_same_corpus, assets),
            must_not_exist="corpus/manifest.json",
        )
    for name, model, file, content, expectation in _asked(rng):
        number += 1
        yield command_case(
            "texts",
            f"{number:03d} predict {model} {name}",
            partial(_predict, assets, model, file),
            expectation=expectation,
            write=partial(_write, file, content),
            mentions=file.replace(".", r"\."),
            check=_a_result_for_each,
            must_not_exist="results.jsonl",
        )


def _write(file: str, content: bytes, here: Path) -> None:
    (here / file).write_bytes(content)


def _prepare(assets: Assets, file: str, more: tuple[str, ...], here: Path) -> tuple[str, ...]:
    return prepare_words(here / file, assets / "wordpiece", here / "corpus", *more)


def _predict(assets: Assets, model: str, file: str, here: Path) -> tuple[str, ...]:
    words = ("--input", str(here / file), "--output", str(here / "results.jsonl"))
    return ("predict", str(assets / model), *words)


def _same_corpus(assets: Assets, here: Path, _: Ended) -> str:
    """Compare the corpus with the one made from a plain file with the same text."""
    given, expected = (
        json.loads((corpus / "manifest.json").read_text())
        for corpus in (here / "corpus", assets / "corpus")
    )
    return "" if given["fingerprint"] == expected["fingerprint"] else "a different corpus"


def _a_result_for_each(here: Path, _: Ended) -> str:
    given = next(file for file in here.iterdir() if file.name.startswith("given"))
    lines = [line for line in given.read_text("utf-8-sig").split("\n") if line.strip()]
    results = (here / "results.jsonl").read_text("utf-8").splitlines()
    for result in results:
        json.loads(result)
    return "" if len(results) == len(lines) else f"{len(results)} results for {len(lines)} lines"


def _texts(assets: Assets, rng: random.Random) -> Iterator[Made]:
    """Yield an asset's plain text in other encodings and archives, and files that are not text."""
    text = (assets / "text.txt").read_bytes()
    packed = {
        "gz": gzip.compress(text),
        "xz": lzma.compress(text),
        "zst": zstandard.ZstdCompressor().compress(text),
    }
    latin = text.replace(b"boat", b"b\xf4at")
    yield "as it is", "given.txt", text, (), "accepted"
    yield "byte-order mark", "given.txt", b"\xef\xbb\xbf" + text, (), "accepted"
    yield "CRLF", "given.txt", text.replace(b"\n", b"\r\n"), (), "accepted"
    yield "many blank lines", "given.txt", text.replace(b"\n\n", b"\n\n\n \n\n"), (), "accepted"
    for ending, content in packed.items():
        yield ending, f"given.txt.{ending}", content, (), "accepted"
        for name, cut in truncations(content, rng, 2):
            yield f"{ending} {name}", f"given.txt.{ending}", cut, (), "refused"
        yield f"{ending} that is plain", f"given.txt.{ending}", text, (), "refused"
        yield f"{ending} random", f"given.txt.{ending}", rng.randbytes(500), (), "refused"
    for _ in range(4):
        place = rng.randrange(10, len(text) - 10)
        broken = text[:place] + bytes([rng.randrange(0x80, 0xC0)]) + text[place:]
        yield f"byte {place} not UTF-8", "given.txt", broken, (), "refused"
    yield "Latin-1", "given.txt", latin, (), "refused"
    yield "UTF-16", "given.txt", text.decode().encode("utf-16"), (), "refused"
    yield "UTF-16 by --encoding", "given.txt", text, ("--encoding", "utf-16"), "refused"
    yield "an encoding of no text", "given.txt", text, ("--encoding", "base64"), "refused"
    yield "an encoding that is not there", "given.txt", text, ("--encoding", "utf-9"), "refused"
    yield "empty", "given.txt", b"", (), "refused"
    yield "white space", "given.txt", b" \n\n\t\n" * 50, (), "refused"
    for ending in ("csv", "pdf", "zip", "html", "tar", "bz2"):
        yield "of a known other kind", f"given.{ending}", text, (), "refused"


def _lines(assets: Assets, rng: random.Random) -> Iterator[Made]:
    """Yield JSON Lines and Parquet files."""
    data = (assets / "jsonl.jsonl").read_bytes()
    records = [json.loads(line) for line in data.splitlines()]
    more = "".join(json.dumps({"id": i, "n": {"a": [1]}} | r) + "\n" for i, r in enumerate(records))
    yield "as it is", "given.jsonl", data, (), "accepted"
    yield "other fields", "given.jsonl", more.encode(), (), "accepted"
    yield "blank lines", "given.jsonl", data.replace(b"\n", b"\n\n"), (), "accepted"
    yield "byte-order mark", "given.jsonl", b"\xef\xbb\xbf" + data, (), "accepted"
    yield "packed", "given.jsonl.gz", gzip.compress(data), (), "accepted"
    lines = data.decode().splitlines()
    for odd in (
        "{", "[]", "null", "3", '"text"', "{}", '{"text": null}', '{"text": 3}', '{"text": ["a"]}',
        '{"txt": "a"}', '{"text": "a"} {"text": "b"}', "{'text': 'a'}", '{"text": "\\ud800"}',
        '{"text": "a"', "NaN", '{"text": "a",}', "\x00", deep_json().decode(),
        '{"n": ' + "9" * 5000 + "}", '{"text": ' + "[" * 50_000,
    ):  # fmt: skip
        place = rng.randrange(1, len(lines))
        content = "\n".join([*lines[:place], odd, *lines[place:]]).encode()
        yield f"line {odd[:18]!r}", "given.jsonl", content, (), "refused"
    yield "a whole JSON array", "given.json", json.dumps(records, indent=1).encode(), (), "refused"
    yield "no text field", "given.jsonl", b'{"a": "b"}\n' * 5, (), "refused"
    yield "an empty --text-field", "given.jsonl", data, ("--text-field", ""), "refused"
    texts = [record["text"] for record in records]
    yield "as it is", "given.parquet", _parquet({"text": texts}), (), "accepted"
    yield (
        "two columns",
        "given.parquet",
        _parquet({"a": list(range(len(texts))), "text": texts}),
        (),
        "accepted",
    )
    yield "bytes", "given.parquet", _parquet({"text": [t.encode() for t in texts]}), (), "accepted"
    whole = _parquet({"text": texts})
    for name, cut in truncations(whole, rng, 6):
        yield name, "given.parquet", cut, (), "refused"
    for name, columns in {
        "another column": {"txt": texts},
        "numbers": {"text": list(range(20))},
        "lists": {"text": [["a"], ["b"]]},
        "a null": {"text": [*texts, None]},
        "no rows": {"text": pa.array([], pa.string())},
        "not UTF-8": {"text": [b"\xff\xfe", b"abc"]},
        "nested": {"text": [{"a": "b"}]},
    }.items():
        yield name, "given.parquet", _parquet(columns), (), "refused"
    for _ in range(6):
        broken = bytearray(whole)
        place = rng.randrange(4, len(whole) - 8)
        broken[place : place + 4] = rng.randbytes(4)
        yield f"bytes at {place} overwritten", "given.parquet", bytes(broken), (), "anything"
    yield "text", "given.parquet", b"PAR1 is no Parquet file\n" * 9 + b"PAR1", (), "refused"


def _parquet(columns: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def _asked(rng: random.Random) -> Iterator[tuple[str, str, str, bytes, Expectation]]:
    """Yield inputs for `predict` as tuples (name, model, file, content, expectation)."""
    texts = b"the boat\na lovely anchor\nawful cold soup\n"
    yield "lines", "tuned-table", "given.txt", texts, "accepted"
    yield "byte-order mark", "tuned-table", "given.txt", b"\xef\xbb\xbf" + texts, "accepted"
    yield "CRLF", "tuned-table", "given.txt", texts.replace(b"\n", b"\r\n"), "accepted"
    yield "a long line", "tuned-table", "given.txt", b"boat " * 100_000 + b"\n" + texts, "accepted"
    yield "a line of one word", "tuned-table", "given.txt", b"x" * 300_000 + b"\n", "accepted"
    yield "controls", "tuned-table", "given.txt", b"a\x01\x02 boat\x7f\n", "accepted"
    yield "NULs", "tuned-table", "given.txt", b"a\x00b\n", "accepted"
    yield "emoji", "tuned-table", "given.txt", "\U0001f600 \u200d a\u0301\n".encode(), "accepted"
    yield "not UTF-8", "tuned-table", "given.txt", b"boat\n\xff\xfe\n", "refused"
    yield "UTF-16", "tuned-table", "given.txt", texts.decode().encode("utf-16"), "refused"
    objects = [
        ("tuned-table", {"text": "the boat"}),
        ("tuned-tags", {"words": ["Matt", "saw", "Rome"]}),
        ("tuned-choices", {"context": "the boat", "choices": ["a gull", "an oven"]}),
        ("tuned-spans", {"question": "where is it", "context": "the boat is in Rome now"}),
        ("run", {"text": "the [MASK] boat"}),
    ]
    for model, whole in objects:
        good = json.dumps(whole)
        yield "an object", model, "given.jsonl", f"{good}\n{good}\n".encode(), "accepted"
        yield "with an id", model, "given.jsonl", _dump(whole | {"id": [1, "a"]}), "accepted"
        for key in whole:
            lacking = {k: v for k, v in whole.items() if k != key}
            yield f"without {key}", model, "given.jsonl", _dump(lacking), "refused"
            for value in (None, 3, True, {"a": 1}, [1], [None], [["a"]], 1.5):
                name = f"{key} {value!r}"
                yield name, model, "given.jsonl", _dump(whole | {key: value}), "refused"
        for odd in ("[]", "null", "{", "3", good[:-3], good + good, "\x00", deep_json().decode()):
            content = f"{good}\n{odd}\n".encode()
            yield f"line {odd[:12]!r}", model, "given.jsonl", content, "refused"
    yield (
        "an id that is not finite",
        "tuned-table",
        "given.jsonl",
        b'{"text": "a", "id": NaN}',
        "refused",
    )
    yield "surrogate", "tuned-table", "given.jsonl", b'{"text": "\\ud800"}', "refused"
    yield (
        "no choices",
        "tuned-choices",
        "given.jsonl",
        _dump({"context": "a", "choices": []}),
        "refused",
    )
    yield "no words", "tuned-tags", "given.jsonl", _dump({"words": []}), "anything"
    yield "an empty word", "tuned-tags", "given.jsonl", _dump({"words": ["a", ""]}), "anything"
    yield "no mask", "run", "given.txt", b"the boat\n", "refused"


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"
