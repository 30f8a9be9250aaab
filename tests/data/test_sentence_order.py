"""Pairs in order and swapped: what they are, and that nothing but the text tells them apart."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from bert_jax.data.packing import TokenizedDocument
from bert_jax.data.pipeline import ExampleSource

from .conftest import SPAN


@pytest.fixture(scope="module")
def documents(named_corpus) -> list[TokenizedDocument]:
    return named_corpus.documents


@pytest.fixture(scope="module")
def source(named_corpus, make_source) -> ExampleSource:
    return make_source(named_corpus.directory, sentence_pairs="sentence_order")


@pytest.fixture(scope="module")
def found(source, pieces_of):
    """Of six epochs' pieces: (first segment, second, label, weight)."""
    pieces = []
    for epoch in range(6):
        batch = source.examples(epoch, np.arange(len(source)))
        for tokens, segments, label, weight in pieces_of(batch):
            pieces.append((tokens[segments == 0][1:-1], tokens[segments == 1][:-1], label, weight))
    return pieces


def test_segments_follow_each_other_or_stand_the_other_way_round(found, documents):
    starts = np.concatenate(
        [(number + 1) * SPAN + each.sentence_starts for number, each in enumerate(documents)]
    )
    starts = set(starts.tolist())
    pairs = 0
    for first, second, label, weight in found:
        if not weight:
            assert label == 0 and not len(second)
            inside = set(first[1:].tolist()) & starts
            assert not inside  # a piece of several sentences always makes a pair
            continue
        pairs += 1
        early, late = (second, first) if label else (first, second)
        assert (np.diff(np.concatenate([early, late])) == 1).all()
        assert int(late[0]) in starts
    assert pairs > 20_000


def test_half_of_the_pairs_are_swapped(found):
    labels = np.array([label for _, _, label, weight in found if weight])
    assert abs(labels.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(labels))


def test_neither_lengths_nor_positions_tell_the_label(found):
    rows = [(len(a), len(b), label, a[0] // SPAN) for a, b, label, weight in found if weight]
    first, second, label, document = np.array(rows).T
    features = np.stack([first, second, first + second, first - second], axis=1)
    for feature in features.T:
        assert abs(roc_auc_score(label, feature) - 0.5) < 0.02
    # Judged on other documents: a piece comes again in every epoch and may be known by its length.
    learned = document % 2 == 0
    model = HistGradientBoostingClassifier(max_iter=40, random_state=0)
    model.fit(features[learned], label[learned])
    score = model.predict_proba(features[~learned])[:, 1]
    assert abs(roc_auc_score(label[~learned], score) - 0.5) < 0.02


def test_an_example_is_the_same_alone(source):
    together = source.examples(3, np.arange(40))
    alone = source.examples(3, np.array([17]))
    for name, array in alone.items():
        np.testing.assert_array_equal(array[0], together[name][17], err_msg=name)


def test_the_first_half_is_as_often_the_longer_one(found):
    halves = np.array(
        [(len(b), len(a)) if label else (len(a), len(b)) for a, b, label, weight in found if weight]
    )
    assert abs((halves[:, 0] > halves[:, 1]).mean() - 0.5) < 0.02
