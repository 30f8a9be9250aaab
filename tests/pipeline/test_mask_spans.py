"""Test that masked words, n-grams and spans are distributed as in the papers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

from bert_jax.hashing import Purpose, hash_of
from bert_jax.pipeline.mask_spans import Choice, choose_spans, choose_words, words_of
from bert_jax.pipeline.masking import Masker, MaskingConfig
from bert_jax.tokenizers.special_tokens import Vocabulary

VOCAB_SIZE, NUM_SPECIAL = 5000, 5
CONTINUING = np.arange(3000, VOCAB_SIZE, dtype=np.int32)
VOCABULARY = Vocabulary(
    VOCAB_SIZE,
    0,
    2,
    3,
    4,
    tuple(range(NUM_SPECIAL)),
    np.arange(NUM_SPECIAL, VOCAB_SIZE, dtype=np.int32),
    CONTINUING,
)
UNITS = ("word", "ngram", "span")


def random_rows(num_rows: int, length: int, seed: int = 0, special: float = 0.02) -> np.ndarray:
    """Return rows of all possible lengths, in which a third of the tokens continue a word."""
    rng = np.random.default_rng(seed)
    kind = rng.random((num_rows, length))
    token_ids = rng.integers(NUM_SPECIAL, 3000, kind.shape)
    token_ids = np.where(kind < 1 / 3, rng.integers(3000, VOCAB_SIZE, kind.shape), token_ids)
    token_ids = np.where(rng.random(kind.shape) < special, 3, token_ids)
    fill = rng.integers(0, length + 1, num_rows)
    fill[:2] = 0, length
    return np.where(np.arange(length) < fill[:, None], token_ids, 0).astype(np.int32)


def naive_words(row: np.ndarray) -> list[tuple[int, int]]:
    """Return the start and end of each word in a row."""
    words: list[list[int]] = []
    for position, token in enumerate(row.tolist()):
        if token < NUM_SPECIAL:
            continue
        if token >= 3000 and words and words[-1][1] == position:
            words[-1][1] = position + 1
        else:
            words.append([position, position + 1])
    return [(begin, end) for begin, end in words]


def words_of_rows(token_ids: np.ndarray):
    return words_of(token_ids >= NUM_SPECIAL, token_ids >= 3000)


def plain_words(num_rows: int, length: int):
    """Return the words in rows where every word is a single token."""
    return words_of_rows(np.full((num_rows, length), 7, np.int32))


def test_words_equal_those_of_a_plain_loop():
    token_ids = random_rows(300, 40, special=0.1)
    words = words_of_rows(token_ids)
    for row, *arrays in zip(token_ids, words.begin, words.length, words.follows, strict=True):
        naive = naive_words(row)
        begin, length, follows = (array[: len(naive)].tolist() for array in arrays)
        assert list(zip(begin, np.add(begin, length).tolist(), strict=True)) == naive
        ends = [-1, *(end for _, end in naive)]
        assert follows == [start == end for (start, _), end in zip(naive, ends, strict=False)]
        assert not arrays[1][len(naive) :].any()


def test_words_are_chosen_in_random_order_unless_too_long():
    """Compare with BERT's release, reimplemented as a plain loop."""
    token_ids, keys = random_rows(400, 60), hash_of(5, np.arange(400))
    budget = np.random.default_rng(0).integers(0, 30, 400)
    choice = choose_words(words_of_rows(token_ids), budget, keys)
    for number, row in enumerate(token_ids):
        words = naive_words(row)
        bits = hash_of(Purpose.MASK_CHOICE, keys[number], np.arange(len(words)))
        remaining, expected = int(budget[number]), []
        for index in np.argsort(bits, kind="stable").tolist():
            begin, end = words[index]
            if end - begin <= remaining:
                remaining -= end - begin
                expected.append((begin, end - begin))
        in_row = choice.row == number
        runs = zip(choice.begin[in_row].tolist(), choice.length[in_row].tolist(), strict=True)
        assert sorted(runs) == sorted(expected)


def first_runs(choice: Choice, num_rows: int, count: int) -> Choice:
    """Return the first `count` runs in each row, in the order in which they were drawn."""
    order = np.argsort(choice.row, kind="stable")
    firsts = np.searchsorted(choice.row[order], np.arange(num_rows))
    chosen = order[(firsts[:, None] + np.arange(count)).ravel()]
    return Choice(choice.row[chosen], choice.begin[chosen], choice.length[chosen])


def draw_runs(unit: str, num_rows: int, length: int, budget: int, seed: int) -> Choice:
    shares = MaskingConfig(unit=unit).span_shares()
    keys = hash_of(seed, np.arange(num_rows))
    budgets = np.full(num_rows, budget)
    return choose_spans(plain_words(num_rows, length), budgets, keys, shares, cut=unit == "span")


PAPERS = {
    # In Lan et al. 2020, section 4.1, p(n) is (1 / n) divided by the sum of 1 / k for k up to N,
    # with N = 3.
    "ngram": [6 / 11, 3 / 11, 2 / 11],
    # In Joshi et al. 2020, section 3.1, the distribution is Geo(0.2) with at most 10 words; its
    # mean is given as 3.8.
    "span": [0.2 * 0.8**n / (1 - 0.8**10) for n in range(10)],
}


@pytest.mark.slow
@pytest.mark.parametrize("unit", PAPERS)
def test_a_million_lengths_have_the_published_distribution(unit):
    # The budget allows at least this many runs per row: 8 runs of 3 words, or 6 runs of 10 words.
    per_row, budget = {"ngram": (8, 24), "span": (6, 60)}[unit]
    counts = np.zeros(len(PAPERS[unit]), np.int64)
    for part in range(17):
        size = 10_000 if unit == "span" else 8_000
        choice = first_runs(draw_runs(unit, size, 100, budget, part), size, per_row)
        counts += np.bincount(choice.length - 1, minlength=len(counts))
    assert counts.sum() > 1_000_000
    assert chisquare(counts, np.array(PAPERS[unit]) * counts.sum()).pvalue > 1e-4
    if unit == "span":
        mean = (counts * np.arange(1, 11)).sum() / counts.sum()
        assert mean == pytest.approx(3.8, abs=0.01)


@pytest.mark.parametrize("unit", PAPERS)
def test_all_positions_are_equally_likely(unit):
    size, longest = 100_000, {"ngram": 3, "span": 10}[unit]
    parts = [first_runs(draw_runs(unit, size, 24, longest, part), size, 1) for part in range(10)]
    begin = np.concatenate([part.begin for part in parts])
    length = np.concatenate([part.length for part in parts])
    assert len(begin) == 1_000_000
    for words in (1, 2, 3):
        begins = begin[length == words]
        counts = np.bincount(begins, minlength=24 - words + 1)
        assert len(counts) == 24 - words + 1 and chisquare(counts).pvalue > 1e-4


def test_words_are_chosen_equally_often_in_a_million_draws():
    """Choose 8 words in each row, which has 32 words of two tokens each."""
    num_rows, size, num_chosen = 130_000, 32, 8
    truth = np.full((num_rows, 2 * size), 7, np.int32)
    truth[:, 1::2] = 3000
    choice = choose_words(
        words_of_rows(truth), np.full(num_rows, 2 * num_chosen), hash_of(5, np.arange(num_rows))
    )
    assert len(choice.row) == num_rows * num_chosen > 1_000_000 and (choice.length == 2).all()
    counts, share = np.bincount(choice.begin // 2, minlength=size), num_chosen / size
    # Counts vary less when drawing without replacement than with independent draws.
    spread = num_rows * share * (1 - share) * size / (size - 1)
    statistic = ((counts - num_rows * share) ** 2).sum() / spread
    assert chi2.sf(statistic, size - 1) > 1e-4


@pytest.mark.parametrize("unit", UNITS)
def test_a_million_replacements_have_the_published_distribution(unit):
    """Test that 80% of the chosen tokens or spans become [MASK], and 10% become random tokens."""
    counts, config = np.zeros(3, np.int64), MaskingConfig(rate=0.5, unit=unit)
    for part in range(15 if unit == "span" else 3):
        num_rows, length = 6_000, 128
        truth = np.full((num_rows, length), 7, np.int32)
        truth[:, 2::3] = 3000
        masked, keys = truth.copy(), hash_of(part, np.arange(num_rows))
        predictions = Masker(config, VOCABULARY).mask(masked, keys)
        rows, _ = np.nonzero(predictions.weights)
        positions = predictions.positions[predictions.weights > 0]
        if unit == "span":
            budget = np.full(num_rows, length // 2)
            choice = choose_spans(
                words_of_rows(truth), budget, keys, config.span_shares(), cut=True
            )
            rows, positions = choice.row, choice.begin
        replacements, originals = masked[rows, positions], truth[rows, positions]
        unchanged = replacements == originals
        kind = np.where(replacements == VOCABULARY.mask_id, 0, np.where(unchanged, 2, 1))
        counts += np.bincount(kind, minlength=3)
    assert counts.sum() > 1_000_000
    # This is the fraction of random tokens that equal the original.
    same = 0.1 / len(VOCABULARY.random_ids)
    expected = counts.sum() * np.array([0.8, 0.1 - same, 0.1 + same])
    assert chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rate", [0.02, 0.15, 0.5, 1.0])
def test_runs_are_complete_words_and_labels_restore_the_row(unit, rate):
    truth = random_rows(300, 96)
    masked = truth.copy()
    config = MaskingConfig(rate=rate, unit=unit)
    predictions = Masker(config, VOCABULARY).mask(masked, hash_of(1, np.arange(300)))
    used = predictions.weights > 0
    rows, positions = np.nonzero(used)[0], predictions.positions[used]
    num_maskable = (truth >= NUM_SPECIAL).sum(axis=1)
    budget = np.where(num_maskable, np.maximum(1, np.floor(rate * num_maskable + 0.5)), 0)
    count = used.sum(axis=1)
    assert (count <= budget).all()
    assert predictions.positions.shape == (300, config.max_predictions(96))
    assert (truth[rows, positions] >= NUM_SPECIAL).all()
    assert len(np.unique(rows * 96 + positions)) == len(rows)
    assert (np.diff(predictions.positions, axis=1)[used[:, 1:] & used[:, :-1]] > 0).all()
    np.testing.assert_array_equal(predictions.labels[used], truth[rows, positions])
    chosen = np.zeros(truth.shape, bool)
    chosen[rows, positions] = True
    shares = np.array(
        [chosen[row, b:e].mean() for row in range(300) for b, e in naive_words(truth[row])]
    )
    cut = np.count_nonzero((shares > 0) & (shares < 1))
    if unit == "span":
        np.testing.assert_array_equal(count, budget)
        assert cut <= 300  # At most the last word of each row is cut off.
    else:
        assert cut == 0
        # The unused budget is smaller than the shortest word that was not chosen.
        assert count.sum() > 0.9 * budget.sum()
    masked[rows, positions] = predictions.labels[used]
    np.testing.assert_array_equal(masked, truth)


@pytest.mark.parametrize("unit", UNITS)
def test_a_row_depends_only_on_its_key_and_tokens(unit):
    truth, keys = random_rows(64, 128), hash_of(3, np.arange(64))
    masker = Masker(MaskingConfig(unit=unit), VOCABULARY)
    all_masked = truth.copy()
    all_predictions = masker.mask(all_masked, keys)
    order = np.random.default_rng(1).permutation(64)[:10]
    some_masked = truth[order]
    predictions = masker.mask(some_masked, keys[order])
    np.testing.assert_array_equal(some_masked, all_masked[order])
    np.testing.assert_array_equal(predictions.positions, all_predictions.positions[order])
    other = masker.mask(truth.copy(), hash_of(4, np.arange(64)))
    assert (other.positions != all_predictions.positions).any()


@pytest.mark.parametrize("unit", ["ngram", "span"])
def test_tokens_of_a_span_are_replaced_alike_and_tokens_of_an_ngram_independently(unit):
    num_rows, length = 4000, 128
    truth = np.full((num_rows, length), 7, np.int32)
    masked, keys = truth.copy(), hash_of(2, np.arange(num_rows))
    config = MaskingConfig(unit=unit)
    Masker(config, VOCABULARY).mask(masked, keys)
    budget = np.full(num_rows, round(0.15 * length))
    words = plain_words(num_rows, length)
    cut = unit == "span"
    choice = choose_spans(words, budget, keys, config.span_shares(), cut=cut)
    kind = np.where(masked == VOCABULARY.mask_id, 0, np.where(masked == 7, 2, 1))
    several = choice.length >= 2
    first = kind[choice.row[several], choice.begin[several]]
    second = kind[choice.row[several], choice.begin[several] + 1]
    if unit == "span":
        # A random token equals the original in 1 of 4,995 cases.
        assert np.mean(first != second) < 1e-3
    else:
        assert np.mean(first != second) == pytest.approx(1 - 0.8**2 - 2 * 0.1**2, abs=0.01)
    shares = np.bincount(kind[choice.row, choice.begin], minlength=3) / len(choice.row)
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": "words"}, "unit='words': expected one of 'token', 'word', 'ngram', 'span'"),
        ({"max_ngram": 0}, "masking.max_ngram=0: expected at least 1"),
        ({"max_span": 0}, "masking.max_span=0: expected at least 1"),
        ({"span_probability": 1.0}, "span_probability=1.0: expected a number between 0 and 1"),
        ({"num_maskings": -1}, r"num_maskings=-1: expected 0 \(dynamic masking\) or more"),
        ({"final_rate": 1.5}, "masking.final_rate=1.5: must be above 0 and at most 1"),
        (
            {"max_ngram": 7},
            "ngram=7: only used with unit='ngram', but unit is 'token'. Set it to 3",
        ),
        ({"unit": "ngram", "max_span": 4}, "max_span=4: only used with unit='span', but unit is"),
        ({"num_maskings": 2, "final_rate": 0.2}, "final_rate=0.2.. Set one of the two to 0"),
        ({"later_rates": (0.1, 0.0)}, "masking.later_rates=.0.1, 0.0.: each rate must be above 0"),
        ({"later_rates": (0.1,), "final_rate": 0.2}, "final_rate=0.2 both change the rate"),
        ({"later_rates": (0.1,), "num_maskings": 2}, "num_maskings=2: masks cannot be reused"),
    ],
)
def test_contradictory_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MaskingConfig(**arguments)
