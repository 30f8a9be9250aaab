"""Render a page that shows the lengths, frequent tokens and training examples of a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from bert_jax.corpus.distributions import Bin
from bert_jax.html_pages import bar_chart, html_page, html_table
from bert_jax.pretraining.batch_view import BatchView

_STYLE = """
td:first-child, th:first-child { text-align: left; white-space: pre; }
p span { border-radius: 3px; padding: 0 2px; }
h4 { margin-bottom: 0; }
"""


def corpus_page(
    title: str,
    summary: Sequence[str],
    sample: str,
    quantiles: Sequence[Sequence[str]],
    histograms: Mapping[str, Sequence[Bin]],
    pieces: Sequence[Sequence[str]],
    examples_title: str,
    examples: BatchView,
) -> str:
    """Return a self-contained HTML page.

    Args:
      title: the title.
      summary: lines of text that describe the whole corpus.
      sample: a sentence that says which part of the corpus was measured.
      quantiles: a table of quantiles; the first row is a header.
      histograms: the bins of each histogram, keyed by title.
      pieces: a table of the most frequent tokens; the first row is a header.
      examples_title: the title of the examples.
      examples: the training examples to show.
    """
    charts = (
        f"<h3>{escape(name)}</h3>\n{bar_chart([(str(each), each.share) for each in bins], name)}"
        for name, bins in histograms.items()
    )
    sections = [
        f"<pre>{escape(chr(10).join(summary))}</pre>",
        f"<h2>Lengths</h2>\n<p>{escape(sample)}</p>",
        f'<div class="wide">{html_table(quantiles)}</div>',
        *charts,
        f'<h2>Most frequent tokens</h2>\n<div class="wide">{html_table(pieces)}</div>',
        f"<h2>{escape(examples_title)}</h2>\n{examples.html}",
    ]
    return html_page(title, sections, _STYLE)
