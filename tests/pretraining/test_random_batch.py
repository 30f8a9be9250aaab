"""Test the arrays in a random batch."""

import numpy as np
import pytest

from bert_jax.pretraining.step_timing import random_batch

SIZES = {"vocab_size": 1000, "predictions": 6}


def test_joined_documents_count_as_one() -> None:
    assert random_batch(40, 1, rows=4, joined=True, **SIZES)["cls_positions"].shape == (4, 1)
    with pytest.raises(ValueError, match="--documents-per-row=3 with join_documents=True"):
        random_batch(40, 3, rows=4, joined=True, **SIZES)


def test_more_documents_than_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="--documents-per-row=1000000000000: a row of 40 tokens"):
        random_batch(40, 10**12, rows=4, **SIZES)


@pytest.mark.parametrize("documents_per_row", [1, 3])
def test_the_arrays_of_a_row_are_consistent(documents_per_row: int) -> None:
    batch = random_batch(40, documents_per_row, rows=4, **SIZES)
    masked, labels = batch["masked_positions"], batch["masked_labels"]
    assert masked.shape == labels.shape == (4, 6)
    assert (np.diff(masked, axis=1) > 0).all()
    np.testing.assert_array_equal(labels, np.take_along_axis(batch["token_ids"], masked, axis=1))
    for row in range(4):
        documents, positions = batch["document_ids"][row], batch["position_ids"][row]
        assert documents.min() == 1 and documents.max() == documents_per_row
        np.testing.assert_array_equal(np.flatnonzero(positions == 0), batch["cls_positions"][row])
        same = documents[1:] == documents[:-1]
        np.testing.assert_array_equal(np.diff(positions)[same], 1)
        for document in range(1, documents_per_row + 1):
            assert set(batch["segment_ids"][row, documents == document]) == {0, 1}
