"""Test that `inspect` shows a corpus as training sees it, in the terminal and as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bert_jax import CorpusLoader, inspect_corpus, show_batch


@pytest.fixture
def corpus(tiny_config: Path) -> Path:
    return tiny_config.parent / "32"


def test_the_default_examples_are_the_first_rows_of_a_loader(corpus: Path) -> None:
    view = inspect_corpus(corpus)
    loader = CorpusLoader(corpus, batch_size=10)
    with loader.batches() as batches:
        batch = next(batches)
    assert len(view.examples.rows) == 10
    for number, row in enumerate(view.examples.rows):
        inside = batch["document_ids"][number] > 0
        shown = [token.text for document in row for token in document.tokens]
        ids = batch["token_ids"][number][inside].tolist()
        assert shown == [loader.tokenizer.readable(token_id) for token_id in ids]
        pairs = batch["pair_labels"][number][batch["pair_weights"][number] > 0].tolist()
        assert [each.pair for each in row if each.pair] == [["next", "random"][i] for i in pairs]
        labels = batch["masked_labels"][number][batch["masked_weights"][number] > 0].tolist()
        assert [token.label for document in row for token in document.tokens if token.label] == [
            loader.tokenizer.readable(token_id) for token_id in labels
        ]
    counts = view.statistics.token_counts
    assert dict(view.pieces)[loader.tokenizer.readable(int(np.argmax(counts)))] == counts.max()


@pytest.mark.parametrize(("length", "step"), [("32", 0), ("64", 20)])
def test_a_config_selects_the_examples(tiny_config: Path, length: str, step: int) -> None:
    changes = {"work_dir": "x", "seed": 5, "sentence_pairs": "sentence_order"}
    view = inspect_corpus(tiny_config.parent / length, tiny_config, changes)
    shown = show_batch(tiny_config, changes, step=step, num_rows=10)
    assert str(view.examples) == str(shown)
    assert "seed=5, sentence_pairs=sentence_order, masking.rate=0.15" in view.settings
    # If the config does not name the corpus, the phase with the corpus's sequence length is shown.
    missing = {"phases.phase1.corpus": "other"} if length == "32" else {}
    if missing:
        moved = inspect_corpus(tiny_config.parent / "32", tiny_config, {**changes, **missing})
        assert str(moved.examples) == str(shown)


class _Tags(HTMLParser):
    """A parser that collects the tags of a page, and checks that every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_command_prints_the_view_and_writes_a_page(corpus, tmp_path, bert_jax_here) -> None:
    page = tmp_path / "pages" / "corpus.html"
    shown = bert_jax_here("inspect", corpus, "--page", page)
    assert shown.code == 0, shown.errors
    view = inspect_corpus(corpus)
    assert shown.output == f"{view}\npage: {page}\n"
    assert f"Measured on all {view.manifest.train.num_records:,} training rows." in shown.output
    assert "10 of 10 rows" in shown.output
    html = page.read_text(encoding="utf-8")
    assert html == view.page and not re.search(r"(src|href)=|url\(|@import", html)
    tags = _Tags(html).tags
    assert tags.count("svg") == 3 and tags.count("table") == 2 and tags.count("h4") == 10
    assert '<span style="background: hsl(300 80% 50% / 0.3)">random</span>' in html
    colored = "\n".join(view.lines(color=True))
    assert "\x1b[35m[random]\x1b[0m [CLS]" in colored and "\x1b[36m[next]\x1b[0m" in colored


def test_requests_that_make_no_sense_are_rejected(
    corpus: Path, tiny_config: Path, tmp_path: Path, bert_jax_here
) -> None:
    (tmp_path / "begun" / ".work").mkdir(parents=True)
    (tmp_path / "begun" / ".work" / "plan.json").write_text("{}")
    two = ("--config", tiny_config, "--config.work_dir=x")
    for words, message in (
        ([tmp_path / "begun"], "this corpus is not finished. Run the same `bert-jax prepare`"),
        ([corpus, "--page", "a.pdf"], "--page=a.pdf: not an HTML file. Use a name that ends in"),
        (["base", "--page", "a.html"], "--page=a.html: applies only to a corpus"),
        ([corpus, "--shapes"], "--shapes: a corpus has no parameters"),
        ([corpus, "--config.seed=1"], "there is no config to change. Specify one."),
        (
            [corpus, *two, *(f"--config.phases.phase{n}.{key}" for n in (1, 2) for key in OTHER)],
            "0 phases of the config have the sequence length 32 of this corpus (phase1: 16",
        ),
    ):
        refused = bert_jax_here("inspect", *words)
        assert refused.code == 2, words
        assert message in refused.errors
    with pytest.raises(ValueError, match="^num_rows=0: expected at least 1"):
        inspect_corpus(corpus, num_rows=0)


OTHER = ("corpus=other", "sequence_length=16")
