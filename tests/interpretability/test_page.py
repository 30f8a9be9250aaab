"""Test the pages of `bert-jax look`: their content and limits, and how they work in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from bert_jax import Attention, look
from bert_jax.html_pages import check_page_path
from bert_jax.interpretability import page as page_module
from bert_jax.interpretability.views import collect_views, repeated_words

TEXT, SECOND = "wet [MASK] </script> rain, rain & rain", "it rains <b>hard</b>"
# For each head: a text, a second text, and the views that the page should show.
HEADS = {
    "pretraining": (TEXT, SECOND, {"guesses", "occurrences", "scores"}),
    "masked_lm": (TEXT, SECOND, {"guesses", "occurrences"}),
    "next_sentence": ("it rains", "it is wet", {"scores"}),
    "classification": (TEXT, SECOND, {"attribution", "occurrences", "scores"}),
    "multiple_choice": ("it rains", "it is wet", set()),
    "tagging": ("it rains", None, {"tags"}),
    "span": ("where", "it rains in wales", {"answer"}),
    "encoder": ("it rains", None, set()),
}


def data_of(html: str) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.DOTALL)
    return json.loads(found[1])


def written(tmp_path: Path, html: str) -> str:
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    return (tmp_path / "page.html").as_uri()


@pytest.mark.parametrize("head", HEADS)
def test_a_page_shows_what_the_head_offers(import_pair, head):
    text, second, expected = HEADS[head]
    data = data_of(look(import_pair("Bert", head)[1], text, second).html)
    shown = {"guesses", "occurrences", "scores", "attribution", "answer", "tags"}
    assert {name for name in shown if data.get(name)} == expected
    assert data["text"] == text and data["second"] == second
    assert (data["layers"], data["heads"]) == (2, 4)


def test_notes_say_what_is_left_out(import_pair):
    def notes(head: str, *texts: str) -> list[str]:
        return data_of(look(import_pair("Bert", head)[1], *texts).html)["notes"]

    assert notes("masked_lm", "it rains") == [
        "To see what each layer would guess for a word, replace the word with [MASK]."
    ]
    assert "no head" in notes("encoder", "it rains")[0]
    assert "compares choices" in notes("multiple_choice", "it rains")[0]
    assert "give a passage as the second text" in notes("span", "where")[0]
    assert notes("encoder", "it rains " * 40)[0] == ("The text was truncated to 40 tokens.")


def test_the_attention_in_a_page_is_rounded_to_bytes(import_pair):
    import base64
    import zlib

    work_dir = import_pair("Bert", "encoder")[1]
    data = data_of(look(work_dir, "it rains").html)
    trace = Attention(work_dir)("it rains")
    levels = np.frombuffer(zlib.decompress(base64.b64decode(data["attention"])), np.uint8)
    shape = trace.attention.shape
    np.testing.assert_allclose(levels.reshape(shape) / 255, trace.attention, atol=0.5 / 255 + 1e-6)


def test_an_answer_is_the_best_span_of_the_passage(import_pair):
    attention = Attention(import_pair("Bert", "span")[1])
    question, passage = "where", "it rains in wales"
    trace = attention(question, passage)
    answer = collect_views(attention, trace, question, passage).answer
    logits = attention.head_outputs(question, passage)["logits"]
    best, span = -np.inf, (0, 0)
    for start in np.flatnonzero(trace.is_text & (trace.segment_ids == 1)):
        for end in range(start, len(trace.tokens) - 1):
            if logits[start, 0] + logits[end, 1] > best:
                best, span = logits[start, 0] + logits[end, 1], (start, end)
    first, last = (trace.offsets[place] for place in span)
    assert answer.text == passage[first[0] : last[1]] != ""
    np.testing.assert_allclose([answer.start.sum(), answer.end.sum()], 1, rtol=1e-5)


def test_repeated_words_are_compared_at_every_layer(import_pair):
    trace = Attention(import_pair("Bert", "encoder")[1])("Rain, rain and rain or snow", "snow a a")
    rain, snow = repeated_words(trace)
    assert (rain.word, snow.word) == ("rain", "snow")
    assert list(rain.similarity) == ["1st and 2nd occurrences", "2nd and 3rd occurrences"]
    assert snow.similarity["1st and 2nd occurrences"].shape == (3,)


def test_a_page_that_would_be_too_large_is_refused(import_pair, monkeypatch):
    monkeypatch.setattr(page_module, "MAX_BYTES", 20_000)
    with pytest.raises(ValueError, match=r"^the text has 40 tokens, so its page would be .* byt"):
        look(import_pair("Bert", "encoder")[1], "it rains " * 40)
    with pytest.raises(ValueError, match="^text=' ': contains no words"):
        look(import_pair("Bert", "encoder")[1], " ")


def test_jupyter_shows_the_page_in_a_frame(import_pair):
    page = look(Attention(import_pair("Bert", "encoder")[1]), "it rains")
    shown = page._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "<script" not in shown


def test_the_command_writes_the_page(bert_jax_here, import_pair, tmp_path):
    work_dir, output = import_pair("Bert", "masked_lm")[1], tmp_path / "page.html"
    finished = bert_jax_here("look", work_dir, "it rains", "--output", output)
    assert finished.code == 0, finished.errors
    assert finished.output.startswith("To see what each layer would guess")
    assert output.read_text(encoding="utf-8") == look(work_dir, "it rains").html
    refused = bert_jax_here("look", work_dir, "it rains", "--output", tmp_path / "page.pdf")
    assert refused.code == 2
    assert f"--output={tmp_path / 'page.pdf'}: not an HTML file." in refused.errors
    with pytest.raises(ValueError, match=r"^path=page\.pdf: not an HTML file\."):
        check_page_path("page.pdf")
    refused = bert_jax_here("look", work_dir, "it rains", "--output", tmp_path)
    assert refused.code == 2 and "is a directory" in refused.errors
    missing = tmp_path / "missing" / "page.html"
    assert bert_jax_here("look", work_dir, "it rains", "--output", missing).code == 0
    assert missing.is_file()
    refused = bert_jax_here("look", work_dir, "it rains", "--output", missing / "page.html")
    assert refused.code == 2 and "page.html is not a directory. Use" in refused.errors


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize("head", ["pretraining", "classification", "tagging", "span"])
def test_a_page_works_in_a_browser(import_pair, browser, tmp_path, head, scheme, width):
    text, second, _ = HEADS[head]
    address = written(tmp_path, look(import_pair("Bert", head)[1], text, second).html)
    problems: list[str] = []
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True
    )
    tab = context.new_page()
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.on("request", lambda request: problems.append(request.url))
    tab.goto(address)
    problems.remove(address)
    tab.wait_for_selector("body[data-ready]")
    title = tab.locator("#head-title")
    assert title.inner_text() == "Layer 1, head 1"
    tab.click("#head-1-2")
    assert title.inner_text() == "Layer 2, head 3"
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowUp")
    assert title.inner_text() == "Layer 1, head 4"
    tab.check('input[value="previous"]')
    assert tab.locator("#best button").count() == 5
    tab.click("#best button >> nth=0")
    tokens = tab.locator("#drawing .token")
    before = tokens.count()
    tokens.nth(1).focus()
    assert re.search(r"attends to .* (\d+|less than 1)%", tab.inner_text("#reading"))
    assert not re.search(r"\d\.\d", tab.inner_text("#reading"))
    assert tab.inner_text("#threshold") == "Lines below 2% are not drawn."
    tab.check("#by-word")
    assert 0 < tokens.count() < before
    tab.check('input[value="map"]')
    assert not tab.is_visible("#threshold")
    assert tab.locator("#drawing rect").count() == tokens.count() or tokens.count() == 0
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    context.close()
    assert not problems, "\n".join(problems)
