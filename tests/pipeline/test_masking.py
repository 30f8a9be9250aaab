"""How many tokens are predicted, which, and what the model sees in their place."""

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
    """Rows of every fill from empty to full, with special tokens scattered among the words."""
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
    kinds, per_position, drawn = np.zeros(3, np.int64), np.zeros(512), np.zeros(VOCAB_SIZE)
    for begin in range(0, len(truth), 2048):
        shown = truth[begin : begin + 2048].copy()
        found = masker.mask(shown, hash_of(1, np.arange(begin, begin + 2048)))
        used = found.weights > 0
        seen = np.take_along_axis(shown, found.positions, axis=1)[used]
        labels = found.labels[used]
        masked, kept = seen == VOCABULARY.mask_id, seen == labels
        kinds += [masked.sum(), (~masked & ~kept).sum(), kept.sum()]
        per_position += np.bincount(found.positions[used], minlength=512)
        drawn += np.bincount(seen[~masked & ~kept], minlength=VOCAB_SIZE)
    total = kinds.sum()
    assert total == 16_384 * 77 > 1_000_000  # floor(0.15 * 512 + 0.5) = 77
    # a random token is the original one in 1 of 4,995 cases
    expected = np.array([0.8, 0.1 * (1 - 1 / 4995), 0.1 + 0.1 / 4995])
    sigma = np.sqrt(expected * (1 - expected) / total)
    assert (np.abs(kinds / total - expected) < 5 * sigma).all()
    assert drawn[:NUM_SPECIAL].sum() == 0
    for counts in (per_position, drawn[NUM_SPECIAL:]):
        degrees = len(counts) - 1
        statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        # positions are drawn without replacement, which only narrows the distribution
        assert statistic < degrees + 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("rate", [0.01, 0.15, 0.4, 1.0])
@pytest.mark.parametrize("length", [8, 128])
def test_every_row_has_the_exact_count_and_unmasking_restores_it(rate, length):
    truth = random_rows(500, length)
    shown = truth.copy()
    config = MaskingConfig(rate=rate)
    found = Masker(config, VOCABULARY).mask(shown, hash_of(1, np.arange(500)))
    maskable = (truth >= NUM_SPECIAL).sum(axis=1)
    expected = np.where(maskable, np.maximum(1, np.floor(rate * maskable + 0.5)), 0)
    np.testing.assert_array_equal(found.weights.sum(axis=1), expected)
    assert found.positions.shape == (500, config.max_predictions(length))

    used = found.weights > 0
    rows = np.nonzero(used)[0]
    positions = found.positions[used]
    assert (truth[rows, positions] >= NUM_SPECIAL).all()
    assert len(np.unique(rows * length + positions)) == len(rows)
    np.testing.assert_array_equal(found.labels[used], truth[rows, positions])
    both = used[:, 1:] & used[:, :-1]
    assert (np.diff(found.positions, axis=1)[both] > 0).all()
    assert (found.positions[~used] == 0).all() and (found.labels[~used] == 0).all()
    assert (np.diff(found.weights, axis=1) <= 0).all()  # the used come first
    shown[rows, positions] = found.labels[used]
    np.testing.assert_array_equal(shown, truth)


def test_a_row_depends_on_its_key_alone():
    truth, keys = random_rows(64, 128), hash_of(3, np.arange(64))
    masker = Masker(MaskingConfig(), VOCABULARY)
    together = truth.copy()
    all_found = masker.mask(together, keys)
    order = np.random.default_rng(1).permutation(64)[:10]
    alone = truth[order]
    found = masker.mask(alone, keys[order])
    np.testing.assert_array_equal(alone, together[order])
    np.testing.assert_array_equal(found.positions, all_found.positions[order])
    other = truth.copy()
    assert (masker.mask(other, hash_of(4, np.arange(64))).positions != all_found.positions).any()


def test_random_tokens_come_from_the_ids_allowed():
    allowed = np.array([17, 4000, 4999], np.int32)
    vocabulary = Vocabulary(VOCAB_SIZE, 0, 2, 3, 4, (0, 1, 2, 3, 4), allowed)
    truth = np.full((400, 128), 999, np.int32)
    found = Masker(MaskingConfig(mask_fraction=0, random_fraction=1), vocabulary).mask(
        truth, hash_of(np.arange(400))
    )
    seen = np.take_along_axis(truth, found.positions, axis=1)[found.weights > 0]
    values, counts = np.unique(seen, return_counts=True)
    assert values.tolist() == allowed.tolist()
    assert counts.min() > 0.9 * counts.mean()


def test_fractions_of_nought_and_one_are_exact():
    truth = random_rows(100, 128)
    kept = truth.copy()
    Masker(MaskingConfig(mask_fraction=0, random_fraction=0), VOCABULARY).mask(
        kept, hash_of(np.arange(100))
    )
    np.testing.assert_array_equal(kept, truth)
    everything = truth.copy()
    Masker(MaskingConfig(rate=1, mask_fraction=1, random_fraction=0), VOCABULARY).mask(
        everything, hash_of(np.arange(100))
    )
    expected = np.where(truth >= NUM_SPECIAL, VOCABULARY.mask_id, truth)
    np.testing.assert_array_equal(everything, expected)


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
def test_shares_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError):
        MaskingConfig(**arguments)


def test_a_vocabulary_with_ids_outside_it_or_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="outside 0..9"):
        Vocabulary(10, 0, 2, 3, 4, (0, 1, 2, 3, 4), np.array([10], np.int32))
    with pytest.raises(ValueError, match="no entry"):
        Vocabulary(10, 0, 2, 3, 4, (0, 1, 2, 3, 4), np.array([], np.int32))
