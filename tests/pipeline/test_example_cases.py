"""Test examples from corpora that each cover one case, and check that random draws never change."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.packing import TokenizedDocument
from bert_jax.corpus.synthetic import synthetic_vocabulary, write_corpus
from bert_jax.pipeline.examples import ExampleConfig, ExampleSource
from bert_jax.pipeline.masking import MaskingConfig

SEP = 3

GOLDEN_POSITIONS = [26, 30, 12, 17, 17, 36, 23, 20]
GOLDEN_TOKENS = [4, 95000, 8244, 15183, 88061, 90000, 199000, 145061]
GOLDEN_B_LENGTHS = [24, 51, 48, 36, 2, 28, 29, 2]
GOLDEN_LABELS = [0, 0, 1, 1, 0, 0, 0, 1]
GOLDEN_OF_UNITS = {
    "token": [
        [26, 30, 12, 17, 24, 36, 21, 20],
        [4, 95000, 8244, 15183, 88061, 90000, 199000, 145061],
        [0, 0, 1, 1, 0, 0, 0, 1],
    ],
    "word": [
        [11, 46, 17, 20, 19, 27, 36, 31],
        [4, 4, 8244, 15183, 4, 4, 4, 145061],
        [0, 0, 1, 1, 0, 0, 0, 1],
    ],
    "ngram": [
        [20, 8, 6, 19, 43, 51, 13, 22],
        [129183, 4, 8244, 15183, 88061, 90000, 199000, 145061],
        [0, 0, 1, 1, 0, 0, 0, 1],
    ],
    "span": [
        [31, 9, 20, 19, 49, 47, 54, 54],
        [129183, 95000, 8244, 15183, 88061, 90000, 199000, 145061],
        [0, 0, 1, 1, 0, 0, 0, 1],
    ],
}


def write_documents(directory: Path, documents, **arguments) -> Path:
    vocab_size = 1 + max(int(document.token_ids.max()) for document in documents)
    arguments = {"max_length": 32, "vocab_size": vocab_size, "token_bytes": 4, **arguments}
    write_corpus(directory, documents, documents[:1], **arguments)
    return directory


def write_pinned(directory: Path) -> Path:
    documents = [
        TokenizedDocument(number, 1000 * number + np.arange(length), np.arange(0, length, 11))
        for number in range(200)
        if (length := 5 + 37 * number % 300)
    ]
    return write_documents(directory, documents, max_length=64, vocab_size=200_000)


@pytest.mark.parametrize("unit", GOLDEN_OF_UNITS)
def test_draws_of_other_objectives_never_change(tmp_path, unit):
    """Use a vocabulary in which every third token continues the previous token's word."""
    corpus = Corpus(write_pinned(tmp_path), "train")
    vocabulary = dataclasses.replace(
        synthetic_vocabulary(200_000), continuation_ids=np.arange(9, 200_000, 3, dtype=np.int32)
    )
    masking = MaskingConfig(unit=unit)
    source = ExampleSource(corpus, vocabulary, ExampleConfig(1, "sentence_order", masking))
    batch = source.examples(3, np.arange(96, 104))
    draws = [batch["masked_positions"][:, 3], batch["token_ids"][:, 1], batch["pair_labels"][:, 0]]
    assert [draw.tolist() for draw in draws] == GOLDEN_OF_UNITS[unit]


def test_draws_never_change(tmp_path, make_source):
    """Compare with the first version's draws, because a change would affect every resumed run."""
    source = make_source(write_pinned(tmp_path))
    batch = source.examples(3, np.arange(96, 104))
    assert batch["masked_positions"][:, 3].tolist() == GOLDEN_POSITIONS
    assert batch["token_ids"][:, 1].tolist() == GOLDEN_TOKENS
    assert batch["segment_ids"].sum(axis=1).tolist() == GOLDEN_B_LENGTHS
    assert batch["pair_labels"].sum(axis=1).tolist() == GOLDEN_LABELS


def test_a_copied_document_is_never_a_negative(tmp_path, make_source):
    text = np.arange(20) + 50
    twins = [TokenizedDocument(number, text, np.array([0, 10])) for number in range(40)]
    source = make_source(write_documents(tmp_path, twins))
    batch = source.examples(0, np.arange(len(source)))
    assert batch["pair_weights"].sum() == 40
    assert batch["pair_labels"].sum() == 0


def test_fragments_without_a_partner_are_one_segment_without_a_label(
    tmp_path, make_source, unmasked
):
    single = [TokenizedDocument(n, 50 + np.arange(20), np.array([0])) for n in range(5)]
    lone_pair = TokenizedDocument(9, 100 + np.arange(20), np.array([0, 10]))
    source = make_source(write_documents(tmp_path, [*single, lone_pair]))
    batch = source.examples(0, np.arange(len(source)))
    assert batch["pair_weights"].sum() == 0 and batch["segment_ids"].sum() == 0
    assert (unmasked(batch) == SEP).sum() == 6


def test_fragments_with_different_kinds_of_ends_are_not_paired(tmp_path, make_source, fragments_of):
    """Check that a fragment that fills its record is not paired with one that does not.

    Otherwise, the end of the second segment would reveal the label.
    """
    long = TokenizedDocument(0, 1000 + np.arange(29), np.arange(0, 29, 7))
    others = [TokenizedDocument(n, 50 + np.arange(28), np.arange(0, 28, 7)) for n in range(1, 9)]
    source = make_source(write_documents(tmp_path, [long, *others], max_fragments=1))
    for tokens, segments, _, weight in fragments_of(source.examples(0, np.arange(9))):
        assert weight == (tokens.max() < 1000) == segments.any()


def test_a_partner_is_found_beyond_many_candidates_of_the_same_document(
    tmp_path, make_source, fragments_of
):
    long = TokenizedDocument(0, 1000 + np.arange(29 * 30), np.arange(0, 29 * 30, 7))
    # This fragment has the maximum length, so it ends in the same way as the fragments of the long
    # document.
    short = TokenizedDocument(1, 50 + np.arange(29), np.arange(0, 29, 7))
    source = make_source(write_documents(tmp_path, [long, short], max_fragments=1))
    assert len(source) == 31
    batch = source.examples(0, np.arange(31))
    assert batch["pair_weights"].sum() == 31
    from_short = [
        {bool(token < 1000) for token in tokens[1:-1] if token > SEP}
        for tokens, _, label, _ in fragments_of(batch)
        if label == 1
    ]
    assert len(from_short) > 5
    assert all(sources == {True, False} for sources in from_short)


def test_an_unsuitable_corpus_is_refused(tmp_path, make_source):
    document = TokenizedDocument(0, 50 + np.arange(100), np.arange(0, 100, 10))
    write_documents(tmp_path, [document])
    with pytest.raises(ValueError, match="the train split has only one document"):
        make_source(tmp_path)
    assert len(make_source(tmp_path, sentence_pairs="none")) > 1
    corpus = Corpus(tmp_path, "train")
    with pytest.raises(ValueError, match="prepared with 150 token ids, but the vocabulary has 149"):
        ExampleSource(corpus, synthetic_vocabulary(149), ExampleConfig(seed=0))
    with pytest.raises(ValueError, match="seed=-1: expected 0 to"):
        ExampleConfig(seed=-1)
