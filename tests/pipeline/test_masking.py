"""Test which tokens are predicted and what replaces them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bert_jax.corpus.synthetic import NUM_SPECIAL, synthetic_vocabulary
from bert_jax.hashing import hash_of
from bert_jax.pipeline.masking import Masker, MaskingConfig
from bert_jax.tokenizers.special_tokens import Vocabulary

VOCAB_SIZE = 5000
VOCABULARY = synthetic_vocabulary(VOCAB_SIZE)


def random_rows(num_rows: int, length: int, seed: int = 0) -> np.ndarray:
    """Return rows of every length from empty to full, with some special tokens among the words."""
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(NUM_SPECIAL, VOCAB_SIZE, (num_rows, length))
    special = rng.integers(1, NUM_SPECIAL, (num_rows, length))
    token_ids = np.where(rng.random((num_rows, length)) < 0.1, special, token_ids)
    fill = rng.integers(0, length + 1, num_rows)
    fill[:2] = 0, length
    return np.where(np.arange(length) < fill[:, None], token_ids, 0).astype(np.int32)


def test_a_million_predictions_have_the_published_proportions():
    truth = np.random.default_rng(0).integers(NUM_SPECIAL, VOCAB_SIZE, (16_384, 512))
    truth = truth.astype(np.int32)
    masker = Masker(MaskingConfig(), VOCABULARY)
    kinds, per_position, per_token = np.zeros(3, np.int64), np.zeros(512), np.zeros(VOCAB_SIZE)
    for begin in range(0, len(truth), 2048):
        token_ids = truth[begin : begin + 2048].copy()
        predictions = masker.mask(token_ids, hash_of(1, np.arange(begin, begin + 2048)))
        used = predictions.weights > 0
        replacements = np.take_along_axis(token_ids, predictions.positions, axis=1)[used]
        labels = predictions.labels[used]
        masked, kept = replacements == VOCABULARY.mask_id, replacements == labels
        kinds += [masked.sum(), (~masked & ~kept).sum(), kept.sum()]
        per_position += np.bincount(predictions.positions[used], minlength=512)
        per_token += np.bincount(replacements[~masked & ~kept], minlength=VOCAB_SIZE)
    total = kinds.sum()
    # Each row has floor(0.15 * 512 + 0.5) = 77 predictions.
    assert total == 16_384 * 77 > 1_000_000
    # A random token equals the original in 1 of 4,995 cases.
    expected = np.array([0.8, 0.1 * (1 - 1 / 4995), 0.1 + 0.1 / 4995])
    sigma = np.sqrt(expected * (1 - expected) / total)
    assert (np.abs(kinds / total - expected) < 5 * sigma).all()
    assert per_token[:NUM_SPECIAL].sum() == 0
    for counts in (per_position, per_token[NUM_SPECIAL:]):
        degrees = len(counts) - 1
        statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        # Positions are drawn without replacement, which only makes the distribution narrower.
        assert statistic < degrees + 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.4, 1.0])
@pytest.mark.parametrize("length", [8, 128])
def test_rows_have_the_exact_number_of_predictions_and_labels_restore_them(rate, length):
    truth = random_rows(500, length)
    masked = truth.copy()
    config = MaskingConfig(rate=rate)
    predictions = Masker(config, VOCABULARY).mask(masked, hash_of(1, np.arange(500)))
    maskable = (truth >= NUM_SPECIAL).sum(axis=1)
    expected = np.where(maskable, np.maximum(1, np.floor(rate * maskable + 0.5)), 0)
    np.testing.assert_array_equal(predictions.weights.sum(axis=1), expected)
    assert predictions.positions.shape == (500, config.max_predictions(length))

    used = predictions.weights > 0
    rows = np.nonzero(used)[0]
    positions = predictions.positions[used]
    assert (truth[rows, positions] >= NUM_SPECIAL).all()
    assert len(np.unique(rows * length + positions)) == len(rows)
    np.testing.assert_array_equal(predictions.labels[used], truth[rows, positions])
    both = used[:, 1:] & used[:, :-1]
    assert (np.diff(predictions.positions, axis=1)[both] > 0).all()
    assert (predictions.positions[~used] == 0).all() and (predictions.labels[~used] == 0).all()
    assert (np.diff(predictions.weights, axis=1) <= 0).all()  # The used entries come first.
    masked[rows, positions] = predictions.labels[used]
    np.testing.assert_array_equal(masked, truth)


def test_a_row_depends_only_on_its_key():
    truth, keys = random_rows(64, 128), hash_of(3, np.arange(64))
    masker = Masker(MaskingConfig(), VOCABULARY)
    all_masked = truth.copy()
    all_predictions = masker.mask(all_masked, keys)
    order = np.random.default_rng(1).permutation(64)[:10]
    some_masked = truth[order]
    predictions = masker.mask(some_masked, keys[order])
    np.testing.assert_array_equal(some_masked, all_masked[order])
    np.testing.assert_array_equal(predictions.positions, all_predictions.positions[order])
    other = masker.mask(truth.copy(), hash_of(4, np.arange(64)))
    assert (other.positions != all_predictions.positions).any()


def test_random_tokens_come_from_the_allowed_ids():
    allowed = np.array([17, 4000, 4999], np.int32)
    vocabulary = Vocabulary(VOCAB_SIZE, 0, 2, 3, 4, (0, 1, 2, 3, 4), allowed)
    truth = np.full((400, 128), 999, np.int32)
    masker = Masker(MaskingConfig(mask_fraction=0, random_fraction=1), vocabulary)
    predictions = masker.mask(truth, hash_of(np.arange(400)))
    replacements = np.take_along_axis(truth, predictions.positions, axis=1)
    values, counts = np.unique(replacements[predictions.weights > 0], return_counts=True)
    assert values.tolist() == allowed.tolist()
    assert counts.min() > 0.9 * counts.mean()


def test_fractions_of_zero_and_one_are_exact():
    truth = random_rows(100, 128)
    unchanged = truth.copy()
    Masker(MaskingConfig(mask_fraction=0, random_fraction=0), VOCABULARY).mask(
        unchanged, hash_of(np.arange(100))
    )
    np.testing.assert_array_equal(unchanged, truth)
    all_masked = truth.copy()
    Masker(MaskingConfig(rate=1, mask_fraction=1, random_fraction=0), VOCABULARY).mask(
        all_masked, hash_of(np.arange(100))
    )
    expected = np.where(truth >= NUM_SPECIAL, VOCABULARY.mask_id, truth)
    np.testing.assert_array_equal(all_masked, expected)


@pytest.mark.parametrize(
    "arguments",
    [
        {"rate": 0},
        {"rate": 1.1},
        {"mask_fraction": -0.1},
        {"random_fraction": -0.1},
        {"mask_fraction": 0.9, "random_fraction": 0.2},
        {"rate": math.nan},
        {"final_rate": math.nan},
        {"mask_fraction": math.nan},
        {"random_fraction": math.nan},
    ],
)
def test_shares_out_of_range_are_refused(arguments):
    with pytest.raises(ValueError):
        MaskingConfig(**arguments)


def test_a_vocabulary_with_ids_out_of_range_or_no_random_ids_is_refused():
    with pytest.raises(ValueError, match="token ids range from 0 to 10. Expected 0 to 9"):
        Vocabulary(10, 0, 2, 3, 4, (0, 1, 2, 3, 4), np.array([10], np.int32))
    with pytest.raises(ValueError, match="no tokens for random replacements"):
        Vocabulary(10, 0, 2, 3, 4, (0, 1, 2, 3, 4), np.array([], np.int32))
