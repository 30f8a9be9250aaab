"""Whole words, n-grams and spans: which are drawn, beside their papers' distributions."""

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
    """Rows of every fill; a third of the tokens goes on with the word before."""
    rng = np.random.default_rng(seed)
    kind = rng.random((num_rows, length))
    token_ids = rng.integers(NUM_SPECIAL, 3000, kind.shape)
    token_ids = np.where(kind < 1 / 3, rng.integers(3000, VOCAB_SIZE, kind.shape), token_ids)
    token_ids = np.where(rng.random(kind.shape) < special, 3, token_ids)
    fill = rng.integers(0, length + 1, num_rows)
    fill[:2] = 0, length
    return np.where(np.arange(length) < fill[:, None], token_ids, 0).astype(np.int32)


def naive_words(row: np.ndarray) -> list[tuple[int, int]]:
    """(begin, end) of the words of a row."""
    found: list[list[int]] = []
    for at, token in enumerate(row.tolist()):
        if token < NUM_SPECIAL:
            continue
        if token >= 3000 and found and found[-1][1] == at:
            found[-1][1] = at + 1
        else:
            found.append([at, at + 1])
    return [(begin, end) for begin, end in found]


def of_rows(token_ids: np.ndarray):
    return words_of(token_ids >= NUM_SPECIAL, token_ids >= 3000)


def plain_words(num_rows: int, length: int):
    """Rows of words of one token each."""
    return of_rows(np.full((num_rows, length), 7, np.int32))


def test_words_are_those_of_a_plain_loop():
    token_ids = random_rows(300, 40, special=0.1)
    words = of_rows(token_ids)
    for row, *found in zip(token_ids, words.begin, words.length, words.follows, strict=True):
        naive = naive_words(row)
        begin, length, follows = (each[: len(naive)].tolist() for each in found)
        assert list(zip(begin, np.add(begin, length).tolist(), strict=True)) == naive
        ends = [-1, *(end for _, end in naive)]
        assert follows == [start == end for (start, _), end in zip(naive, ends, strict=False)]
        assert not found[1][len(naive) :].any()


def test_words_are_taken_as_in_the_release_in_random_order_unless_too_long():
    token_ids, keys = random_rows(400, 60), hash_of(5, np.arange(400))
    budget = np.random.default_rng(0).integers(0, 30, 400)
    choice = choose_words(of_rows(token_ids), budget, keys)
    for number, row in enumerate(token_ids):
        words = naive_words(row)
        bits = hash_of(Purpose.MASK_CHOICE, keys[number], np.arange(len(words)))
        left, expected = int(budget[number]), []
        for at in np.argsort(bits, kind="stable").tolist():
            begin, end = words[at]
            if end - begin <= left:
                left -= end - begin
                expected.append((begin, end - begin))
        mine = choice.row == number
        found = zip(choice.begin[mine].tolist(), choice.length[mine].tolist(), strict=True)
        assert sorted(found) == sorted(expected)


def first_runs(choice: Choice, num_rows: int, count: int) -> Choice:
    """The first `count` runs of every row, in the order they were drawn."""
    order = np.argsort(choice.row, kind="stable")
    firsts = np.searchsorted(choice.row[order], np.arange(num_rows))
    chosen = order[(firsts[:, None] + np.arange(count)).ravel()]
    return Choice(choice.row[chosen], choice.begin[chosen], choice.length[chosen])


def drawn(unit: str, num_rows: int, length: int, budget: int, seed: int) -> Choice:
    shares = MaskingConfig(unit=unit).span_shares()
    keys = hash_of(seed, np.arange(num_rows))
    budgets = np.full(num_rows, budget)
    return choose_spans(plain_words(num_rows, length), budgets, keys, shares, cut=unit == "span")


PAPERS = {
    # Lan et al. 2020, section 4.1: p(n) = (1 / n) / sum of 1 / k for k up to N = 3.
    "ngram": [6 / 11, 3 / 11, 2 / 11],
    # Joshi et al. 2020, section 3.1: Geo(0.2), at most 10 words, "mean(l) = 3.8".
    "span": [0.2 * 0.8**n / (1 - 0.8**10) for n in range(10)],
}


@pytest.mark.parametrize("unit", PAPERS)
def test_a_million_lengths_have_the_published_distribution(unit):
    # So many of a row are drawn before its budget can be spent: 8 x 3 and 6 x 10 words.
    of_row, budget = {"ngram": (8, 24), "span": (6, 60)}[unit]
    counts = np.zeros(len(PAPERS[unit]), np.int64)
    for part in range(17):
        size = 10_000 if unit == "span" else 8_000
        choice = first_runs(drawn(unit, size, 100, budget, part), size, of_row)
        counts += np.bincount(choice.length - 1, minlength=len(counts))
    assert counts.sum() > 1_000_000
    assert chisquare(counts, np.array(PAPERS[unit]) * counts.sum()).pvalue > 1e-4
    if unit == "span":
        mean = (counts * np.arange(1, 11)).sum() / counts.sum()
        assert mean == pytest.approx(3.8, abs=0.01)


@pytest.mark.parametrize("unit", PAPERS)
def test_every_place_is_as_likely(unit):
    size, longest = 100_000, {"ngram": 3, "span": 10}[unit]
    parts = [first_runs(drawn(unit, size, 24, longest, part), size, 1) for part in range(10)]
    begin, length = (np.concatenate([getattr(p, n) for p in parts]) for n in ("begin", "length"))
    assert len(begin) == 1_000_000
    for words in (1, 2, 3):
        begins = begin[length == words]
        counts = np.bincount(begins, minlength=24 - words + 1)
        assert len(counts) == 24 - words + 1 and chisquare(counts).pvalue > 1e-4


def test_every_word_is_chosen_as_often_in_a_million_draws():
    """Words of two tokens, 8 of 32 in each row, none of them twice."""
    num_rows, size, taken = 130_000, 32, 8
    truth = np.full((num_rows, 2 * size), 7, np.int32)
    truth[:, 1::2] = 3000
    choice = choose_words(
        of_rows(truth), np.full(num_rows, 2 * taken), hash_of(5, np.arange(num_rows))
    )
    assert len(choice.row) == num_rows * taken > 1_000_000 and (choice.length == 2).all()
    counts, share = np.bincount(choice.begin // 2, minlength=size), taken / size
    # So many without putting any back vary less than independent draws.
    spread = num_rows * share * (1 - share) * size / (size - 1)
    statistic = ((counts - num_rows * share) ** 2).sum() / spread
    assert chi2.sf(statistic, size - 1) > 1e-4


@pytest.mark.parametrize("unit", UNITS)
def test_a_million_are_shown_as_published(unit):
    """80 % as [MASK], 10 % as any token, 10 % as they are; of spans each alike, else each token."""
    counts, config = np.zeros(3, np.int64), MaskingConfig(rate=0.5, unit=unit)
    for part in range(15 if unit == "span" else 3):
        num_rows, length = 6_000, 128
        truth = np.full((num_rows, length), 7, np.int32)
        truth[:, 2::3] = 3000
        shown, keys = truth.copy(), hash_of(part, np.arange(num_rows))
        found = Masker(config, VOCABULARY).mask(shown, keys)
        rows, _ = np.nonzero(found.weights)
        positions = found.positions[found.weights > 0]
        if unit == "span":
            budget = np.full(num_rows, length // 2)
            choice = choose_spans(of_rows(truth), budget, keys, config.span_shares(), cut=True)
            rows, positions = choice.row, choice.begin
        seen, right = shown[rows, positions], truth[rows, positions]
        kind = np.where(seen == VOCABULARY.mask_id, 0, np.where(seen == right, 2, 1))
        counts += np.bincount(kind, minlength=3)
    assert counts.sum() > 1_000_000
    same = 0.1 / len(VOCABULARY.random_ids)  # drawn at random, and the right one
    expected = counts.sum() * np.array([0.8, 0.1 - same, 0.1 + same])
    assert chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("rate", [0.02, 0.15, 0.5, 1.0])
def test_runs_are_whole_words_within_their_row_and_restore_it(unit, rate):
    truth = random_rows(300, 96)
    shown = truth.copy()
    config = MaskingConfig(rate=rate, unit=unit)
    found = Masker(config, VOCABULARY).mask(shown, hash_of(1, np.arange(300)))
    used = found.weights > 0
    rows, positions = np.nonzero(used)[0], found.positions[used]
    wanted = (truth >= NUM_SPECIAL).sum(axis=1)
    wanted = np.where(wanted, np.maximum(1, np.floor(rate * wanted + 0.5)), 0)
    got = used.sum(axis=1)
    assert (got <= wanted).all()
    assert found.positions.shape == (300, config.max_predictions(96))
    assert (truth[rows, positions] >= NUM_SPECIAL).all()
    assert len(np.unique(rows * 96 + positions)) == len(rows)
    assert (np.diff(found.positions, axis=1)[used[:, 1:] & used[:, :-1]] > 0).all()
    np.testing.assert_array_equal(found.labels[used], truth[rows, positions])
    chosen = np.zeros(truth.shape, bool)
    chosen[rows, positions] = True
    shares = np.array(
        [chosen[row, b:e].mean() for row in range(300) for b, e in naive_words(truth[row])]
    )
    cut = np.count_nonzero((shares > 0) & (shares < 1))
    if unit == "span":
        np.testing.assert_array_equal(got, wanted)
        assert cut <= 300  # at most the last word of each row
    else:
        assert cut == 0
        # What is not used is less than the shortest word that was left out.
        assert got.sum() > 0.9 * wanted.sum()
    shown[rows, positions] = found.labels[used]
    np.testing.assert_array_equal(shown, truth)


@pytest.mark.parametrize("unit", UNITS)
def test_a_row_depends_on_its_key_and_tokens_alone(unit):
    truth, keys = random_rows(64, 128), hash_of(3, np.arange(64))
    masker = Masker(MaskingConfig(unit=unit), VOCABULARY)
    together = truth.copy()
    all_found = masker.mask(together, keys)
    order = np.random.default_rng(1).permutation(64)[:10]
    alone = truth[order]
    found = masker.mask(alone, keys[order])
    np.testing.assert_array_equal(alone, together[order])
    np.testing.assert_array_equal(found.positions, all_found.positions[order])
    other = masker.mask(truth.copy(), hash_of(4, np.arange(64)))
    assert (other.positions != all_found.positions).any()


@pytest.mark.parametrize("unit", ["ngram", "span"])
def test_of_a_span_all_is_shown_alike_and_of_an_ngram_each_token_for_itself(unit):
    num_rows, length = 4000, 128
    truth = np.full((num_rows, length), 7, np.int32)
    shown, keys = truth.copy(), hash_of(2, np.arange(num_rows))
    config = MaskingConfig(unit=unit)
    Masker(config, VOCABULARY).mask(shown, keys)
    budget = np.full(num_rows, round(0.15 * length))
    words = plain_words(num_rows, length)
    cut = unit == "span"
    choice = choose_spans(words, budget, keys, config.span_shares(), cut=cut)
    kind = np.where(shown == VOCABULARY.mask_id, 0, np.where(shown == 7, 2, 1))
    several = choice.length >= 2
    first = kind[choice.row[several], choice.begin[several]]
    second = kind[choice.row[several], choice.begin[several] + 1]
    if unit == "span":
        # A random token is the true one in 1 of 4,995 cases.
        assert np.mean(first != second) < 1e-3
    else:
        assert np.mean(first != second) == pytest.approx(1 - 0.8**2 - 2 * 0.1**2, abs=0.01)
    shares = np.bincount(kind[choice.row, choice.begin], minlength=3) / len(choice.row)
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unit": "words"}, "expected one of 'token', 'word', 'ngram', 'span'"),
        ({"max_ngram": 0}, "must be 1 or more words"),
        ({"max_span": 0}, "must be 1 or more words"),
        ({"span_probability": 1.0}, "expected within 0..1"),
        ({"num_maskings": -1}, r"expected 0 \(dynamic\) or more"),
        ({"final_rate": 1.5}, "masking final_rate is 1.5"),
        ({"max_ngram": 7}, "max_ngram=7 is of unit='ngram', the unit is 'token': leave it at 3"),
        ({"unit": "ngram", "max_span": 4}, "max_span=4 is of unit='span', the unit is 'ngram'"),
        ({"num_maskings": 2, "final_rate": 0.2}, "never comes again: set one to 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MaskingConfig(**arguments)
