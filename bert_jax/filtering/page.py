"""Show which documents were left out of a corpus, as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from bert_jax.html_pages import html_page, html_table

NUM_EXAMPLES = 5

_STYLE = """
td:first-child, th:first-child { text-align: left; }
.cluster { border-left: 3px solid var(--line); padding-left: 1em; margin: 1em 0; }
.source { overflow-wrap: anywhere; margin-bottom: 0; }
blockquote { background: var(--mark); border-radius: 6px; margin: 0.2em 0 1em; padding: 0.5em 1em;
  overflow-wrap: anywhere; white-space: pre-line; }
"""


@dataclass(frozen=True)
class FilterSummary:
    """The number of documents that were left out of a corpus, by reason.

    Attributes:
      num_documents: the number of documents, excluding exact duplicates.
      filtered: the number of documents that the filters removed, keyed by rule.
      contaminated_kept: the number of documents that are contaminated but kept.
      near_duplicates: the number of documents removed as near-duplicates.
      clusters: the number of clusters of near-duplicates, each with one kept document.
      evaluation_texts: the number of texts in the evaluation data.
      short_evaluation_texts: the number of evaluation texts that are too short to be compared.
    """

    num_documents: int
    filtered: dict[str, int] = field(default_factory=dict)
    contaminated_kept: int = 0
    near_duplicates: int = 0
    clusters: int = 0
    evaluation_texts: int = 0
    short_evaluation_texts: int = 0

    @property
    def num_removed(self) -> int:
        """The number of documents that were left out."""
        return sum(self.filtered.values()) + self.near_duplicates


@dataclass(frozen=True)
class FilterExample:
    """A document that a page shows.

    Attributes:
      source: the origin of the document.
      detail: the reason why the document is shown.
      beginning: the beginning of its text.
    """

    source: str
    detail: str
    beginning: str


@dataclass(frozen=True)
class ClusterExample:
    """A cluster of near-duplicates that a page shows.

    Attributes:
      kept: the document that is kept.
      removed: some of the documents that are removed.
      num_removed: the number of documents that are removed.
    """

    kept: FilterExample
    removed: tuple[FilterExample, ...]
    num_removed: int


def filter_page(
    summary: FilterSummary,
    examples: Mapping[str, Sequence[FilterExample]],
    clusters: Sequence[ClusterExample],
) -> str:
    """Return a page with the number of documents that each rule removed, and examples.

    Args:
      summary: the counts.
      examples: documents that failed each rule, keyed by rule.
      clusters: clusters of near-duplicates.
    """
    sections = [_section(rule, examples[rule]) for rule in sorted(examples)]
    if clusters:
        shown = "".join(_cluster(cluster) for cluster in clusters)
        sections.append(f"<h2>near-duplicates</h2>{shown}")
    return html_page("Documents left out of the corpus", [_table(summary), *sections], _STYLE)


def _table(summary: FilterSummary) -> str:
    counts = {**summary.filtered}
    if summary.near_duplicates:
        counts[f"near-duplicates, in {summary.clusters:,} clusters"] = summary.near_duplicates
    counts["removed in total"] = summary.num_removed
    if summary.contaminated_kept:
        counts["contaminated, but kept"] = summary.contaminated_kept
    rows = [
        (name, f"{count:,}", f"{count / max(1, summary.num_documents):.2%}")
        for name, count in counts.items()
    ]
    return (
        f"<p>{summary.num_documents:,} documents, excluding exact duplicates. Each document is "
        "counted under the first rule that it fails.</p>\n"
        + html_table([("rule", "documents", "share"), *rows])
    )


def _section(rule: str, examples: Sequence[FilterExample]) -> str:
    return f"<h2>{escape(rule)}</h2>" + "".join(_example(each) for each in examples)


def _cluster(cluster: ClusterExample) -> str:
    shown = "".join(_example(each) for each in (cluster.kept, *cluster.removed))
    more = cluster.num_removed - len(cluster.removed)
    rest = f"<p>and {more:,} more</p>" if more else ""
    return f'<div class="cluster">{shown}{rest}</div>'


def _example(example: FilterExample) -> str:
    return (
        f'<p class="source"><b>{escape(example.detail)}</b> · {escape(example.source)}</p>'
        f"<blockquote>{escape(example.beginning)}</blockquote>"
    )
