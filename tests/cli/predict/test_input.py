"""Test that `predict` reads files and pipes, and never overwrites its input."""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Full

import pytest

from bert_jax import Classify
from bert_jax.inference.input_stream import MAX_BYTES, _LineQueue, chunks, read_ahead

from ...commands import TIMEOUT
from .conftest import objects


def test_a_parquet_table_is_refused(models, refused, tmp_path):
    (tmp_path / "test.parquet").write_bytes(b"PAR1\n\x90")
    error = refused(models["classification"], "--input", tmp_path / "test.parquet")
    assert ".parquet is the suffix of a table" in error


@pytest.mark.parametrize("name", ["test.tsv", "test.csv.xz"])
def test_a_table_is_refused_without_format(models, refused, predicted, tmp_path, name):
    source = tmp_path / name
    text = b"index\tsentence\n0\ta fine film\n"
    source.write_bytes(lzma.compress(text) if source.suffix == ".xz" else text)
    words = (models["classification"], "--input", source)
    assert "--unlabelled --data FILE" in refused(*words)
    assert len(predicted(*words, "--format", "text")) == 2
    source.rename(other := tmp_path / f"{name}.txt")
    if not name.endswith(".xz"):
        assert len(predicted(models["classification"], "--input", other)) == 2


@pytest.mark.parametrize(
    "name", ["x.conll", "x.conllu", "x.BIO", "x.iob", "x.conll2003", "x.conll.xz"]
)
def test_tagged_words_are_refused_without_format(models, refused, predicted, tmp_path, name):
    source = tmp_path / name
    text = b"Matt\tB-PER\n"
    source.write_bytes(lzma.compress(text) if source.suffix == ".xz" else text)
    error = refused(models["tagging"], "--input", source)
    assert (
        f"{source}: .{name.split('.')[1].lower()} is the suffix of a file of tagged words" in error
    )
    assert "evaluate WORKDIR --unlabelled --data FILE --predictions DIR" in error
    assert len(predicted(models["tagging"], "--input", source, "--format", "text")) == 1


def test_a_squad_file_is_refused(models, refused, tmp_path):
    source = tmp_path / "dev-v1.1.json"
    questions = [{"question": "who?", "id": "1"}]
    articles = [{"title": "a", "paragraphs": [{"context": "Matt", "qas": questions}]}]
    source.write_text(objects({"version": "1.1", "data": articles}))
    for words in ((), ("--unusable", "report")):
        error = refused(models["span"], "--input", source, *words)
        assert f"{source}:1: a file of SQuAD articles" in error
        assert "evaluate WORKDIR --unlabelled --data FILE --predictions DIR" in error
    for other in ([1], []):
        source.write_text(objects({"data": other}))
        assert "the fields are 'data'" in refused(models["span"], "--input", source)


def test_results_keep_the_order_of_a_compressed_file(models, predicted, tmp_path):
    texts = ["abcdefg"[number % 7] * (1 + number * 17 % 60) for number in range(300)]
    compressed = tmp_path / "texts.txt.xz"
    compressed.write_bytes(lzma.compress(("\ufeff" + "\n".join(texts)).encode("utf-8")))
    written = tmp_path / "out.jsonl"
    words = ["--input", compressed, "--output", written, "--batch-size", 4]
    assert predicted(models["classification"], *words) == []
    lines = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
    expected = Classify(models["classification"])(texts)
    assert len(lines) == 300 and set(tmp_path.iterdir()) == {compressed, written}
    for line, ours in zip(lines, expected, strict=True):
        assert line["scores"] == pytest.approx(ours.scores, abs=1e-6)
        assert line["truncated"] == ours.truncated


def test_pipes_and_standard_input_are_read(models, predicted, tmp_path):
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


def test_the_error_for_a_directory_says_so(models, refused, predicted, tmp_path):
    (tmp_path / "dev").mkdir()
    error = refused(models["classification"], "--input", tmp_path / "dev")
    assert f"{tmp_path / 'dev'} is a directory" in error
    # A compressed file next to the directory is still found.
    (tmp_path / "dev.xz").write_bytes(lzma.compress(b"a\n"))
    assert len(predicted(models["classification"], "--input", tmp_path / "dev")) == 1


def test_an_empty_input_has_no_results(models, predicted, tmp_path):
    assert predicted(models["classification"], text="") == []
    assert len(predicted(models["classification"], text="\n")) == 1


def test_an_unusable_line_keeps_the_partial_output(models, refused, tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("[MASK] a\n" * 5 + "none\n" + "[MASK]\n" * 5)
    words = ["--input", source, "--output", target, "--batch-size", 2]
    errors = refused(models["pretraining"], *words)
    assert f"{source}:6: no [MASK] in 'none'" in errors
    assert "to predict with [MASK]: this model fills masks (--unusable report writes the" in errors
    assert not target.exists()
    partial = (tmp_path / "out.jsonl.partial").read_text().splitlines()
    # The first chunk of 2 lines was written before the second chunk failed.
    assert len(partial) == 2


def test_a_dash_is_standard_output(models, predicted, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert len(predicted(models["tagging"], "--output", "-", text="a\n")) == 1
    assert not list(tmp_path.iterdir())


def test_an_output_device_is_not_replaced(models, predicted):
    predicted(models["classification"], "--output", "/dev/null", text="a\n")
    assert not Path("/dev/null").is_file() and not Path("/dev/null.partial").exists()


@pytest.mark.parametrize("written", ["in.txt", "link.txt", "./in.txt"])
def test_the_output_cannot_be_the_input(models, refused, monkeypatch, tmp_path, written):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "in.txt"
    source.write_text("a\nb\n")
    (tmp_path / "link.txt").hardlink_to(source)
    error = refused(models["classification"], "--input", source, "--output", written)
    assert f"--output={Path(written)}: this is the input file ({source})" in error
    # The output is first written to a temporary file, which must not be the input file either.
    source = source.rename("out.jsonl.partial")
    refused(models["classification"], "--input", source, "--output", "out.jsonl")
    assert source.read_text() == "a\nb\n"
    assert {path.name for path in tmp_path.iterdir()} == {"out.jsonl.partial", "link.txt"}


def test_the_output_cannot_be_standard_input(models, refused, monkeypatch, tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    with open(source) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        error = refused(models["classification"], "--output", source, data=None)
    assert f"--output={source}: this is the input file (standard input)" in error
    assert source.read_text() == "a\n"


def test_closed_standard_input_is_an_error(models, refused, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed. Add --input" in refused(models["tagging"], data=None)


def test_chunks_grow_up_to_a_limit():
    assert [len(part) for part in chunks(range(100), 4, 16)] == [4, 8, *[16] * 5, 8]


def test_chunks_have_at_most_max_bytes():
    third = MAX_BYTES // 3
    parts = list(chunks([third, third, third, third, MAX_BYTES, 1], 16, 16, lambda size: size))
    assert parts == [[third, third, third], [third], [MAX_BYTES], [1]]


def test_the_queue_is_limited_by_lines_and_by_bytes():
    for size, most, expected in ((MAX_BYTES // 2, 100, 2), (1, 100, 100), (MAX_BYTES, 100, 1)):
        queue = _LineQueue(most)
        for _ in range(expected):
            queue.put_nowait(bytes(size))
        with pytest.raises(Full):
            queue.put_nowait(b"")
        assert queue.get_nowait() == bytes(size)
        queue.put_nowait(b"")


@pytest.mark.parametrize("name", ["in.txt", "in.jsonl", "in.txt.xz"])
def test_a_line_that_is_too_long_is_reported_and_skipped(
    models, refused, predicted, tmp_path, name
):
    source = tmp_path / name
    lines = ["a", "b" * (MAX_BYTES + 1), "c" * MAX_BYTES if name == "in.txt" else "c", "d"]
    if name == "in.jsonl":
        lines = [json.dumps({"text": line, "id": number}) for number, line in enumerate(lines)]
    text = "".join(f"{line}\n" for line in lines).encode()
    source.write_bytes(lzma.compress(text) if name.endswith(".xz") else text)
    size = len(lines[1]) + 1
    error = f"{source}:2: the line has {size:,} bytes, but at most 2,097,152 are allowed. Split"
    assert error in refused(models["classification"], "--input", source)
    found = predicted(models["classification"], "--input", source, "--unusable", "report")
    assert ["error" in line for line in found] == [False, True, False, False]
    assert found[1]["error"].startswith(error)


def test_a_chunk_ends_when_the_next_line_has_not_arrived():
    answered = threading.Event()

    def conversation():
        yield b"a"
        assert answered.wait(TIMEOUT)
        yield from (b"b", b"c", b"d", b"e")

    parts = chunks(read_ahead(conversation(), 8), 8, 8)
    assert next(parts) == [b"a"]
    answered.set()
    assert [line for part in parts for line in part] == [b"b", b"c", b"d", b"e"]


def test_read_ahead_keeps_the_order_and_raises_the_error():
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
    """Start `predict` in a separate process that is fed line by line, and kill it if it hangs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bert_jax.cli.main", "predict", *map(str, words)],
        env=bert_jax.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # With a buffer, closing the pipe would retry a failed write.
    )
    hangs = threading.Timer(TIMEOUT, process.kill)
    hangs.start()
    try:
        with process:
            yield process
    finally:
        hangs.cancel()


@pytest.mark.parametrize("interrupted", [False, True])
def test_another_program_can_send_one_line_at_a_time(
    models, bert_jax, interrupts_enabled, interrupted
):
    with conversation(bert_jax, models["classification"]) as process:
        for number in range(3):
            process.stdin.write(objects({"text": "a", "id": number}).encode())
            assert json.loads(process.stdout.readline())["id"] == number
        if interrupted:
            process.send_signal(signal.SIGINT)
        else:
            process.stdin.close()
        error = (130, b"\nbert-jax: interrupted\n") if interrupted else (0, b"")
        assert (process.wait(), process.stderr.read()) == error


def test_json_lines_are_utf8_in_any_locale(models, bert_jax, tmp_path):
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
            timeout=TIMEOUT,
        )
        assert finished.returncode == 0, finished.stderr
        written = (tmp_path / "out.jsonl").read_bytes() if options else finished.stdout
        found = [json.loads(line) for line in written.decode("utf-8").splitlines()]
        assert [line["id"] for line in found] == ["é", "ü"]
        assert "the fields are 'id'" in found[1]["error"]


def test_results_arrive_during_the_input_and_a_broken_pipe_is_silent(models, bert_jax):
    with conversation(bert_jax, models["classification"], "--batch-size", "2") as process:
        process.stdin.write(b"a\nb\n")
        assert [json.loads(process.stdout.readline())["label"] for _ in range(2)]
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"c\n" * 100)
        process.stdin.close()
        assert (process.wait(), process.stderr.read()) == (1, b"")
