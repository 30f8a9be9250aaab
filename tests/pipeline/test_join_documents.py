"""Rows whose documents read on into each other, beside the same rows with documents apart."""

import numpy as np
import pytest

from bert_jax.pipeline.examples import ExampleConfig


@pytest.fixture(scope="module")
def both(named_corpus, make_source):
    corpus = named_corpus.directory
    apart = make_source(corpus, sentence_pairs="none")
    joined = make_source(corpus, sentence_pairs="none", join_documents=True)
    return apart, joined


def test_the_same_tokens_and_masks_in_one_document(both):
    apart, joined = both
    indices = np.arange(len(apart))
    ours, theirs = joined.examples(2, indices), apart.examples(2, indices)
    there = theirs["document_ids"] > 0
    assert (theirs["document_ids"].max(axis=1) > 1).sum() > 5, "some rows hold several documents"
    cls, sep = apart.vocabulary.cls_id, apart.vocabulary.sep_id
    inner = (theirs["token_ids"] == cls) & (theirs["position_ids"] == 0) & there
    inner[:, 0] = False
    assert inner.sum() == (theirs["document_ids"].max(axis=1) - 1).clip(0).sum()
    # A [CLS] within a row is a separator; nothing else moves, and the same tokens are masked.
    assert (ours["token_ids"][inner] == sep).all()
    assert np.array_equal(ours["token_ids"][~inner], theirs["token_ids"][~inner])
    assert (ours["token_ids"][:, 0] == cls).all()
    for name in ("masked_positions", "masked_labels", "masked_weights", "segment_ids"):
        assert np.array_equal(ours[name], theirs[name]), name
    assert np.array_equal(ours["document_ids"], there)
    lengths = there.sum(axis=1)
    for positions, length in zip(ours["position_ids"], lengths, strict=True):
        assert np.array_equal(positions[:length], np.arange(length))
        assert not positions[length:].any()


def test_a_batch_is_what_its_spec_says(both):
    _, joined = both
    batch, spec = joined.examples(0, np.arange(3)), joined.spec(3)
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        name: (shape, np.dtype(kind)) for name, (shape, kind) in spec.items()
    }
    assert batch["cls_positions"].shape == (3, 1) and not batch["pair_weights"].any()
    assert joined.padding(2)["pair_weights"].shape == (2, 1)


def test_pairs_are_of_one_document():
    with pytest.raises(ValueError, match="True with sentence_pairs='sentence_order': pairs are of"):
        ExampleConfig(0, "sentence_order", join_documents=True)
