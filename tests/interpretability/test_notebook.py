"""Test how notebooks show results: that the HTML is complete, escaped and self-contained."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.inference.fill_mask import Guess
from bert_jax.interpretability.attributions import Attribution
from bert_jax.interpretability.checkpoint_similarity import CheckpointSimilarity
from bert_jax.interpretability.emergence import Emergence
from bert_jax.interpretability.head_probe import DIRECTIONS, OFFSETS, HeadProbe
from bert_jax.interpretability.head_pruning import HeadPruning
from bert_jax.interpretability.layer_guesses import MaskGuesses, TextGuesses
from bert_jax.interpretability.layer_probe import CONDITIONS, LayerProbe
from bert_jax.interpretability.notebook import Shaded, folded, paragraph, picture, table, words
from bert_jax.interpretability.similarity import Similarity
from bert_jax.labeled_data.tokenized_text import TextWord
from bert_jax.result_files import PlottedResult, SavedResult
from bert_jax.runs.named_checkpoint import NamedCheckpoint

EVIL = '<script>alert("$1$")</script> $\\x$'
VOID = {"img", "br"}


def attribution() -> Attribution:
    texts = ("[CLS]", "good", EVIL, "[SEP]")
    positions = enumerate(texts)
    return Attribution(
        target="positive",
        score=0.875,
        baseline_score=0.5,
        tokens=texts,
        words=tuple(TextWord(text, 0, start, start + 1) for start, text in positions),
        scores=np.array([0, 0.5, -0.125, 0], np.float32),
        error=0.001,
    )


def guesses() -> TextGuesses:
    layers = ((Guess("sea", 0.25), Guess(EVIL, 0.125)), (Guess("bank", 0.75), Guess("sea", 0.1)))
    return TextGuesses([MaskGuesses(1, layers)])


def head_probe(count: int = 400) -> HeadProbe:
    accuracies = np.zeros((len(DIRECTIONS), 2, 2, 3))
    accuracies[0, :, 1, 2] = 0.75
    offsets = np.full((2, len(OFFSETS)), 0.25)
    relations = ("all", EVIL)
    return HeadProbe(relations, np.array([count] * 2), accuracies, offsets, 20, {"too long": 1})


def layer_probe() -> LayerProbe:
    accuracies = np.full((len(CONDITIONS), 3, 2), 0.5)
    accuracies[0] = [[0.8, 0.8], [0.9, 0.9], [0.7, 0.7]]
    return LayerProbe("tags", ("NOUN", EVIL), accuracies, 0.6, 1000, 100)


def emergence() -> Emergence:
    return Emergence(EVIL, (10, 20), (head_probe(), head_probe()), {10: 3.0, 20: 2.0})


def checkpoint(name: str) -> NamedCheckpoint:
    return NamedCheckpoint(name, f"/runs/{name}", 10)


def similarity() -> Similarity:
    cka = np.array([[1.0, 0.25], [0.5, 0.75]])
    return Similarity(checkpoint(EVIL), checkpoint("other"), cka, Path(EVIL), 3, 12)


def checkpoints() -> CheckpointSimilarity:
    cka = np.array([[0.25, 0.5], [1.0, 1.0]])
    return CheckpointSimilarity(Path(EVIL), (10, 2000), cka, Path(EVIL), 3, 12)


def pruning() -> HeadPruning:
    without = np.array([[0.75, 0.5], [0.75, 1.0]])
    order = ((1, 1), (0, 0), (1, 0), (0, 1))
    scores = (0.75, 1.0, 0.75, 0.5, 0.25)
    source = (checkpoint(EVIL), EVIL, EVIL, 4)
    return HeadPruning(*source, EVIL, (0, 1), np.eye(2), without, order, scores)


RESULTS: list[Callable[[], Any]] = [
    *(attribution, guesses, head_probe, layer_probe, emergence, similarity, checkpoints, pruning),
]

PLOTTED: list[Callable[[], Any]] = [emergence, similarity, checkpoints, pruning]


class Tags(HTMLParser):
    """A parser that collects the elements of an HTML fragment, and checks their nesting."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


@pytest.mark.parametrize("make", RESULTS)
def test_the_html_is_escaped_and_needs_nothing_else(make):
    source = make()._repr_html_()
    tags = Tags(source)
    assert not {"script", "link", "style", "iframe"} & set(tags.names)
    for name, value in tags.attributes:
        assert not name.startswith("on")
        assert name != "src" or value.startswith("data:image/png;base64,")
    assert "http" not in re.sub(r"base64,[^\"]*", "", source)
    assert all("color:" not in (value or "") for name, value in tags.attributes if name == "style")


@pytest.mark.parametrize("make", [make for make in RESULTS if make is not layer_probe])
def test_texts_appear_unchanged(make):
    tags = Tags(make()._repr_html_())
    assert EVIL in tags.text or EVIL in dict(tags.attributes).values()


@pytest.mark.parametrize("make", RESULTS)
def test_results_print_as_the_lines_of_a_table(make):
    result = make()
    assert str(result) == "\n".join(result.lines()) != repr(result)


def test_words_are_colored_by_their_contribution():
    shown = attribution()._repr_html_()
    good = re.search(r'<span style="background: hsl\((\d+) 90% 50% / ([\d.]+)\)[^>]*>good<', shown)
    bad = re.search(r'<span style="background: hsl\((\d+) 90% 50% / ([\d.]+)\)[^>]*>&lt;s', shown)
    assert good[1] != bad[1] and float(good[2]) == pytest.approx(4 * float(bad[2]))
    assert 'title="good: +0.500"' in shown
    text = Tags(shown).text
    assert "Score of 'positive': 0.875; with every word hidden: 0.500" in text
    assert not re.search(r"background[^>]*>\[CLS\]", shown)
    assert str(attribution()).splitlines()[3].split() == ["good", "+0.500"]


def test_guesses_are_shown_by_layer():
    (mask,) = guesses()
    assert str(guesses()) == str(mask)
    title, *rows = mask.lines()
    assert title == "guesses for the mask at token 2"
    assert [row.split()[0] for row in rows] == ["embeddings", "1"]
    assert rows[1].split()[1:3] == ["bank", "75.0%"]
    assert "bank 75.0%" in Tags(mask._repr_html_()).text
    assert "no masks" in TextGuesses()._repr_html_()


def test_probes_of_heads_are_shaded_by_their_gain():
    shown = head_probe()._repr_html_()
    assert "hsl(215 90% 50% / 0.60)" in shown and ">75.0%<" in shown and ">2-3<" in shown
    assert "skipped sentences: 1 too long" in shown
    assert "No relation occurs 100 times" in head_probe(count=99)._repr_html_()


def test_probes_of_layers_are_shown_with_their_controls():
    tags = Tags(layer_probe()._repr_html_())
    for text in ("embeddings", "random weights", "90.0% ± 0.0%", "2 tags; 1,000 training words"):
        assert text in tags.text


def test_emergence_includes_its_plot():
    tags = Tags(emergence()._repr_html_())
    assert "img" in tags.names and "step 20" in tags.text
    assert any(name == "alt" and EVIL in value for name, value in tags.attributes)


def test_similarities_are_shaded():
    shown = similarity()._repr_html_()
    assert "hsl(215 90% 50% / 0.60)" in shown and ">0.25<" in shown
    assert "linear CKA of 12 word vectors in 3 sentences of" in Tags(shown).text
    header, *rows = str(checkpoints()).splitlines()
    assert header.split() == ["step", "emb.", "1"]
    assert [row.split() for row in rows[:2]] == [["10", "0.25", "0.50"], ["2,000", "1.00", "1.00"]]


def test_pruning_shows_what_each_head_changes():
    shown = pruning()._repr_html_()
    assert re.search(r"hsl\(215 90% 50% / 0\.60\)[^>]*>\+0\.2500<", shown)
    assert re.search(r"hsl\(28 90% 50% / 0\.60\)[^>]*>-0\.2500<", shown)
    tags = Tags(shown)
    assert "img" in tags.names and "details" in tags.names and "2-2" in tags.text


@pytest.mark.parametrize("make", PLOTTED)
def test_plots_and_values_are_written_to_new_directories(make, tmp_path):
    result = make()
    result.plot(tmp_path / "plots" / "plot.png")
    assert (tmp_path / "plots" / "plot.png").read_bytes().startswith(b"\x89PNG")
    result.save(tmp_path / "values" / "values.json")
    saved = json.loads((tmp_path / "values" / "values.json").read_text(encoding="utf-8"))
    assert saved == json.loads(json.dumps(result.to_json()))


@pytest.mark.parametrize("make", PLOTTED)
def test_plotted_results_have_the_methods_that_commands_use(make):
    protocols = (SavedResult, PlottedResult)
    declared = {
        name for kind in protocols for name, f in vars(kind).items() if inspect.isfunction(f)
    }
    assert {"__str__", "plot", "save"} <= declared
    assert {"__str__", "plot", "save"} <= vars(type(make())).keys()


@pytest.mark.parametrize("make", [head_probe, layer_probe, *PLOTTED])
def test_json_files_say_how_layers_are_numbered(make):
    values = make().to_json()
    if "layers_count_from" in values:
        assert (values["layers_count_from"], values["heads_count_from"]) == (0, 0)
    else:
        assert values.get("layers", values.get("rows"))[:2] == ["embeddings", "1"]


def test_the_parts_of_the_html_are_escaped():
    evil = Shaded(EVIL, -1, EVIL)
    parts = [table([EVIL], [[EVIL, evil]]), words([evil]), paragraph(EVIL), picture(b"", EVIL)]
    for part in [*parts, folded(EVIL, "<b>bold</b>")]:
        assert "<script" not in part and "script" in part
        Tags(part)
