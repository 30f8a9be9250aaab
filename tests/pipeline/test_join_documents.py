"""Compare rows before and after their documents are joined."""

import numpy as np
import pytest

from bert_jax.pipeline.examples import ExampleConfig


@pytest.fixture(scope="module")
def sources(named_corpus, make_source):
    corpus = named_corpus.directory
    separate = make_source(corpus, sentence_pairs="none")
    joined = make_source(corpus, sentence_pairs="none", join_documents=True)
    return separate, joined


def test_joined_documents_keep_their_tokens_and_masks(sources):
    separate_source, joined_source = sources
    indices = np.arange(len(separate_source))
    separate, joined = separate_source.examples(2, indices), joined_source.examples(2, indices)
    occupied = separate["document_ids"] > 0
    assert (separate["document_ids"].max(axis=1) > 1).sum() > 5, "some rows have multiple documents"
    cls, sep = separate_source.vocabulary.cls_id, separate_source.vocabulary.sep_id
    inner = (separate["token_ids"] == cls) & (separate["position_ids"] == 0) & occupied
    inner[:, 0] = False
    assert inner.sum() == (separate["document_ids"].max(axis=1) - 1).clip(0).sum()
    # A [CLS] inside a row becomes a separator. Other tokens and the masks are unchanged.
    assert (joined["token_ids"][inner] == sep).all()
    assert np.array_equal(joined["token_ids"][~inner], separate["token_ids"][~inner])
    assert (joined["token_ids"][:, 0] == cls).all()
    for name in ("masked_positions", "masked_labels", "masked_weights", "segment_ids"):
        assert np.array_equal(joined[name], separate[name]), name
    assert np.array_equal(joined["document_ids"], occupied)
    lengths = occupied.sum(axis=1)
    for positions, length in zip(joined["position_ids"], lengths, strict=True):
        assert np.array_equal(positions[:length], np.arange(length))
        assert not positions[length:].any()


def test_a_batch_has_the_shapes_and_types_of_its_spec(sources):
    _, joined = sources
    batch, spec = joined.examples(0, np.arange(3)), joined.spec(3)
    assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
        name: (shape, np.dtype(kind)) for name, (shape, kind) in spec.items()
    }
    assert batch["cls_positions"].shape == (3, 1) and not batch["pair_weights"].any()
    assert joined.padding(2)["pair_weights"].shape == (2, 1)


def test_pairs_cannot_be_joined():
    with pytest.raises(ValueError, match="True with sentence_pairs='sentence_order': pairs cannot"):
        ExampleConfig(0, "sentence_order", join_documents=True)
