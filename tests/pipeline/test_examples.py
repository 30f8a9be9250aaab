"""Test that examples follow the papers and are a pure function of (corpus, seed, epoch, index).

The tokens in the corpus encode where they come from (`named_documents`).
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
    """Return a dict that maps each property to its values for all pairs in four epochs."""
    ends = {number + 1: set(d.sentence_starts[1:].tolist()) for number, d in enumerate(documents)}
    sizes = [0, *(len(document.token_ids) for document in documents)]
    rows = []
    for batch in epochs:
        for tokens, segments, label, weight in fragments_of(batch):
            if weight:
                a, b = tokens[segments == 0][1:-1], tokens[segments == 1][:-1]
                document, next_position = divmod(int(b[-1]) + 1, SPAN)
                ends_document = next_position == sizes[document]
                ends_sentence = ends_document or next_position in ends[document]
                rows.append((label, len(a), len(b), ends_document, ends_sentence, a[-1], b[0]))
    names = "label a b ends_document ends_sentence last_of_a first_of_b"
    return dict(zip(names.split(), np.array(rows).T, strict=True))


def rank_auc(feature: np.ndarray, label: np.ndarray) -> float:
    """Return the area under a feature's ROC curve (the Mann-Whitney statistic; ties count half)."""
    values, inverse, counts = np.unique(feature, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = int(label.sum())
    u = ranks[label == 1].sum() - positive * (positive + 1) / 2
    return float(u / (positive * (len(label) - positive)))


def test_a_batch_has_the_shapes_and_types_of_its_spec(source, epochs):
    spec = source.spec(len(source))
    assert {name: (array.shape, array.dtype.type) for name, array in epochs[0].items()} == spec


def test_every_epoch_visits_every_record_once_in_a_different_order(
    documents, prepared, make_source, unmasked
):
    source = make_source(prepared, sentence_pairs="none")
    records = pack_documents(documents, LENGTH, MAX_FRAGMENTS)
    expected = sorted(
        tuple(fragment.token_ids[0] for fragment in fragments) for fragments in records
    )
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
    assert sum(first == second for first, second in zip(*orders, strict=True)) < 10


def test_unmasking_restores_the_text_of_consecutive_segments(epochs, documents, fragments_of):
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


def test_rows_have_the_documented_layout(source, epochs, unmasked):
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
        # The values form one run of 1s, one run of 2s, and so on.
        assert (np.diff(present, prepend=0)[edges] == 1).all()
        count = len(edges)
        np.testing.assert_array_equal(batch["cls_positions"][row][:count], edges)
        assert (batch["cls_positions"][row][count:] == 0).all()
        assert (batch["pair_weights"][row][count:] == 0).all()
        begin = np.repeat(edges, np.diff([*edges, len(present)]))
        np.testing.assert_array_equal(
            batch["position_ids"][row][: len(present)], np.arange(len(present)) - begin
        )
    # [CLS] occurs only at the start of a document, and rows are nearly full, although pairs are
    # truncated.
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
def test_a_length_or_an_end_does_not_predict_the_label(pairs, feature):
    values = pairs["a"] + pairs["b"] if feature == "total" else pairs[feature]
    assert abs(rank_auc(values, pairs["label"]) - 0.5) < 0.02


def test_lengths_and_ends_together_do_not_predict_the_label(pairs):
    """Check that random partners end in the same way as the text that they replace."""
    names = ("a", "b", "ends_document", "ends_sentence")
    table = np.stack([*(pairs[name] for name in names), pairs["a"] + pairs["b"]], axis=1)
    # Evaluate on different documents, because the same fragments recur in every epoch.
    trained = pairs["last_of_a"] // SPAN % 2 == 0
    model = HistGradientBoostingClassifier(max_iter=40, random_state=0)
    model.fit(table[trained], pairs["label"][trained])
    score = model.predict_proba(table[~trained])[:, 1]
    assert abs(roc_auc_score(pairs["label"][~trained], score) - 0.5) < 0.02


def test_both_lengths_together_do_not_predict_the_label(pairs):
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


def test_an_example_does_not_depend_on_other_examples_or_the_reader(
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
def test_seeds_and_epochs_give_different_examples(prepared, pairs, make_source):
    def make(seed: int, epoch: int) -> np.ndarray:
        source = make_source(prepared, seed=seed, sentence_pairs=pairs)
        return source.examples(epoch, np.arange(64))["token_ids"]

    first = make(1, 0)
    np.testing.assert_array_equal(first, make(1, 0))
    assert (first != make(1, 1)).mean() > 0.9
    assert (first != make(2, 0)).mean() > 0.9


def test_a_record_is_split_and_masked_differently_in_every_epoch(epochs, unmasked):
    def by_first_token(batch: Batch) -> dict[int, tuple]:
        a_width = (batch["document_ids"] == 1) & (batch["segment_ids"] == 0)
        first = unmasked(batch)[:, 1]
        return {
            int(token): (int(width), tuple(masked))
            for token, width, masked in zip(
                first, a_width.sum(axis=1), batch["masked_positions"], strict=True
            )
        }

    first, second = by_first_token(epochs[0]), by_first_token(epochs[1])
    assert first.keys() == second.keys()
    same_split = np.mean([first[key][0] == second[key][0] for key in first])
    same_masks = np.mean([first[key][1] == second[key][1] for key in first])
    assert same_split < 0.6 and same_masks < 0.01


@pytest.mark.parametrize("pairs", ["none", "next_sentence", "sentence_order"])
def test_static_maskings_are_repeated_and_dynamic_ones_are_not(
    prepared, pairs, make_source, unmasked
):
    def masks(num_maskings: int) -> list[dict[tuple, tuple]]:
        """Return the masked rows of epochs 1 and 4, keyed by their text before masking.

        With three static maskings, both epochs use the same one.
        """
        masking = MaskingConfig(num_maskings=num_maskings)
        source = make_source(prepared, sentence_pairs=pairs, masking=masking)
        by_text = []
        for epoch in (1, 4):
            batch = source.examples(epoch, np.arange(len(source)))
            texts = map(tuple, unmasked(batch).tolist())
            masked = map(tuple, batch["token_ids"].tolist())
            by_text.append(dict(zip(texts, masked, strict=True)))
        return by_text

    static, dynamic = masks(3), masks(0)
    assert len(static[0]) > 100 and static[0] == static[1]
    same_position = [a == b for a, b in zip(static[0].items(), static[1].items(), strict=True)]
    assert np.mean(same_position) < 0.03
    same = [text for text in dynamic[0] if dynamic[1].get(text) == dynamic[0][text]]
    assert len(same) < 0.01 * len(dynamic[0])
    first, second = masks(2)  # With two maskings, epochs 1 and 4 use the masks of epochs 1 and 0.
    assert first != second


def test_without_pairs_every_fragment_is_one_segment(prepared, make_source, fragments_of):
    batch = make_source(prepared, sentence_pairs="none").examples(0, np.arange(200))
    assert batch["segment_ids"].max() == 0
    assert batch["pair_weights"].max() == 0
    for tokens, *_ in fragments_of(batch):
        assert tokens[0] == CLS and tokens[-1] == SEP and (np.diff(tokens[1:-1]) == 1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_length": 100}, "takes 1[0-9]* positions in .* The manifest allows at most 100 "),
        ({"max_fragments": 1}, "takes .* in 2 fragments. The manifest allows at most 128 .* in 1 "),
        ({"vocab_size": 60_000}, "contains the token id"),
    ],
)
def test_records_beyond_the_manifest_are_refused(documents, tmp_path, change, message, make_source):
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
