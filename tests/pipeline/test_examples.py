"""Examples are what the papers say, and a pure function of (corpus, seed, epoch, index).

The tokens of the corpus here name their own place (`named_documents`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from bert_jax.corpus.manifest import read_manifest, write_manifest
from bert_jax.corpus.packing import TokenizedDocument, pack_documents
from bert_jax.corpus.synthetic import NUM_SPECIAL, write_corpus
from bert_jax.pipeline.examples import Batch, ExampleSource
from bert_jax.pipeline.masking import MaskingConfig

from ..corpus.conftest import LENGTH, MAX_FRAGMENTS, SPAN

CLS, SEP = 2, 3


@pytest.fixture(scope="module")
def documents(named_corpus) -> list[TokenizedDocument]:
    return named_corpus.documents


@pytest.fixture(scope="module")
def prepared(named_corpus) -> Path:
    return named_corpus.directory


@pytest.fixture(scope="module")
def source(prepared, make_source) -> ExampleSource:
    return make_source(prepared)


@pytest.fixture(scope="module")
def epochs(source) -> list[Batch]:
    return [source.examples(epoch, np.arange(len(source))) for epoch in range(4)]


def assert_equal(batch: Batch, other: Batch) -> None:
    assert batch.keys() == other.keys()
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


def rows_of(batch: Batch, rows: np.ndarray) -> Batch:
    return {name: array[rows] for name, array in batch.items()}


@pytest.fixture(scope="module")
def pairs(epochs, documents, fragments_of):
    """What a pair shows of itself, over four epochs: one structured row a pair."""
    ends = {number + 1: set(d.sentence_starts[1:].tolist()) for number, d in enumerate(documents)}
    sizes = [0, *(len(document.token_ids) for document in documents)]
    found = []
    for batch in epochs:
        for tokens, segments, label, weight in fragments_of(batch):
            if weight:
                a, b = tokens[segments == 0][1:-1], tokens[segments == 1][:-1]
                document, next_place = divmod(int(b[-1]) + 1, SPAN)
                ends_document = next_place == sizes[document]
                ends_sentence = ends_document or next_place in ends[document]
                found.append((label, len(a), len(b), ends_document, ends_sentence, a[-1], b[0]))
    names = "label a b ends_document ends_sentence last_of_a first_of_b"
    return dict(zip(names.split(), np.array(found).T, strict=True))


def rank_auc(feature: np.ndarray, label: np.ndarray) -> float:
    """Area under the ROC curve of a feature as a score, ties counted half (Mann-Whitney)."""
    values, inverse, counts = np.unique(feature, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = int(label.sum())
    u = ranks[label == 1].sum() - positive * (positive + 1) / 2
    return float(u / (positive * (len(label) - positive)))


def test_a_batch_is_what_its_spec_says(source, epochs):
    spec = source.spec(len(source))
    assert {name: (array.shape, array.dtype.type) for name, array in epochs[0].items()} == spec


def test_every_epoch_visits_every_record_once_in_its_own_order(
    documents, prepared, make_source, unmasked
):
    source = make_source(prepared, sentence_pairs="none")
    records = pack_documents(documents, LENGTH, MAX_FRAGMENTS)
    expected = sorted(tuple(p.token_ids[0] for p in fragments) for fragments in records)
    orders = []
    for epoch in range(2):
        batch = source.examples(epoch, np.arange(len(source)))
        token_ids = unmasked(batch)
        orders.append(
            [
                tuple(token_ids[row, at + 1] for at in batch["cls_positions"][row][:count])
                for row, count in enumerate(batch["document_ids"].max(axis=1))
            ]
        )
        assert sorted(orders[-1]) == expected
    assert sum(one == other for one, other in zip(*orders, strict=True)) < 10


def test_unmasking_gives_back_the_records_text_where_the_label_is_next(
    epochs, documents, fragments_of
):
    lengths = {number + 1: len(d.token_ids) for number, d in enumerate(documents)}
    checked = 0
    for tokens, segments, label, weight in fragments_of(epochs[0]):
        a, b = tokens[segments == 0], tokens[segments == 1]
        assert a[0] == CLS and a[-1] == SEP and (len(b) > 0) == (weight == 1)
        text = a[1:-1]
        if weight:
            assert b[-1] == SEP and len(b) > 1 and len(a) > 2
            if label == 0:
                text = np.concatenate([text, b[:-1]])
            else:
                assert (np.diff(b[:-1]) == 1).all()
        assert (np.diff(text) == 1).all()
        assert lengths[text[0] // SPAN] >= text[-1] % SPAN
        checked += 1
    assert checked > 4000


def test_layout_of_rows(source, epochs, unmasked):
    batch = epochs[0]
    documents = batch["document_ids"]
    token_ids = unmasked(batch)
    assert (token_ids[documents == 0] == source.vocabulary.pad_id).all()
    for name in ("segment_ids", "position_ids"):
        assert (batch[name][documents == 0] == 0).all()
    assert (np.diff(documents != 0, axis=1).astype(int) <= 1).all()
    for row in range(len(documents)):
        present = documents[row][documents[row] > 0]
        edges = np.flatnonzero(np.diff(present, prepend=0))
        assert (np.diff(present, prepend=0)[edges] == 1).all()  # 1, 2, ... each in one run
        count = len(edges)
        np.testing.assert_array_equal(batch["cls_positions"][row][:count], edges)
        assert (batch["cls_positions"][row][count:] == 0).all()
        assert (batch["pair_weights"][row][count:] == 0).all()
        begin = np.repeat(edges, np.diff([*edges, len(present)]))
        np.testing.assert_array_equal(
            batch["position_ids"][row][: len(present)], np.arange(len(present)) - begin
        )
    # only pieces begin with [CLS], and rows are as full as cutting pairs to equal lengths allows
    assert (token_ids == CLS).sum() == documents.max(axis=1).sum()
    assert (documents > 0).mean() > 0.99


def test_special_tokens_are_never_predicted(epochs):
    for batch in epochs:
        assert batch["masked_labels"][batch["masked_weights"] > 0].min() >= NUM_SPECIAL


def test_half_of_the_pairs_are_random(pairs):
    share = pairs["label"].mean()
    assert len(pairs["label"]) > 15_000
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(pairs["label"]))


def test_a_negative_comes_from_another_document_and_a_positive_continues(pairs):
    negative = pairs["label"] == 1
    same = pairs["last_of_a"] // SPAN == pairs["first_of_b"] // SPAN
    assert not same[negative].any()
    np.testing.assert_array_equal(pairs["first_of_b"][~negative], pairs["last_of_a"][~negative] + 1)


def test_every_second_segment_begins_at_a_sentence(pairs, documents):
    starts = np.concatenate(
        [(number + 1) * SPAN + d.sentence_starts[1:] for number, d in enumerate(documents)]
    )
    assert np.isin(pairs["first_of_b"], starts).all()


@pytest.mark.parametrize("feature", ["a", "b", "total", "ends_document", "ends_sentence"])
def test_the_label_cannot_be_told_from_lengths_or_ends(pairs, feature):
    values = pairs["a"] + pairs["b"] if feature == "total" else pairs[feature]
    assert abs(rank_auc(values, pairs["label"]) - 0.5) < 0.02


def test_the_label_cannot_be_told_from_lengths_and_ends_together(pairs):
    """A document's short end goes on to a clean end; so must what is drawn in its place."""
    names = ("a", "b", "ends_document", "ends_sentence")
    table = np.stack([*(pairs[name] for name in names), pairs["a"] + pairs["b"]], axis=1)
    # Judged on other documents: a piece comes again in every epoch.
    learned = pairs["last_of_a"] // SPAN % 2 == 0
    model = HistGradientBoostingClassifier(max_iter=40, random_state=0)
    model.fit(table[learned], pairs["label"][learned])
    score = model.predict_proba(table[~learned])[:, 1]
    assert abs(roc_auc_score(pairs["label"][~learned], score) - 0.5) < 0.02


def test_the_label_cannot_be_told_from_both_lengths_together(pairs):
    bins = [np.searchsorted(np.quantile(pairs[k], np.arange(1, 6) / 6), pairs[k]) for k in "ab"]
    cell = bins[0] * 6 + bins[1]
    count = np.bincount(cell, minlength=36)
    negative = np.bincount(cell, pairs["label"], minlength=36)
    filled = count > 20
    rate = pairs["label"].mean()
    deviation = (negative - count * rate)[filled] ** 2 / (count[filled] * rate * (1 - rate))
    degrees = filled.sum() - 1
    assert degrees > 15
    assert abs(deviation.sum() - degrees) < 5 * np.sqrt(2 * degrees)


def test_an_example_is_the_same_alone_in_any_order_and_from_any_reader(
    source, prepared, epochs, make_source
):
    order = np.random.default_rng(0).permutation(len(source))[:40]
    assert_equal(source.examples(1, order), rows_of(epochs[1], order))
    last = len(source) - 1
    other = make_source(prepared)
    for index in (0, 31, 32, last):
        assert_equal(other.examples(1, np.array([index])), rows_of(epochs[1], np.array([index])))
    repeated = np.array([5, 5, 70, 5])
    assert_equal(source.examples(2, repeated), rows_of(epochs[2], repeated))


@pytest.mark.parametrize("pairs", ["none", "next_sentence", "sentence_order"])
def test_seeds_and_epochs_differ(prepared, pairs, make_source):
    def make(seed: int, epoch: int) -> np.ndarray:
        source = make_source(prepared, seed=seed, sentence_pairs=pairs)
        return source.examples(epoch, np.arange(64))["token_ids"]

    first = make(1, 0)
    np.testing.assert_array_equal(first, make(1, 0))
    assert (first != make(1, 1)).mean() > 0.9
    assert (first != make(2, 0)).mean() > 0.9


def test_a_record_is_split_and_masked_anew_each_epoch(epochs, unmasked):
    def by_first_token(batch: Batch) -> dict[int, tuple]:
        a_width = (batch["document_ids"] == 1) & (batch["segment_ids"] == 0)
        first = unmasked(batch)[:, 1]
        return {
            int(token): (int(width), tuple(masked))
            for token, width, masked in zip(
                first, a_width.sum(axis=1), batch["masked_positions"], strict=True
            )
        }

    one, other = by_first_token(epochs[0]), by_first_token(epochs[1])
    assert one.keys() == other.keys()
    same_split = np.mean([one[key][0] == other[key][0] for key in one])
    same_masks = np.mean([one[key][1] == other[key][1] for key in one])
    assert same_split < 0.6 and same_masks < 0.01


@pytest.mark.parametrize("pairs", ["none", "next_sentence", "sentence_order"])
def test_static_maskings_come_again_and_dynamic_ones_do_not(prepared, pairs, make_source, unmasked):
    def masks(num_maskings: int) -> list[dict[tuple, tuple]]:
        """Of two epochs that share a static masking, what is masked of every text."""
        masking = MaskingConfig(num_maskings=num_maskings)
        source = make_source(prepared, sentence_pairs=pairs, masking=masking)
        found = []
        for epoch in (1, 4):
            batch = source.examples(epoch, np.arange(len(source)))
            texts = map(tuple, unmasked(batch).tolist())
            seen = map(tuple, batch["token_ids"].tolist())
            found.append(dict(zip(texts, seen, strict=True)))
        return found

    static, dynamic = masks(3), masks(0)
    assert len(static[0]) > 100 and static[0] == static[1]
    same_place = [a == b for a, b in zip(static[0].items(), static[1].items(), strict=True)]
    assert np.mean(same_place) < 0.03
    same = [text for text in dynamic[0] if dynamic[1].get(text) == dynamic[0][text]]
    assert len(same) < 0.01 * len(dynamic[0])
    one, other = masks(2)  # 1 % 2 and 4 % 2
    assert one != other


def test_without_pairs_every_fragment_is_one_segment(prepared, make_source, fragments_of):
    batch = make_source(prepared, sentence_pairs="none").examples(0, np.arange(200))
    assert batch["segment_ids"].max() == 0
    assert batch["pair_weights"].max() == 0
    for tokens, *_ in fragments_of(batch):
        assert tokens[0] == CLS and tokens[-1] == SEP and (np.diff(tokens[1:-1]) == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 100}, "takes 1[0-9]* positions in .* Expected at most 100"),
        ({"max_fragments": 1}, "takes .* in 2 fragments. Expected at most 128 in 1, according"),
        ({"vocab_size": 60_000}, "contains the token id"),
    ],
)
def test_a_record_against_the_manifest_is_named(documents, tmp_path, change, message, make_source):
    vocab_size = (len(documents) + 1) * SPAN
    write_corpus(
        tmp_path,
        documents[:40],
        documents[:1],
        max_length=LENGTH,
        max_fragments=MAX_FRAGMENTS,
        vocab_size=vocab_size,
        token_bytes=4,
    )
    write_manifest(tmp_path, replace(read_manifest(tmp_path), **change))
    source = make_source(tmp_path, sentence_pairs="none")
    with pytest.raises(ValueError, match=rf"train-00000.arrayrecord: record \d+: {message}"):
        source.examples(0, np.arange(len(source)))
