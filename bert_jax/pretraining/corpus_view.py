"""Describe a corpus: its lengths, its most frequent tokens, and some training rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.distributions import QUANTILES, Bin, Distribution
from bert_jax.corpus.manifest import TOKENIZER, Manifest
from bert_jax.corpus.report import corpus_table
from bert_jax.corpus.statistics import CorpusStatistics, measure
from bert_jax.pipeline.examples import ExampleConfig
from bert_jax.pretraining.batch_view import BatchView, view_batch
from bert_jax.pretraining.corpus_page import corpus_page
from bert_jax.pretraining.phase_config import PhaseConfig
from bert_jax.storage.uploads import write_result
from bert_jax.storage.urls import parse_location
from bert_jax.tokenizers.tokenizer import Tokenizer

_NUM_BINS = 10
_NUM_PIECES = 20
_BAR_WIDTH = 40


@dataclass(frozen=True)
class CorpusView:
    """A description of a corpus, printed as text and displayed as a page in Jupyter.

    Attributes:
      directory: the corpus directory.
      manifest: the corpus's manifest.
      statistics: measurements of the training split.
      pieces: the most frequent tokens in the rows that were read, in readable form and with their
        number of occurrences. The most frequent token comes first.
      settings: a description of the settings that determine the examples.
      examples: the first rows that a run with these settings trains on.
    """

    directory: str
    manifest: Manifest = field(repr=False)
    statistics: CorpusStatistics = field(repr=False)
    pieces: tuple[tuple[str, int], ...] = field(repr=False)
    settings: str
    examples: BatchView

    @property
    def title(self) -> str:
        """A title that names the corpus."""
        return f"Corpus {self.directory}"

    @property
    def sample(self) -> str:
        """A sentence that says which part of the training split was measured."""
        statistics, split = self.statistics, self.manifest.train
        rows, shards = f"{statistics.num_rows:,}", f"{statistics.num_shards}"
        if statistics.num_rows == split.num_records:
            read = f"all {rows} training rows"
        else:
            read = (
                f"{rows} of {split.num_records:,} training rows, in {statistics.num_runs:,} evenly "
                "spaced runs"
            )
        if statistics.num_shards < len(split.shards):
            read += (
                f"; for tokens per document, {shards} of {len(split.shards):,} evenly spaced shards"
            )
        return f"Measured on {read}."

    @property
    def quantiles(self) -> list[list[str]]:
        """A table of the mean and the quantiles of each distribution; the first row is a header."""
        header = ["", "mean", "smallest", *QUANTILES, "largest"]
        rows = []
        for name, each in self.distributions.items():
            numbers = [each.values[0], *map(each.quantile, QUANTILES.values()), each.values[-1]]
            rows.append([name, f"{each.mean:,.1f}", *(f"{number:,}" for number in numbers)])
        return [header, *rows]

    @property
    def frequent_pieces(self) -> list[list[str]]:
        """A table of the most frequent tokens; the first row is a header."""
        total = max(1, int(self.statistics.token_counts.sum()))
        rows, before = [], 0
        for text, count in self.pieces:
            before += count
            rows.append([text, f"{count:,}", f"{count / total:.2%}", f"{before / total:.1%}"])
        return [["token", "occurrences", "share", "share of all up to here"], *rows]

    @property
    def distributions(self) -> dict[str, Distribution]:
        """The distributions, keyed by their names in tables."""
        statistics = self.statistics
        return {
            f"positions used per row (of {self.manifest.max_length:,})": statistics.positions,
            "documents per row": statistics.documents,
            "tokens per document": statistics.document_tokens,
        }

    @property
    def histograms(self) -> dict[str, list[Bin]]:
        """The bins of a histogram of each distribution, keyed like `distributions`."""
        most = (self.manifest.max_length, self.manifest.max_fragments)
        *of_rows, (documents, lengths) = self.distributions.items()
        bins = {
            name: each.even_bins(high, _NUM_BINS)
            for (name, each), high in zip(of_rows, most, strict=True)
        }
        return {**bins, documents: lengths.doubling_bins()}

    def lines(self, *, color: bool = False) -> Iterator[str]:
        """Yield lines of text, with ANSI colors in the examples if `color` is true."""
        yield self.title
        yield ""
        yield from corpus_table(self.manifest)
        yield ""
        yield self.sample
        yield ""
        yield from _aligned(self.quantiles)
        for name, bins in self.histograms.items():
            yield ""
            yield name
            yield from _bars(bins)
        yield ""
        yield "most frequent tokens"
        yield from _aligned(self.frequent_pieces)
        yield ""
        yield f"Examples {self.settings}:"
        yield from self.examples.lines(color=color)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def page(self) -> str:
        """A self-contained HTML page."""
        return corpus_page(
            self.title,
            corpus_table(self.manifest),
            self.sample,
            self.quantiles,
            self.histograms,
            self.frequent_pieces,
            f"Examples {self.settings}",
            self.examples,
        )

    def save(self, path: str | Path) -> None:
        """Write the page to a file, atomically."""
        write_result(path, self.page)

    def _repr_html_(self) -> str:
        return self.page


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join([f"{first:{widths[0]}}", *cells])


def _bars(bins: Sequence[Bin]) -> Iterator[str]:
    width = max(len(str(each)) for each in bins)
    longest = max(each.share for each in bins)
    for each in bins:
        bar = "█" * round(_BAR_WIDTH * each.share / longest)
        yield f"  {str(each):>{width}}  {each.share:6.1%}  {bar}".rstrip()


def view_corpus(
    corpus: str,
    phases: Sequence[tuple[str, int, PhaseConfig]],
    examples: ExampleConfig,
    settings: str,
    *,
    step: int,
    num_rows: int,
) -> CorpusView:
    """Measure a corpus, and show the first rows that a run trains on at a given step.

    Args:
      corpus: a directory made by `prepare`.
      phases: (name, first step, config) for each phase of the run, in running order.
      examples: the settings that determine the examples.
      settings: a description of these settings.
      step: a step of a phase that uses the corpus, counted over the whole run from 0.
      num_rows: the maximum number of rows to show. No row is shown twice.

    Raises:
      ValueError: the corpus is missing, unfinished or damaged, has no training rows, or does not
        fit the settings.
    """
    train = Corpus(corpus, "train")
    tokenizer = Tokenizer.load(parse_location(corpus) / TOKENIZER)
    batch = view_batch(
        phases, examples, step=step, num_rows=min(num_rows, max(1, train.info.num_records))
    )
    statistics = measure(train)
    counts = statistics.token_counts
    frequent = np.argsort(-counts, kind="stable")[:_NUM_PIECES]
    pieces = tuple(
        (tokenizer.readable(piece), int(counts[piece])) for piece in frequent if counts[piece]
    )
    return CorpusView(corpus, train.manifest, statistics, pieces, settings, batch)
