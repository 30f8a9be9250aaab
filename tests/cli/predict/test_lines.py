"""Test that `predict` returns one result per line, in order, and reports unusable lines."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import sys

import numpy as np
import pytest

from bert_jax import AnswerQuestion, Choose, Classify, Embed, FillMask, NextSentence, Tag
from bert_jax.finetuning.registry import predict_tasks
from bert_jax.inference.input_lines import Document, InputLine, UnusableLine
from bert_jax.inference.requests import LineRequest, answers, json_line
from bert_jax.tokenizers.tokenizer import Tokenizer

from .conftest import objects


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


def test_a_model_trained_on_pairs_ignores_the_text_of_a_line(models, predicted, tmp_path):
    record = {"text": "z", "first": "it rains", "second": "so wet"}
    model = tmp_path / "model"
    shutil.copytree(models["classification"], model)
    content = json.loads((model / "model.json").read_text())
    for pairs, asked in ((True, ("it rains", "so wet")), (False, "z"), (None, "z")):
        usage = {"max_length": 24, "pairs": pairs}
        (model / "model.json").write_text(json.dumps(content | {"usage": usage}))
        (line,) = predicted(model, text=objects(record))
        expected = Classify(model)(asked)
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
    # If an object has both a text and words, the words are used.
    (line,) = predicted(
        models["tagging"], text=objects({"text": "He left.", "words": ["He left."]})
    )
    assert [word["text"] for word in line["words"]] == ["He left."]
    asked = {"context": "she takes", "choices": ["the ball", "a", "ran"]}
    (line,) = predicted(models["multiple_choice"], text=objects(asked))
    choice = Choose(models["multiple_choice"])(asked["context"], asked["choices"])
    assert (line["index"], line["text"]) == (choice.index, choice.text)
    assert line["probabilities"] == pytest.approx(choice.probabilities, abs=1e-6)


def test_dtype_reaches_the_model(models, predicted):
    work_dir, text = models["classification"], "a fine film.\n"
    (found,) = predicted(work_dir, "--dtype", "bfloat16", text=text)
    expected = Classify(work_dir, dtype="bfloat16")(text.strip())
    assert found["scores"] == pytest.approx(expected.scores, rel=1e-6)
    assert found["scores"] != predicted(work_dir, "--dtype", "float32", text=text)[0]["scores"]


def test_embed_works_with_any_head(models, predicted):
    lines = predicted(models["multiple_choice"], "--task", "embed", text="a b\n\nc")
    expected = Embed(models["multiple_choice"]).sentences(["a b", "", "c"])
    for line, vectors in zip(lines, expected, strict=True):
        np.testing.assert_allclose(line["mean"], vectors.mean, atol=1e-6)
        np.testing.assert_allclose(line["cls"], vectors.cls, atol=1e-6)


def test_blank_lines_are_texts_unless_the_input_is_json_lines(models, predicted):
    model = models["classification"]
    one = '{"text": "a", "id": 1}'
    for text in (f"{one}\n\n", f"\n \r\n{one}", f"{one}\n\n\t\n"):
        assert [line["id"] for line in predicted(model, text=text)] == [1]
    assert predicted(model, "--format", "jsonl", text="\n \n") == []
    texts = ["", " ", "a", "", "{b"]
    lines = predicted(model, text="\n".join(texts))
    for line, ours in zip(lines, Classify(model)(texts), strict=True):
        assert line["scores"] == pytest.approx(ours.scores, abs=1e-6)


@pytest.mark.parametrize(
    ("head", "data", "message"),
    [
        ("pretraining", b"[MASK]\n\xff\n", "standard input:2: byte 0xff is not UTF-8"),
        ("pretraining", b"[MASK]\n\n", "standard input:2: no [MASK] in ''"),
        ("span", b"who?\n", "standard input:1: plain text; expected a JSON object with 'question'"),
        ("span", b'{"question": "a"}', "standard input:1: the fields are 'question'; expected 'q"),
        ("tagging", b'{"words": ["a", 1]}', "standard input:1: field 'words' is [\"a\", 1]; exp"),
        ("tagging", b'{"text": null}', "standard input:1: field 'text' is null; expected a string"),
        ("tagging", b'{"text": "a"}\n\n{', "standard input:3: '{' is not valid JSON"),
        ("tagging", b'{"text": "a"}\n[1]', "standard input:2: '[1]' is not a JSON object; expec"),
        ("tagging", b'{"text": "a"}\n{"text": "\\ud800"}', "standard input:2: a lone surrogate at"),
        (
            "tagging",
            b'{"text": "a", "id": "\\ud800"}',
            "standard input:1: field 'id' contains a lone",
        ),
        ("tagging", b'{"text": "a", "id": NaN}', "input:1: field 'id' contains NaN or an inf"),
        ("tagging", b'{"text": "a", "id": [1e999]}', "field 'id' contains NaN or an infinite"),
        (
            "multiple_choice",
            b'{"context": "a", "choices": "b"}',
            "field 'choices' is \"b\"; exp",
        ),
        (
            "multiple_choice",
            b'{"context": "a", "choices": ["b"]}',
            "1: expected a list of two or m",
        ),
        ("tagging", b'{"sentences": ["a", 1]}', "field 'sentences' is [\"a\", 1]; expected an ar"),
        ("tagging", b'{"sentences": ["a", "\\ud800"]}', "input:1: sentence 1: a lone surrogate at"),
    ],
)
def test_the_error_names_the_unusable_line(models, refused, head, data, message):
    assert message in refused(models[head], data=data)


@pytest.mark.parametrize(
    ("head", "words", "message"),
    [
        (
            "tagging",
            ["--top-k", 3],
            "--top-k=3: tag returns no alternatives. Only fill-mask",
        ),
        ("pretraining", ["--top-k", 0], "top_k=0: expected an integer from 1 to"),
        (
            "tagging",
            ["--task", "answer"],
            "does not answer questions. It tags words: use `bert-jax predict`",
        ),
        (
            "tagging",
            ["--input", "missing.txt"],
            "error: --input missing.txt: no such file, with or without",
        ),
        ("tagging", ["--batch-size", 0], "batch_size=0"),
        ("tagging", ["--output", "/dev/null/out.jsonl"], "/dev/null is not a directory. Use ano"),
    ],
)
def test_the_error_names_the_wrong_option(models, refused, head, words, message):
    assert message in refused(models[head], *words, data=b"[MASK]\n")


def test_report_puts_errors_in_the_output(models, bert_jax_here, monkeypatch, tmp_path):
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
    reasons = ("no [MASK] in", "not valid JSON", "not a JSON obj", "the fields are 'title', 'id'",
               "field 'text' is 1; expected a string")  # fmt: skip
    for result, reason in zip(found[1:6], reasons, strict=True):
        assert reason in result["error"]
    assert "field 'id' contains a lone" in found[7]["error"]
    assert "a lone surrogate" in found[8]["error"]
    assert "byte 0xff is not UTF-8" in found[9]["error"]
    # Without `--unusable report`, the command fails at the first unusable line.
    refused = bert_jax_here("predict", *words)
    assert refused.code == 2 and f"{source}:4: '{{' is not valid JSON" in refused.errors


def test_unusable_lines_cost_no_more_than_usable_lines(models, monkeypatch):
    """Check that each text is encoded at most twice, even if many lines are unusable."""
    model, encoded = FillMask(models["pretraining"]), []
    encode = Tokenizer.encode_batch

    def counted(self, texts, **options):
        encoded.append(len(texts))
        return encode(self, texts, **options)

    monkeypatch.setattr(Tokenizer, "encode_batch", counted)
    lines = [InputLine(f"f:{n}", "none" if n % 2 else "a [MASK]") for n in range(200)]
    found = list(answers(predict_tasks()["fill-mask"], model, lines, 1, report=True))
    assert [isinstance(result, UnusableLine) for _, result in found] == [False, True] * 100
    assert encoded == [200, 100]


def test_all_documents_are_checked_before_tagging(models, monkeypatch):
    model, run = Tag(models["tagging"]), []
    monkeypatch.setattr(Tag, "_run", lambda self, *given: run.append(given))
    lines = [InputLine(f"f:{n}", value) for n, value in enumerate(["a", Document(["\ud800"])])]
    with pytest.raises(UnusableLine, match="f:1: sentence 0: a lone surrogate"):
        list(answers(predict_tasks()["tag"], model, lines, 1, report=False))
    assert not run


def test_an_object_in_plain_text_is_an_error(models, refused, predicted):
    text = '#first\n{"text": "a"}\n'
    error = refused(models["classification"], data=text.encode())
    assert (
        "standard input:2: this line is a JSON object, but the input began as plain text. Add"
        in error
    )
    assert len(predicted(models["classification"], "--format", "text", text=text)) == 2
    assert len(predicted(models["classification"], text='#\n{"a": 1}\n{b\n')) == 3


def test_unusable_documents_are_reported_but_a_wrong_format_is_an_error(
    models, bert_jax_here, tmp_path
):
    source = tmp_path / "in.jsonl"
    good, bad = {"sentences": ["He left.", "She too."]}, {"sentences": ["a", "\ud800"], "id": 1}
    source.write_text(objects(good, bad, {"text": "a"}, good))
    words = (models["tagging"], "--unusable", "report", "--input", source)
    finished = bert_jax_here("predict", *words)
    found = [json.loads(line) for line in finished.output.splitlines()]
    assert ["sentences" in result for result in found] == [True, False, False, True]
    assert found[1]["id"] == 1 and "in.jsonl:2: sentence 1: a lone" in found[1]["error"]
    assert "words" in found[2]
    # If a file is not JSON Lines at all, the error is about the file, not about each of its lines.
    source = tmp_path / "in.txt"
    source.write_text("who?\nwhere?\n")
    words = (models["span"], "--unusable", "report", "--input", source)
    refused = bert_jax_here("predict", *words)
    assert refused.code == 2 and "in.txt:1: plain text; expected a JSON object" in refused.errors


def test_a_text_that_looks_like_json(models, predicted):
    words = (models["classification"], "--format", "text")
    assert len(predicted(*words, text="{a\n{}\n")) == 2


def test_the_suffix_jsonl_selects_json_lines(models, refused, predicted, tmp_path):
    source = tmp_path / "texts.jsonl.xz"
    source.write_bytes(lzma.compress(b'\n{"text": "a"}\n'))
    assert len(predicted(models["tagging"], "--input", source)) == 1
    source.write_bytes(lzma.compress(b'a\n{"text": "a"}\n'))
    assert f"{source}:1: 'a' is not valid JSON" in refused(models["tagging"], "--input", source)
    source.write_bytes(lzma.compress(b' {"text": "a"}\n'))
    assert len(predicted(models["tagging"], "--input", source)) == 1


def test_only_the_last_suffix_selects_json_lines(models, refused, predicted, tmp_path):
    text = tmp_path / "notes.jsonl.txt"
    text.write_text("a\n")
    assert len(predicted(models["tagging"], "--input", text)) == 1
    capitals = tmp_path / "NOTES.JSONL"
    capitals.write_text("a\n")
    assert "is not valid JSON" in refused(models["tagging"], "--input", capitals)


def test_fill_mask_reports_truncated_sentences(models, bert_jax_here):
    words = ("fill-mask", "--work-dir", models["pretraining"], "--top", "1")
    cut, whole = (bert_jax_here(*words, text).output for text in ("[MASK]" + " a" * 90, "[MASK] a"))
    assert "the end was cut off" in cut and "cut off" not in whole


def test_fill_mask_takes_the_arguments_of_predict(models, bert_jax_here):
    model, text = models["pretraining"], "a [MASK] c"
    spellings = [
        (model, text, "--top-k", "2"),
        (model, "--top-k", "2", text),
        (model, "--top", "2", "--batch-size", "4", "--max-length", "12", text),
        ("--work-dir", model, "--top", "2", text),
        ("--dtype", "float32", "--work-dir", model, text, "--top-k", "2"),
    ]
    results = {bert_jax_here("fill-mask", *words).output for words in spellings}
    assert len(results) == 1 and results.pop().count("%") == 2
    two = bert_jax_here("fill-mask", "--work-dir", model, text, "[MASK] d").output
    assert f"\n{text}\n" in two and "\n[MASK] d\n" in two
    for words in ((), (model,), ("--work-dir", model)):
        refused = bert_jax_here("fill-mask", *words)
        assert refused.code == 2
        assert "expected a work directory and at least one sentence" in refused.errors
    assert "batch_size=0" in bert_jax_here("fill-mask", model, text, "--batch-size=0").errors


@pytest.mark.parametrize(
    ("head", "words", "waiting"),
    [
        ("pretraining", (), "fill-mask: waiting for one text per line from the terminal. Ctrl-D"),
        ("span", (), 'one JSON object per line with the fields "question" and "context" from'),
        ("tagging", ("--format", "jsonl"), 'with the fields "words" or "sentences" or "text" from'),
    ],
)
def test_predict_prompts_on_a_terminal(head, words, waiting, models, bert_jax_here, monkeypatch):
    controller, terminal = os.openpty()
    os.write(controller, b"\x04")  # Ctrl-D
    with open(terminal, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        finished = bert_jax_here("predict", models[head], *words)
    os.close(controller)
    assert finished.code == 0 and finished.output == ""
    assert waiting in finished.errors


def test_predict_does_not_prompt_without_a_terminal(models, bert_jax_here, standard_input):
    standard_input(b"a [MASK]\n")
    finished = bert_jax_here("predict", models["pretraining"])
    assert finished.code == 0 and "waiting" not in finished.errors


def test_lines_can_be_predicted_from_python(models, capfd, tmp_path):
    source = tmp_path / "texts.txt"
    source.write_text("a [MASK] c\nno mask\n[MASK]\n")
    request = LineRequest.resolve(models["pretraining"], predict_tasks(), top_k=2)
    assert (request.task.name, request.top_k) == ("fill-mask", 2)
    model = request.load(batch_size=2, max_length=None, dtype="float32")
    with pytest.raises(UnusableLine, match="texts.txt:2"):
        list(request.answer(model, request.open(str(source), "auto", 2), "auto", 2))
    opened = request.open(str(source), "auto", 2)
    parts = list(request.answer(model, opened, "auto", 2, report=True))
    assert [len(part) for part in parts] == [2, 1]
    results = [json.loads(json_line(*answer)) for part in parts for answer in part]
    assert [sorted(result) for result in results] == [
        ["masks", "truncated"],
        ["error"],
        ["masks", "truncated"],
    ]
    assert [len(guesses) for guesses in results[0]["masks"]] == [2]
    with pytest.raises(ValueError, match="tag returns no alternatives"):
        LineRequest.resolve(models["tagging"], predict_tasks(), top_k=2)
    assert capfd.readouterr() == ("", "")
