"""Lines in, a result for every line out: in order, named where they are wrong."""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from bert_jax import AnswerQuestion, Choose, Classify, Embed, FillMask, NextSentence, Tag
from bert_jax.cli import predict
from bert_jax.cli.main import main
from bert_jax.cli.predict_answers import answers
from bert_jax.cli.predict_input import chunks, read_ahead
from bert_jax.cli.predict_lines import Document, InputLine, UnusableLine
from bert_jax.cli.predict_tasks import TASKS
from bert_jax.data.tokenizer import Tokenizer

from ..commands import HANGS
from ..interop.conftest import make, quiet  # noqa: F401


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Work directories by head."""
    made = {}
    for head in ("pretraining", "classification", "tagging", "span", "multiple_choice"):
        directory = tmp_path_factory.mktemp(head)
        make(directory / "theirs", head)
        made[head] = directory / "ours"
        assert main(["import", str(directory / "theirs"), "--output", str(made[head])]) == 0
    return made


@pytest.fixture(autouse=True)
def no_programs_kept(monkeypatch) -> None:
    monkeypatch.setattr(predict, "keep_programs", lambda: None)


@pytest.fixture
def standard_input(monkeypatch, tmp_path_factory):
    """A function that makes bytes what standard input holds."""

    def holds(data: bytes) -> None:
        path = tmp_path_factory.mktemp("input") / "standard"
        path.write_bytes(data)
        monkeypatch.setattr(sys, "stdin", opened.enter_context(open(path)))

    with contextlib.ExitStack() as opened:
        yield holds


@pytest.fixture
def predicted(bert_jax_here, standard_input):
    """A function that runs `predict` over an input, expects success, and reads what it wrote."""

    def run(*words, text=None):
        if text is not None:
            standard_input(text.encode("utf-8"))
        finished = bert_jax_here("predict", *words)
        assert finished.code == 0, finished.errors
        return [json.loads(line) for line in finished.output.splitlines()]

    return run


@pytest.fixture
def refused(bert_jax_here, standard_input):
    """A function that runs `predict` over bytes, expects a refusal, and gives its words."""

    def run(*words, data=b""):
        if data is not None:
            standard_input(data)
        finished = bert_jax_here("predict", *words)
        assert finished.code == 2, finished.output
        assert "Traceback" not in finished.errors
        return finished.errors

    return run


def objects(*records: dict) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_masks(models, predicted):
    lines = predicted(
        models["pretraining"], "--top-k", 2, text="a [MASK].\n[MASK] b [MASK]\r\nc[MASK]"
    )
    fill = FillMask(models["pretraining"])
    for line, text in zip(lines, ("a [MASK].", "[MASK] b [MASK]", "c[MASK]"), strict=True):
        expected = fill(text, top_k=2)
        assert not line["truncated"] and len(line["masks"]) == len(expected.masks)
        for found, guesses in zip(line["masks"], expected.masks, strict=True):
            assert [guess["token"] for guess in found] == [guess.token for guess in guesses]
            assert found[0]["probability"] == pytest.approx(guesses[0].probability, abs=1e-6)


def test_pairs_and_ids(models, predicted):
    pairs = [("it rains", "so wet"), ("a", ""), ("b" * 60, "c")]
    records = [{"first": a, "second": b, "id": [n]} for n, (a, b) in enumerate(pairs)]
    lines = predicted(
        models["pretraining"], "--task", "next-sentence", text=objects(*records, records[0])
    )
    follows = NextSentence(models["pretraining"])
    for line, record in zip(lines, [*records, records[0]], strict=True):
        assert line["id"] == record["id"]
        expected = follows(record["first"], record["second"])
        assert line["probability"] == pytest.approx(expected.probability, abs=1e-6)
        assert line["truncated"] == expected.truncated
    classify = Classify(models["classification"])
    lines = predicted(models["classification"], text=objects(*records, {"text": "z", "id": None}))
    assert [line["label"] for line in lines] == [each.label for each in classify([*pairs, "z"])]
    assert lines[3]["id"] is None and set(lines[0]["scores"]) == {"no", "maybe", "yes"}


def test_a_model_of_pairs_reads_the_pair_of_a_line_that_has_a_text_too(models, predicted, tmp_path):
    record = {"text": "z", "first": "it rains", "second": "so wet"}
    learned = tmp_path / "model"
    shutil.copytree(models["classification"], learned)
    content = json.loads((learned / "model.json").read_text())
    for pairs, asked in ((True, ("it rains", "so wet")), (False, "z"), (None, "z")):
        usage = {"max_length": 24, "pairs": pairs}
        (learned / "model.json").write_text(json.dumps(content | {"usage": usage}))
        (line,) = predicted(learned, text=objects(record))
        expected = Classify(learned)(asked)
        assert line["scores"] == pytest.approx(dict(expected.scores), abs=1e-6)


def test_tags_and_answers(models, predicted):
    words = ["Matt", "lives", "in", "Canada"]
    lines = predicted(models["tagging"], text=objects({"words": words}, {"text": " ".join(words)}))
    assert [word["tag"] for word in lines[0]["words"]] == [
        word.tag for word in Tag(models["tagging"])(tuple(words)).words
    ]
    assert lines[0] == lines[1]
    asked = {"question": "who?", "context": "Matt lives in Canada " * 20}
    (line,) = predicted(models["span"], "--top-k", 3, text=objects({**asked, "title": "x"}))
    expected = AnswerQuestion(models["span"])("who?", asked["context"], n_best=3)
    assert line["text"] == expected.text == asked["context"][line["start"] : line["end"]]
    assert [each["text"] for each in line["candidates"]] == [c.text for c in expected.candidates]


def test_documents_and_choices(models, predicted):
    document = ["Matt lives here.", ["In", "Canada"], "He left."]
    lines = predicted(
        models["tagging"], text=objects({"sentences": document, "id": 1}, {"text": "He left."})
    )
    expected = Tag(models["tagging"]).document(document)
    assert lines[0]["id"] == 1
    assert [
        [(word["text"], word["tag"]) for word in sentence["words"]]
        for sentence in lines[0]["sentences"]
    ] == [[(word.text, word.tag) for word in sentence.words] for sentence in expected]
    assert [word["text"] for word in lines[1]["words"]] == ["He", "left", "."]
    # Who gives the words of a text means them.
    (line,) = predicted(
        models["tagging"], text=objects({"text": "He left.", "words": ["He left."]})
    )
    assert [word["text"] for word in line["words"]] == ["He left."]
    asked = {"context": "she takes", "choices": ["the ball", "a", "ran"]}
    (line,) = predicted(models["multiple_choice"], text=objects(asked))
    choice = Choose(models["multiple_choice"])(asked["context"], asked["choices"])
    assert (line["index"], line["text"]) == (choice.index, choice.text)
    assert line["probabilities"] == pytest.approx(choice.probabilities, abs=1e-6)


def test_a_parquet_table_is_not_taken_for_text(models, refused, tmp_path):
    (tmp_path / "test.parquet").write_bytes(b"PAR1\n\x90")
    told = refused(models["classification"], "--input", tmp_path / "test.parquet")
    assert "its name is that of a table" in told


@pytest.mark.parametrize("name", ["test.tsv", "test.csv.xz"])
def test_the_rows_of_a_table_are_not_taken_for_texts(models, refused, predicted, tmp_path, name):
    source = tmp_path / name
    text = b"index\tsentence\n0\ta fine film\n"
    source.write_bytes(lzma.compress(text) if source.suffix == ".xz" else text)
    words = (models["classification"], "--input", source)
    assert "--unlabelled --data FILE" in refused(*words)
    assert len(predicted(*words, "--format", "text")) == 2


@pytest.mark.parametrize(
    "name", ["x.conll", "x.conllu", "x.BIO", "x.iob", "x.conll2003", "x.conll.xz"]
)
def test_words_with_their_tags_are_not_taken_for_texts(models, refused, predicted, tmp_path, name):
    source = tmp_path / name
    text = b"Matt\tB-PER\n"
    source.write_bytes(lzma.compress(text) if source.suffix == ".xz" else text)
    told = refused(models["tagging"], "--input", source)
    assert f"{source}: its name is that of a file with a word and its tag a line" in told
    assert "evaluate WORKDIR --unlabelled --data FILE --predictions DIR" in told
    assert len(predicted(models["tagging"], "--input", source, "--format", "text")) == 1


def test_a_file_of_squad_is_not_taken_for_questions(models, refused, tmp_path):
    source = tmp_path / "dev-v1.1.json"
    questions = [{"question": "who?", "id": "1"}]
    articles = [{"title": "a", "paragraphs": [{"context": "Matt", "qas": questions}]}]
    source.write_text(objects({"version": "1.1", "data": articles}))
    for words in ((), ("--unusable", "report")):
        told = refused(models["span"], "--input", source, *words)
        assert f"{source}:1: SQuAD's articles" in told
        assert "evaluate WORKDIR --unlabelled --data FILE --predictions DIR" in told
    source.write_text(objects({"data": [1]}))
    assert "its fields are 'data'" in refused(models["span"], "--input", source)


def test_a_dtype_is_handed_on(models, predicted):
    work_dir, text = models["classification"], "a fine film.\n"
    (found,) = predicted(work_dir, "--dtype", "bfloat16", text=text)
    expected = Classify(work_dir, dtype="bfloat16")(text.strip())
    assert found["scores"] == pytest.approx(expected.scores, rel=1e-6)
    assert found["scores"] != predicted(work_dir, "--dtype", "float32", text=text)[0]["scores"]


def test_vectors_of_any_head(models, predicted):
    lines = predicted(models["multiple_choice"], "--task", "embed", text="a b\n\nc")
    expected = Embed(models["multiple_choice"]).sentences(["a b", "", "c"])
    for line, vectors in zip(lines, expected, strict=True):
        np.testing.assert_allclose(line["mean"], vectors.mean, atol=1e-6)
        np.testing.assert_allclose(line["cls"], vectors.cls, atol=1e-6)


def test_files_and_their_order(models, predicted, tmp_path):
    texts = ["abcdefg"[number % 7] * (1 + number * 17 % 60) for number in range(300)]
    packed = tmp_path / "texts.txt.xz"
    packed.write_bytes(lzma.compress(("\ufeff" + "\n".join(texts)).encode("utf-8")))
    written = tmp_path / "out.jsonl"
    words = ["--input", packed, "--output", written, "--batch-size", 4]
    assert predicted(models["classification"], *words) == []
    lines = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    expected = Classify(models["classification"])(texts)
    assert len(lines) == 300 and set(tmp_path.iterdir()) == {packed, written}
    for line, ours in zip(lines, expected, strict=True):
        assert line["scores"] == pytest.approx(ours.scores, abs=1e-6)
        assert line["truncated"] == ours.truncated


def test_pipes_are_read_and_standard_input_has_a_name(models, predicted, tmp_path):
    model, texts = models["classification"], "a\nbc\n"
    expected = predicted(model, text=texts)
    assert predicted(model, "--input", "-", text=texts) == expected
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(texts,), daemon=True)
    writer.start()
    found = predicted(model, "--input", pipe)
    writer.join()
    assert [line["label"] for line in found] == [line["label"] for line in expected]
    reading, writing = os.pipe()
    os.write(writing, texts.encode())
    os.close(writing)
    found = predicted(model, "--input", f"/dev/fd/{reading}")
    os.close(reading)
    assert [line["label"] for line in found] == [line["label"] for line in expected]


def test_a_directory_is_not_said_to_be_missing(models, refused, predicted, tmp_path):
    (tmp_path / "dev").mkdir()
    told = refused(models["classification"], "--input", tmp_path / "dev")
    assert f"{tmp_path / 'dev'} is a directory" in told
    # A file packed beside it is still found.
    (tmp_path / "dev.xz").write_bytes(lzma.compress(b"a\n"))
    assert len(predicted(models["classification"], "--input", tmp_path / "dev")) == 1


def test_an_empty_input_gives_nothing(models, predicted, tmp_path):
    assert predicted(models["classification"], text="") == []
    assert len(predicted(models["classification"], text="\n")) == 1


def test_blank_lines_are_texts_but_not_of_json_lines(models, predicted):
    model = models["classification"]
    one = '{"text": "a", "id": 1}'
    for text in (f"{one}\n\n", f"\n \r\n{one}", f"{one}\n\n\t\n"):
        assert [line["id"] for line in predicted(model, text=text)] == [1]
    assert predicted(model, "--format", "jsonl", text="\n \n") == []
    texts = ["", " ", "a", "", "{b"]
    lines = predicted(model, text="\n".join(texts))
    for line, ours in zip(lines, Classify(model)(texts), strict=True):
        assert line["scores"] == pytest.approx(ours.scores, abs=1e-6)


def test_what_is_written_stays_when_a_line_is_wrong(models, refused, tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("[MASK] a\n" * 5 + "none\n" + "[MASK]\n" * 5)
    words = ["--input", source, "--output", target, "--batch-size", 2]
    errors = refused(models["pretraining"], *words)
    assert f"{source}:6: no [MASK] in 'none'" in errors
    assert "guessed (--unusable report goes on" in errors
    assert not target.exists()
    partial = (tmp_path / "out.jsonl.partial").read_text().splitlines()
    assert len(partial) == 2  # the chunk of 2 lines, not that of 4


def test_a_device_is_written_to_and_not_replaced(models, predicted):
    predicted(models["classification"], "--output", "/dev/null", text="a\n")
    assert not Path("/dev/null").is_file() and not Path("/dev/null.partial").exists()


@pytest.mark.parametrize("written", ["in.txt", "link.txt", "./in.txt"])
def test_what_is_read_is_not_written_over(models, refused, monkeypatch, tmp_path, written):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "in.txt"
    source.write_text("a\nb\n")
    (tmp_path / "link.txt").hardlink_to(source)
    told = refused(models["classification"], "--input", source, "--output", written)
    assert f"{Path(written)} would be written while it is read as {source}" in told
    # Nor under the name that the output has until it is whole.
    source = source.rename("out.jsonl.partial")
    refused(models["classification"], "--input", source, "--output", "out.jsonl")
    assert source.read_text() == "a\nb\n"
    assert {path.name for path in tmp_path.iterdir()} == {"out.jsonl.partial", "link.txt"}


def test_standard_input_is_not_written_over(models, refused, monkeypatch, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    with open(source) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        told = refused(models["classification"], "--output", source, data=None)
    assert f"{source} would be written while it is read as standard input" in told
    assert source.read_text() == "a\n"


def test_closed_standard_input_is_said(models, refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed: give --input" in refused(models["tagging"], data=None)


@pytest.mark.parametrize(
    ("head", "data", "message"),
    [
        ("pretraining", b"[MASK]\n\xff\n", "standard input:2: byte 0xff is not UTF-8"),
        ("pretraining", b"[MASK]\n\n", "standard input:2: no [MASK] in ''"),
        ("span", b"who?\n", "standard input:1: plain text; expected a JSON object with 'question'"),
        ("span", b'{"question": "a"}', "standard input:1: its fields are 'question'; expected 'q"),
        ("tagging", b'{"words": ["a", 1]}', "standard input:1: field 'words' is [\"a\", 1]; exp"),
        ("tagging", b'{"text": null}', "standard input:1: field 'text' is null; expected a string"),
        ("tagging", b'{"text": "a"}\n\n{', "standard input:3: '{' is not valid JSON"),
        ("tagging", b'{"text": "a"}\n[1]', "standard input:2: '[1]' is no JSON object; expected"),
        ("tagging", b'{"text": "a"}\n{"text": "\\ud800"}', "standard input:2: a lone surrogate at"),
        ("tagging", b'{"text": "a", "id": "\\ud800"}', "standard input:1: field 'id' holds a lone"),
        ("tagging", b'{"text": "a", "id": NaN}', "input:1: field 'id' holds NaN or an inf"),
        ("tagging", b'{"text": "a", "id": [1e999]}', "field 'id' holds NaN or an infinite"),
        (
            "multiple_choice",
            b'{"context": "a", "choices": "b"}',
            "field 'choices' is \"b\"; exp",
        ),
        ("multiple_choice", b'{"context": "a", "choices": ["b"]}', "1: expected a list of two cho"),
        ("tagging", b'{"sentences": ["a", 1]}', "field 'sentences' is [\"a\", 1]; expected an ar"),
        ("tagging", b'{"sentences": ["a", "\\ud800"]}', "input:1: sentence 1: a lone surrogate at"),
    ],
)
def test_a_wrong_line_is_named(models, refused, head, data, message):
    assert message in refused(models[head], data=data)


@pytest.mark.parametrize(
    ("head", "words", "message"),
    [
        (
            "tagging",
            ["--top-k", 3],
            "--top-k is 3, but tag gives no alternatives; fill-mask",
        ),
        ("pretraining", ["--top-k", 0], "top_k is 0; expected 1 up to the vocabulary's"),
        ("tagging", ["--task", "answer"], "'tagging', with which AnswerQuestion cannot work"),
        ("tagging", ["--input", "missing.txt"], "missing.txt does not exist"),
        ("tagging", ["--batch-size", 0], "batch_size is 0"),
        ("tagging", ["--output", "absent/out.jsonl"], "there is no directory absent to write it"),
    ],
)
def test_wrong_options_are_named(models, refused, head, words, message):
    assert message in refused(models[head], *words, data=b"[MASK]\n")


def test_unusable_lines_are_reported_in_their_place(models, bert_jax_here, monkeypatch, tmp_path):
    lines = [
        '{"text": "[MASK] a", "id": "one"}',
        '{"text": "none", "id": 2}',
        "",
        "{",
        "[1]",
        '{"title": "[MASK]", "id": [5]}',
        '{"text": 1, "id": null}',
        '{"text": "b [MASK]"}',
        '{"text": "[MASK]", "id": "\\ud800"}',
        '{"text": "\\ud800 [MASK]"}',
        '{"text": "\udcff [MASK]"}',
        *['{"text": "c [MASK] d"}', '{"text": ""}'] * 20,
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines), errors="surrogateescape")
    words = (models["pretraining"], "--input", source, "--batch-size", 4, "--top-k", 2)
    finished = bert_jax_here("predict", *words, "--unusable", "report")
    assert finished.code == 0, finished.errors
    assert "NOTE  28 of 50 lines could not be used" in finished.errors
    found = [json.loads(line) for line in finished.output.splitlines()]
    fill = FillMask(models["pretraining"])
    read = [(number, line) for number, line in enumerate(lines, start=1) if line]
    assert len(found) == len(read) == 50
    for (number, line), result in zip(read, found, strict=True):
        if "error" in result:
            assert result["error"].startswith(f"{source}:{number}: ") and "masks" not in result
        else:
            expected = fill(json.loads(line)["text"], top_k=2)
            assert result["masks"][0][1]["token"] == expected.masks[0][1].token
    assert [result.get("id", "absent") for result in found[:7]] == [
        "one", 2, "absent", "absent", [5], None, "absent",
    ]  # fmt: skip
    reasons = ("no [MASK] in", "not valid JSON", "no JSON object", "its fields are 'title', 'id'",
               "field 'text' is 1; expected a string")  # fmt: skip
    for result, reason in zip(found[1:6], reasons, strict=True):
        assert reason in result["error"]
    assert "field 'id' holds a lone" in found[7]["error"]
    assert "a lone surrogate" in found[8]["error"]
    assert "byte 0xff is not UTF-8" in found[9]["error"]
    # One of them ends the command otherwise.
    refused = bert_jax_here("predict", *words)
    assert refused.code == 2 and f"{source}:4: '{{' is not valid JSON" in refused.errors


def test_unusable_lines_cost_no_more_than_others(models, monkeypatch):
    """Each text is encoded at most twice, however many are left out, and the rest in one batch."""
    model, encoded = FillMask(models["pretraining"]), []
    encode = Tokenizer.encode_batch

    def counted(self, texts, **options):
        encoded.append(len(texts))
        return encode(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    lines = [InputLine(f"f:{n}", "none" if n % 2 else "a [MASK]") for n in range(200)]
    found = list(answers(TASKS["fill-mask"], model, lines, 1, report=True))
    assert [isinstance(result, UnusableLine) for _, result in found] == [False, True] * 100
    assert encoded == [200, 100]


def test_documents_are_looked_at_before_any_is_tagged(models, monkeypatch):
    model, run = Tag(models["tagging"]), []
    monkeypatch.setattr(Tag, "_run", lambda self, *given: run.append(given))
    lines = [InputLine(f"f:{n}", value) for n, value in enumerate(["a", Document(["\ud800"])])]
    with pytest.raises(UnusableLine, match="f:1: sentence 0: a lone surrogate"):
        list(answers(TASKS["tag"], model, lines, 1, report=False))
    assert not run


def test_an_object_in_plain_text_is_not_taken_for_text(models, refused, predicted):
    text = '#first\n{"text": "a"}\n'
    told = refused(models["classification"], data=text.encode())
    assert "standard input:2: a JSON object in what began as plain text; say --format" in told
    assert len(predicted(models["classification"], "--format", "text", text=text)) == 2
    assert len(predicted(models["classification"], text='#\n{"a": 1}\n{b\n')) == 3


def test_unusable_documents_and_a_wrong_kind_of_file(models, bert_jax_here, tmp_path):
    source = tmp_path / "in.jsonl"
    good, bad = {"sentences": ["He left.", "She too."]}, {"sentences": ["a", "\ud800"], "id": 1}
    source.write_text(objects(good, bad, {"text": "a"}, good))
    words = (models["tagging"], "--unusable", "report", "--input", source)
    finished = bert_jax_here("predict", *words)
    found = [json.loads(line) for line in finished.output.splitlines()]
    assert ["sentences" in result for result in found] == [True, False, False, True]
    assert found[1]["id"] == 1 and "in.jsonl:2: sentence 1: a lone" in found[1]["error"]
    assert "words" in found[2]
    # Not a line is wrong of a file that is not JSON Lines, but the file.
    source = tmp_path / "in.txt"
    source.write_text("who?\nwhere?\n")
    words = (models["span"], "--unusable", "report", "--input", source)
    refused = bert_jax_here("predict", *words)
    assert refused.code == 2 and "in.txt:1: plain text; expected a JSON object" in refused.errors


def test_a_text_that_looks_like_json(models, predicted):
    words = (models["classification"], "--format", "text")
    assert len(predicted(*words, text="{a\n{}\n")) == 2


def test_a_file_called_json_lines_is_that(models, refused, predicted, tmp_path):
    source = tmp_path / "texts.jsonl.xz"
    source.write_bytes(lzma.compress(b'\n{"text": "a"}\n'))
    assert len(predicted(models["tagging"], "--input", source)) == 1
    source.write_bytes(lzma.compress(b'a\n{"text": "a"}\n'))
    assert f"{source}:1: 'a' is not valid JSON" in refused(models["tagging"], "--input", source)
    source.write_bytes(lzma.compress(b' {"text": "a"}\n'))
    assert len(predicted(models["tagging"], "--input", source)) == 1


def test_chunks_grow_to_a_bound():
    assert [len(part) for part in chunks(range(100), 4, 16)] == [4, 8, *[16] * 5, 8]


def test_a_part_ends_where_the_next_line_has_to_be_waited_for():
    answered = threading.Event()

    def conversation():
        yield b"a"
        assert answered.wait(HANGS)
        yield from (b"b", b"c", b"d", b"e")

    parts = chunks(read_ahead(conversation(), 8), 8, 8)
    assert next(parts) == [b"a"]
    answered.set()
    assert [line for part in parts for line in part] == [b"b", b"c", b"d", b"e"]


def test_what_is_read_ahead_keeps_its_order_and_its_error():
    def source():
        yield from map(str, range(1000))
        raise ValueError("line 1000 is damaged")

    found = []
    with pytest.raises(ValueError, match="line 1000 is damaged"):
        for line in read_ahead(source(), 7):
            found += [] if line is None else [line]
    assert found == [str(number) for number in range(1000)]


@contextlib.contextmanager
def conversation(bert_jax, *words):
    """Starts `predict` in a process of its own, to be asked line by line; one that hangs ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bert_jax.cli.main", "predict", *map(str, words)],
        env=bert_jax.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # what cannot be written is not tried again when the pipe is closed
    )
    hangs = threading.Timer(HANGS, process.kill)
    hangs.start()
    try:
        with process:
            yield process
    finally:
        hangs.cancel()


@pytest.mark.parametrize("interrupted", [False, True])
def test_another_program_asks_line_by_line(models, bert_jax, interrupted):
    with conversation(bert_jax, models["classification"]) as process:
        for number in range(3):
            process.stdin.write(objects({"text": "a", "id": number}).encode())
            assert json.loads(process.stdout.readline())["id"] == number
        if interrupted:
            process.send_signal(signal.SIGINT)
        else:
            process.stdin.close()
        told = (130, b"\nbert-jax: interrupted\n") if interrupted else (0, b"")
        assert (process.wait(), process.stderr.read()) == told


def test_json_lines_are_utf8_whatever_the_locale(models, bert_jax, tmp_path):
    environment = {**bert_jax.environment(), "LC_ALL": "C"}
    environment |= {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    source = tmp_path / "in-é\udcff.jsonl"
    source.write_text(objects({"text": "a", "id": "é"}, {"id": "ü"}))
    words = ["predict", models["classification"], "--input", source, "--unusable", "report"]
    for options in ([], ["--output", tmp_path / "out.jsonl"]):
        finished = subprocess.run(
            [sys.executable, "-m", "bert_jax.cli.main", *words, *options],
            env=environment,
            capture_output=True,
            timeout=HANGS,
        )
        assert finished.returncode == 0, finished.stderr
        written = (tmp_path / "out.jsonl").read_bytes() if options else finished.stdout
        found = [json.loads(line) for line in written.decode("utf-8").splitlines()]
        assert [line["id"] for line in found] == ["é", "ü"]
        assert "its fields are 'id'" in found[1]["error"]


def test_results_come_while_the_input_goes_on_and_a_broken_pipe_is_quiet(models, bert_jax):
    with conversation(bert_jax, models["classification"], "--batch-size", "2") as process:
        process.stdin.write(b"a\nb\n")
        assert [json.loads(process.stdout.readline())["label"] for _ in range(2)]
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"c\n" * 100)
        process.stdin.close()
        assert (process.wait(), process.stderr.read()) == (1, b"")
