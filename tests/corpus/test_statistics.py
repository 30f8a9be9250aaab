"""Test measurements of corpora against NumPy and against the documents that were packed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpus import statistics
from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.distributions import QUANTILES, Distribution
from bert_jax.corpus.packing import tokenize_document
from bert_jax.corpus.statistics import measure, sampled_runs
from bert_jax.tokenizers.tokenizer import Tokenizer

from .conftest import SmallCorpus


@pytest.mark.parametrize("largest", [1, 2, 7, 128, 5000])
def test_distributions_agree_with_numpy(largest: int) -> None:
    numbers = 1 + np.random.default_rng(largest).integers(largest, size=1000)
    distribution = Distribution.of(numbers)
    assert distribution.size == 1000
    assert distribution.mean == pytest.approx(numbers.mean())
    for fraction in QUANTILES.values():
        expected = np.quantile(numbers, fraction, method="inverted_cdf")
        assert distribution.quantile(fraction) == expected
    for bins in (distribution.even_bins(largest, 10), distribution.doubling_bins()):
        edges = [*(each.low for each in bins), bins[-1].high + 1]
        assert [each.high + 1 for each in bins] == edges[1:]
        counts, _ = np.histogram(numbers, edges)
        np.testing.assert_allclose([each.share for each in bins], counts / 1000)
        assert counts.sum() == 1000
    assert [str(each) for each in Distribution.of(np.array([1000, 2000])).doubling_bins()] == [
        "512-1,023",
        "1,024-2,047",
    ]
    assert str(Distribution.of(np.ones(3, np.int64)).even_bins(4, 4)[0]) == "1"


def test_a_small_corpus_is_measured_exactly(
    finished: Path, corpus: SmallCorpus, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the lengths of documents with those found by tokenizing the texts again."""
    monkeypatch.setattr(statistics, "_MAX_SHARDS", 1000)
    splits = [Corpus(finished, "train"), Corpus(finished, "heldout")]
    measured = [measure(split) for split in splits]
    lengths = [
        len(tokenize_document(text, tokenizer, "en", np.dtype("<u2"))[0]) for text in corpus.texts
    ]
    assert sorted(
        length
        for each in measured
        for length in np.repeat(each.document_tokens.values, each.document_tokens.counts).tolist()
    ) == sorted(lengths)
    for split, each in zip(splits, measured, strict=True):
        assert (each.num_rows, each.num_runs) == (len(split), 1)
        assert each.num_shards == len(split.info.shards)
        assert each.positions.mean == pytest.approx(
            split.info.fill_rate * split.manifest.max_length
        )
        assert each.documents.mean == pytest.approx(split.info.num_fragments / len(split))
        assert int(each.token_counts.sum()) == split.info.num_tokens
        assert each.token_counts[tokenizer.unk_id] == split.info.num_unknown


def test_samples_of_a_large_corpus_are_even_and_contain_whole_documents(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for num_rows, length in [(65_537, 512), (10**9, 128), (10**6, 65_535)]:
        runs = sampled_runs(num_rows, length)
        rows = np.concatenate(runs)
        assert rows[0] == 0 and rows[-1] == num_rows - 1 and (np.diff(rows) > 0).all()
        assert len(rows) <= statistics.MAX_ROWS and len(rows) * length <= 1 << 25
        gaps = np.diff([run[0] for run in runs])
        assert gaps.max() - gaps.min() <= 1

    monkeypatch.setattr(statistics, "MAX_ROWS", 64)
    monkeypatch.setattr(statistics, "_MAX_SHARDS", 2)
    train = Corpus(finished, "train")
    measured = measure(train)
    assert (measured.num_rows, measured.num_runs, measured.num_shards) == (64, 2, 2)
    assert int(measured.token_counts.sum()) <= 64 * train.manifest.max_length
    rows = np.arange(len(train))
    batch = train.decode(rows, train.read(rows))
    ends = np.cumsum([shard.num_records for shard in train.info.shards])
    quarters = len(train) * np.array([1, 3]) // 4
    shards = np.searchsorted(ends, quarters, side="right")
    assert len(set(shards.tolist())) == 2 < len(ends)
    shard_of = np.searchsorted(ends, batch.fragment_record, side="right")
    documents = np.unique(batch.fragment_document[np.isin(shard_of, shards)])
    lengths = np.bincount(batch.fragment_document, batch.fragment_length)[documents]
    expected = np.unique(lengths, return_counts=True)
    np.testing.assert_array_equal(measured.document_tokens.values, expected[0])
    np.testing.assert_array_equal(measured.document_tokens.counts, expected[1])
