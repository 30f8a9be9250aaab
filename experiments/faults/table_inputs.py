"""Make files for fine-tuning tasks: tables, tagged sentences, choices and questions."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from assets import Assets
from cases import Case, Ended, Expectation, command_case
from damage import deep_json, not_a_file_of_its_kind, truncations

# An input and how to use it: (model, name, file, content, overrides, expectation).
Made = tuple[str, str, str, bytes, tuple[str, ...], Expectation]


def table_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield cases that evaluate fine-tuned models on generated files."""
    rng = random.Random(f"{seed}/tables")
    made = [*_tables(assets, rng), *_tagged(assets, rng), *_choices(assets, rng)]
    made += _questions(assets, rng)
    for number, (model, name, file, content, overrides, expectation) in enumerate(made, 1):
        yield command_case(
            "tables",
            f"{number:03d} {model} {file} {name}".replace("/", "|"),
            partial(_evaluate, assets, model, file, overrides),
            expectation=expectation,
            write=partial(_write, file, content),
            mentions="" if overrides else file.split(".")[0],
            check=partial(_same_scores, assets, model),
            must_not_exist="scores.json",
        )


def _write(file: str, content: bytes, here: Path) -> None:
    (here / file).write_bytes(content)


def _evaluate(
    assets: Assets, model: str, file: str, overrides: tuple[str, ...], here: Path
) -> tuple[str, ...]:
    section = {"table": "sentences"}.get(model, model)
    config = (
        "--config",
        str(assets / f"{model}.py"),
        f"--config.{section}.files.validation={here / file}",
        *(f"--config.{section}.files.{word}" for word in overrides),
    )
    return (
        "evaluate",
        str(assets / f"tuned-{model}"),
        *config,
        "--output",
        str(here / "scores.json"),
    )


def _same_scores(assets: Assets, model: str, here: Path, _: Ended) -> str:
    """Compare the scores with the run's own scores on the same examples."""
    # If there is no file "given.*", the evaluated file has additional rows and other scores.
    if not any(here.glob("given*")):
        return ""
    expected = json.loads((assets / f"tuned-{model}/scores.json").read_text())
    found = json.loads((here / "scores.json").read_text())["sets"]
    [scores] = [each["scores"] for each in found.values()]
    text = json.dumps(expected)
    missing = [name for name, x in scores.items() if json.dumps(x) not in text]
    return f"scores differ from the run's: {', '.join(missing)}" if missing == [*scores] else ""


def _tables(assets: Assets, rng: random.Random) -> Iterator[Made]:
    data = (assets / "table-validation.csv").read_bytes()
    rows = [line.split(",") for line in data.decode().splitlines()[1:]]
    records = [{"text": text, "label": label} for text, label in rows]

    def csv(name: str, content: bytes, expectation: Expectation = "refused", *more: str) -> Made:
        return ("table", name, "given.csv", content, more, expectation)

    yield csv("as it is", data, "accepted")
    yield csv("byte-order mark", b"\xef\xbb\xbf" + data, "accepted")
    yield csv("CRLF", data.replace(b"\n", b"\r\n"), "accepted")
    yield csv("no last line end", data.rstrip(), "accepted")
    yield csv("columns swapped", _csv([["label", "text"], *(r[::-1] for r in rows)]), "accepted")
    yield csv(
        "other columns",
        _csv([["id", "text", "label"], *([str(i), *r] for i, r in enumerate(rows))]),
        "accepted",
    )
    quoted = "text,label\n" + "".join(f'"{text}","{label}"\n' for text, label in rows)
    yield csv("quoted", quoted.encode(), "accepted")
    yield csv("semicolons", data.replace(b",", b";"), "accepted", "form.delimiter=;")
    yield csv("semicolons unsaid", data.replace(b",", b";"))
    for name, content in not_a_file_of_its_kind(rng):
        yield csv(name, content)
    yield csv("header only", b"text,label\n")
    yield csv("no header", data.split(b"\n", 1)[1])
    yield csv("column twice", data.replace(b"text,label", b"text,text", 1))
    yield csv("header with a space", data.replace(b"text,label", b"text, label", 1))
    yield csv("Mac line ends", data.replace(b"\n", b"\r"))
    yield csv("UTF-16", data.decode().encode("utf-16"))
    yield csv("an open quote", data + b'"boat,good\n')
    yield "table", "NUL", "more.csv", data + b"a\x00b,good\n", (), "accepted"
    for _ in range(3):
        place = rng.randrange(14, len(data))
        yield csv(f"byte {place} not UTF-8", data[:place] + b"\xff" + data[place:])
    for odd in ("boat", "a,b,c", "boat,", "boat,GOOD", "boat,good ", "boat,2", ",", "boat,None"):
        place = rng.randrange(1, len(rows))
        lines = [",".join(row) for row in rows]
        content = "\n".join(["text,label", *lines[:place], odd, *lines[place:]]).encode()
        yield csv(f"row {odd!r}", content)
    huge = data + b"boat " * 400_000 + b",good\n"
    yield "table", "a huge cell", "more.csv", huge, (), "accepted"
    tsv = data.replace(b",", b"\t")
    yield "table", "tabs", "given.tsv", tsv, (), "accepted"
    yield (
        "table",
        "quotes mean nothing",
        "given.tsv",
        tsv.replace(b"boat", b'"boat'),
        (),
        "anything",
    )
    yield "table", "a tab more", "given.tsv", tsv + b"a\tb\tc\n", (), "refused"
    yield "table", "packed", "given.csv.gz", gzip.compress(data), (), "accepted"
    for name, cut in truncations(gzip.compress(data), rng, 2):
        yield "table", f"packed, {name}", "given.csv.gz", cut, (), "refused"
    jsonl = "".join(json.dumps(record) + "\n" for record in records)
    yield "table", "as it is", "given.jsonl", jsonl.encode(), (), "accepted"
    for odd in (
        '{"text": "a"}', '{"text": 3, "label": "good"}', '{"text": "a", "label": null}', "[]", "{",
        '{"text": null, "label": "good"}', '{"text": ["a"], "label": "good"}', deep_json().decode(),
        '{"text": "\\ud800", "label": "good"}', '{"text": "a", "label": "x"}', "null", "\x00",
        '{"text": "a", "label": {"a": 1}}', '{"text": "a", "label": ' + "9" * 5000 + "}",
    ):  # fmt: skip
        yield (
            "table",
            f"line {odd[:24]!r}",
            "given.jsonl",
            f"{jsonl}{odd}\n".encode(),
            (),
            "refused",
        )
    columns: dict[str, Any] = {key: [r[key] for r in records] for key in ("text", "label")}
    yield "table", "as it is", "given.parquet", _parquet(columns), (), "accepted"
    for name, change in {
        "numbers": {"text": list(range(len(rows)))},
        "nulls": {"text": [None] * len(rows)},
        "lists": {"text": [["a"]] * len(rows)},
        "another label": {"label": ["x"] * len(rows)},
    }.items():
        yield "table", name, "given.parquet", _parquet(columns | change), (), "refused"
    for name, cut in truncations(_parquet(columns), rng, 3):
        yield "table", name, "given.parquet", cut, (), "refused"
    for word in (
        "first=nothing", "first=", "label=nothing", "first=0", "form.kind=xls", "form.delimiter=",
        "form.delimiter=ab", "form.header=False", "form.short_rows=maybe", "labels=good",
        "labels=('good',)", "labels=('good', 'good')", "labels=('', 'good')", "labels=(1, 2)",
        "labels=('a', 'b')", "label_names=('x',)", "separator=||", "index=nothing", "second=text",
    ):  # fmt: skip
        yield "table", f"with {word}", "given.csv", data, (word,), "refused"


def _csv(rows: list[list[str]]) -> bytes:
    return "".join(",".join(row) + "\n" for row in rows).encode()


def _parquet(columns: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def _tagged(assets: Assets, rng: random.Random) -> Iterator[Made]:
    data = (assets / "tags-validation.txt").read_bytes()

    def tags(name: str, content: bytes, expectation: Expectation = "refused", *more: str) -> Made:
        return ("tags", name, "given.txt", content, more, expectation)

    yield tags("as it is", data, "accepted")
    yield tags("byte-order mark", b"\xef\xbb\xbf" + data, "accepted")
    yield tags("CRLF", data.replace(b"\n", b"\r\n"), "accepted")
    yield tags("spaces for tabs", data.replace(b"\t", b" "), "accepted")
    yield tags("more blank lines", data.replace(b"\n\n", b"\n\n\n\n"), "accepted")
    yield tags("no last line end", data.rstrip(), "accepted")
    for name, content in not_a_file_of_its_kind(rng):
        yield tags(name, content)
    lines = data.decode().splitlines()
    for odd in (
        "boat", "boat\t", "\tO", "boat\tX", "boat\tb-PER", "boat\tB-", "boat\tPER",
        "boat\tB-PER\tmore", "boat\tS-PER", "boat\tI_PER", "boat\to",
    ):  # fmt: skip
        place = rng.choice([i for i, line in enumerate(lines) if line])
        yield tags(f"line {odd!r}", "\n".join([*lines[:place], odd, *lines[place:]]).encode())
    yield tags("not UTF-8", data.replace(b"boat", b"b\xf4at"))
    yield tags("UTF-16", data.decode().encode("utf-16"))
    yield tags("Mac line ends", data.replace(b"\n", b"\r"))
    endless = data.replace(b"\n\n", b"\n") * 50
    yield "tags", "an endless sentence", "more.txt", endless, (), "accepted"
    yield tags("a word of 100,000 letters", b"x" * 100_000 + b"\tO\n\n" + data, "anything")
    for word in ("tag=9", "tag=x", "word=9", "word=-1", "kind=xml", "learn_as=BIO", "kind=conllu"):
        yield tags(f"with {word}", data, "refused", word)
    for cut in ("1\tboat\tboat\tNOUN\n\n", "a\tb\n\n", "1-2\tx\n\n", "1\tboat\n3\tgull\n\n"):
        yield (
            "tags",
            f"CoNLL-U {cut[:8]!r}",
            "given.conllu",
            cut.encode(),
            ("kind=conllu",),
            "refused",
        )


def _choices(assets: Assets, rng: random.Random) -> Iterator[Made]:
    data = (assets / "choices-validation.csv").read_bytes()

    def choices(
        name: str, content: bytes, expectation: Expectation = "refused", *more: str
    ) -> Made:
        return ("choices", name, "given.csv", content, more, expectation)

    yield choices("as it is", data, "accepted")
    yield choices("CRLF", data.replace(b"\n", b"\r\n"), "accepted")
    for name, content in not_a_file_of_its_kind(rng):
        yield choices(name, content)
    for odd in (
        "a,b,c,2",
        "a,b,c,-1",
        "a,b,c,x",
        "a,b,c,",
        "a,b,0",
        "a,b,c,d,0",
        "a,b,c,0.0",
        "a,b,c,00",
    ):
        yield choices(f"row {odd!r}", data + f"{odd}\n".encode())
    for word in (
        "context=", "context=x", "endings=()", "endings=('e0',)", "endings=('e0','e0')",
        "endings=e0", "endings=('e0','x')", "labels=('a',)", "label=e0",
        "endings=('e0','e1','label')",
    ):  # fmt: skip
        yield choices(f"with {word}", data, "refused", word)


def _questions(assets: Assets, rng: random.Random) -> Iterator[Made]:
    data = (assets / "spans-validation.json").read_bytes()

    def spans(name: str, content: bytes, expectation: Expectation = "refused") -> Made:
        return ("spans", name, "given.json", content, (), expectation)

    yield spans("as it is", data, "accepted")
    yield spans("indented", json.dumps(json.loads(data), indent=2).encode(), "accepted")
    yield spans("byte-order mark", b"\xef\xbb\xbf" + data, "accepted")
    for name, content in [*not_a_file_of_its_kind(rng), *truncations(data, rng, 4)]:
        yield spans(name, content)
    yield spans("nested deeply", deep_json())
    yield spans("UTF-16", data.decode().encode("utf-16"))

    def with_question(**changes: Any) -> bytes:
        content = json.loads(data)
        paragraphs = content["data"][0]["paragraphs"]
        question = rng.choice(paragraphs)["qas"][0]
        for key, value in changes.items():
            if value is KeyError:
                del question[key]
            else:
                question[key] = value
        return json.dumps(content).encode()

    answer = {"text": "Rome", "answer_start": 0}
    for name, content in {
        "no id": with_question(id=KeyError),
        "an id that is a number": with_question(id=3),
        "an id twice": with_question(id="q0").replace(b'"q1"', b'"q0"'),
        "no question": with_question(question=KeyError),
        "a question that is null": with_question(question=None),
        "no answers": with_question(answers=KeyError),
        "empty answers": with_question(answers=[]),
        "answers that are text": with_question(answers="Rome"),
        "an answer elsewhere": with_question(answers=[answer | {"text": "zzz"}]),
        "an answer before the text": with_question(answers=[answer | {"answer_start": -5}]),
        "an answer behind the text": with_question(answers=[answer | {"answer_start": 10**9}]),
        "an answer at 1.5": with_question(answers=[answer | {"answer_start": 1.5}]),
        "an answer at true": with_question(answers=[answer | {"answer_start": True}]),
        "an empty answer": with_question(answers=[answer | {"text": ""}]),
        "a surrogate": with_question(question="\ud800"),
    }.items():
        yield spans(name, content)
    for content in (b"{}", b'{"data": []}', b'{"data": {}}', b'{"data": [{"paragraphs": 1}]}'):
        yield spans(content.decode(), content)
