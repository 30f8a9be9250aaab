"""Turn a traced text into a self-contained HTML page that works offline."""

from __future__ import annotations

import base64
import html
import json
import zlib
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from bert_jax.interpretability.head_patterns import head_patterns
from bert_jax.interpretability.traced_text import TracedText
from bert_jax.interpretability.views import Views
from bert_jax.storage.uploads import write_result

# Pages up to this size open instantly on a phone and can be sent by email.
MAX_BYTES = 2_000_000


@dataclass(frozen=True)
class Page:
    """An HTML page, which Jupyter displays.

    Attributes:
      html: the source of the page.
      notes: sentences that explain which parts the page leaves out and why.
    """

    html: str = field(repr=False)
    notes: tuple[str, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write the page to a file, atomically."""
        write_result(path, self.html)

    def _repr_html_(self) -> str:
        source = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{source}" title="bert-jax look" loading="lazy" '
            'style="width: 100%; height: 800px; border: 0"></iframe>'
        )


def render_page(trace: TracedText, views: Views, title: str, separator: str = "[SEP]") -> Page:
    """Return a page that shows a traced text.

    Args:
      trace: the traced text.
      views: the content of the page besides attention.
      title: the title of the page, such as the name of the model.
      separator: the tokenizer's separator token.

    Raises:
      ValueError: the page would be larger than `MAX_BYTES`.
    """
    data = {**_attention_data(trace, separator), **_view_data(trace, views), "title": title}
    # Escape "<", since "</script>" in a text would end the script element.
    content = json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
    page = Template(_asset("look.html")).substitute(
        title=html.escape(title),
        style=_asset("look.css"),
        script=_asset("look.js"),
        data=content,
    )
    size = len(page.encode())
    if size > MAX_BYTES:
        raise ValueError(
            f"the text has {len(trace.tokens)} tokens, so its page would be {size:,} bytes, "
            f"but at most {MAX_BYTES:,} are allowed. Shorten the text, or set max_length."
        )
    return Page(page, tuple(views.notes))


def _asset(name: str) -> str:
    return (files("bert_jax.interpretability") / "assets" / name).read_text(encoding="utf-8")


def _attention_data(trace: TracedText, separator: str) -> dict[str, Any]:
    layers, heads = trace.attention.shape[:2]
    levels = np.round(255 * trace.attention).astype(np.uint8)
    patterns = head_patterns(trace, separator)._asdict()
    return {
        "text": trace.text,
        "second": trace.second,
        "tokens": trace.tokens,
        "words": [[word.text, word.start, word.stop] for word in trace.words],
        "layers": layers,
        "heads": heads,
        "separator": separator,
        "attention": base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode(),
        "patterns": {name: _rounded(scores) for name, scores in patterns.items()},
    }


def _view_data(trace: TracedText, views: Views) -> dict[str, Any]:
    data: dict[str, Any] = {
        "notes": views.notes,
        "guesses": [
            {
                "position": mask.position,
                "layers": [
                    [[guess.token, round(guess.probability, 4)] for guess in layer]
                    for layer in mask.layers
                ],
            }
            for mask in views.guesses
        ],
        "occurrences": [
            {
                "word": each.word,
                "pairs": [
                    {"name": name, "similarity": _rounded(similarity)}
                    for name, similarity in each.similarity.items()
                ],
            }
            for each in views.occurrences
        ],
        "probabilities": views.are_probabilities,
    }
    if views.scores is not None:
        data["scores"] = sorted(views.scores.items(), key=lambda item: -item[1])
    if views.attribution is not None:
        data["attribution"] = {
            "target": views.attribution.target,
            "score": views.attribution.score,
            "baseline": views.attribution.baseline_score,
            "scores": _rounded(views.attribution.word_scores),
        }
    if views.answer is not None:
        start, end, text = views.answer
        data["answer"] = {"start": _rounded(start), "end": _rounded(end), "text": text}
    if views.tags is not None:
        data["tags"] = [{"text": t.word, "type": t.entity, "label": t.tag} for t in views.tags]
    return data


def _rounded(values: np.ndarray) -> Any:
    return np.round(values.astype(np.float64), 4).tolist()
