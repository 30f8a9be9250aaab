"""Test how sentence-order pairs are split, and that only the text reveals their order."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.packing import TokenizedDocument
from bert_jax.corpus.prepare import make_corpus
from bert_jax.pipeline.examples import ExampleConfig, ExampleSource
from bert_jax.tokenizers.byte_bpe_training import train_byte_bpe
from bert_jax.tokenizers.sentencepiece_training import train_sentencepiece
from bert_jax.tokenizers.special_tokens import Vocabulary

from ..corpus.conftest import SPAN


@pytest.fixture(scope="module")
def documents(named_corpus) -> list[TokenizedDocument]:
    return named_corpus.documents


@pytest.fixture(scope="module")
def source(named_corpus, make_source) -> ExampleSource:
    return make_source(named_corpus.directory, sentence_pairs="sentence_order")


@pytest.fixture(scope="module")
def six_epochs(source, fragments_of):
    """Return (first segment, second segment, label, weight) for each fragment in six epochs."""
    fragments = []
    for epoch in range(6):
        batch = source.examples(epoch, np.arange(len(source)))
        for tokens, segments, label, weight in fragments_of(batch):
            fragments.append(
                (tokens[segments == 0][1:-1], tokens[segments == 1][:-1], label, weight)
            )
    return fragments


@pytest.fixture(scope="module")
def starts(documents) -> set[int]:
    """Return the first token of each sentence and the token that follows each document."""
    return {
        (number + 1) * SPAN + int(start)
        for number, document in enumerate(documents)
        for start in (*document.sentence_starts, len(document.token_ids))
    }


def test_halves_are_complete_sentences_in_order_or_swapped(six_epochs, starts):
    """Check that the tokens of a swapped pair are in order once its halves are swapped back."""
    pairs = cut_at_both_ends = 0
    for first, second, label, weight in six_epochs:
        tokens = np.concatenate([first, second])
        low, high = int(tokens.min()), int(tokens.max()) + 1
        assert sorted(tokens.tolist()) == list(range(low, high))  # Every token occurs exactly once.
        inside = sorted(starts & set(range(low + 1, high)))
        if not weight:
            # There are fewer than two complete sentences.
            assert label == 0 and not len(second) and len(inside) < 4
            continue
        pairs += 1
        assert int(second[0]) in starts and int(first[-1]) + 1 in starts
        if not label:
            assert (np.diff(tokens) == 1).all()
            continue
        begin = low if low in starts else inside[0]
        end = begin + int(np.flatnonzero(tokens[begin - low :] == begin)[0])
        middle = int(tokens[begin - low])
        late, early = range(middle, middle + end - begin), range(begin, middle)
        swapped = [*range(low, begin), *late, *early]
        assert middle in starts and tokens.tolist()[: len(swapped)] == swapped
        assert tokens.tolist()[len(swapped) :] == list(range(low + len(swapped), high))
        assert low + len(swapped) in starts
        cut_at_both_ends += begin > low and low + len(swapped) < high
    assert pairs > 15_000 and cut_at_both_ends > 1_000


def test_half_of_the_pairs_are_swapped(six_epochs):
    labels = np.array([label for _, _, label, weight in six_epochs if weight])
    assert abs(labels.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(labels))


def test_lengths_and_ends_do_not_predict_the_label(six_epochs, starts):
    rows = [
        (
            *(len(a), len(b), len(a) + len(b), len(a) - len(b)),
            *(int(a[0]) in starts, int(a[-1]) + 1 in starts),
            *(int(b[0]) in starts, int(b[-1]) + 1 in starts),
            *(label, a[0] // SPAN),
        )
        for a, b, label, weight in six_epochs
        if weight
    ]
    *features, label, document = np.array(rows).T
    for feature in features:
        assert abs(roc_auc_score(label, feature) - 0.5) < 0.02
    # Evaluate on different documents, because fragments recur in every epoch with the same length.
    trained, table = document % 2 == 0, np.stack(features, axis=1)
    model = HistGradientBoostingClassifier(max_iter=40, random_state=0)
    model.fit(table[trained], label[trained])
    score = model.predict_proba(table[~trained])[:, 1]
    assert abs(roc_auc_score(label[~trained], score) - 0.5) < 0.02


def test_an_example_does_not_depend_on_the_others(source):
    batch = source.examples(3, np.arange(40))
    single = source.examples(3, np.array([17]))
    for name, array in single.items():
        np.testing.assert_array_equal(array[0], batch[name][17], err_msg=name)


def test_the_first_half_is_the_longer_one_in_half_of_the_pairs(six_epochs):
    halves = np.array(
        [
            (len(b), len(a)) if label else (len(a), len(b))
            for a, b, label, weight in six_epochs
            if weight
        ]
    )
    assert abs((halves[:, 0] > halves[:, 1]).mean() - 0.5) < 0.02


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece", "wordpiece"])
def test_spaces_before_a_half_do_not_predict_the_label(
    kind, tmp_path, write_json_lines, tokenizer, fragments_of
):
    """Check that segments start with a space equally often under both labels.

    With byte-level BPE, only the first sentence of a document lacks a leading space, which could
    reveal the order.
    """
    rng = np.random.default_rng(0)
    words = "cat dog house sea tree run".split()
    sentences = [
        [" ".join(rng.choice(words, rng.integers(3, 9))).capitalize() + "." for _ in range(count)]
        for count in rng.integers(1, 20, 1_500)
    ]
    texts = [" ".join(document) for document in sentences]
    tokenizers = {
        "byte_bpe": lambda: train_byte_bpe(texts, vocab_size=320),
        "sentencepiece": lambda: train_sentencepiece(texts, vocab_size=60)[0],
        "wordpiece": lambda: tokenizer,
    }
    tokenizer = tokenizers[kind]()
    options = PrepareOptions(max_length=64, max_documents_per_record=4, heldout_fraction=0.1)
    text = write_json_lines(tmp_path / "a.jsonl", texts)
    make_corpus([text], tokenizer, tmp_path / "out", options, num_workers=1)
    config = ExampleConfig(seed=1, sentence_pairs="sentence_order")
    source = ExampleSource(Corpus(tmp_path / "out", "train"), Vocabulary.of(tokenizer), config)
    rows = []
    for tokens, segments, label, weight in fragments_of(source.examples(0, np.arange(len(source)))):
        if weight:
            ids = (int(tokens[segments == 0][1]), int(tokens[segments == 1][0]))
            first, second = map(tokenizer.id_to_token, ids)
            rows.append((label, first.startswith(("Ġ", "▁")), second.startswith(("Ġ", "▁"))))
    label, *spaces = np.array(rows).T
    assert len(rows) > 1_000
    if kind == "byte_bpe":
        assert 0.1 < spaces[0].mean() < 0.9 and spaces[1].all()
    for space in spaces:
        shares = space[label == 0].mean(), space[label == 1].mean()
        assert abs(np.diff(shares)) < 5 * np.sqrt(space.var() * 4 / len(rows)) + 1e-12
