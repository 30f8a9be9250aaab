import hashlib
import time

import numpy as np
import pytest
from datasketch import MinHash as Datasketch
from datasketch import MinHashLSH

from bert_jax.filtering.minhash import MinHash, similarities

from .edited import edited, random_text, shingle_set


def datasketch_signature(text: str, num_permutations: int) -> Datasketch:
    signature = Datasketch(num_perm=num_permutations)
    signature.update_batch([shingle.encode() for shingle in shingle_set(text)])
    return signature


def jaccard(first: set[str], second: set[str]) -> float:
    return len(first & second) / len(first | second)


@pytest.mark.parametrize(
    ("threshold", "permutations", "bands", "rows"),
    [(0.3, 336, 168, 2), (0.5, 400, 100, 4), (0.8, 256, 32, 8), (0.9, 144, 13, 11)],
)
def test_bands_follow_from_the_threshold(
    threshold: float, permutations: int, bands: int, rows: int
) -> None:
    settings = MinHash(threshold)
    assert (settings.num_permutations, settings.bands, settings.rows) == (permutations, bands, rows)
    assert bands * rows <= permutations
    assert settings.candidate_probability(threshold) >= 0.99


def test_estimates_are_as_accurate_as_those_of_datasketch() -> None:
    """Check that both have the errors that are expected with independent permutations."""
    random = np.random.default_rng(0)
    settings = MinHash(0.8)
    errors: dict[str, list[float]] = {"here": [], "datasketch": []}
    for number in range(60):
        text = random_text(random, 200)
        texts = [text, edited(text, (0.01, 0.03, 0.06)[number % 3], random)]
        exact = jaccard(*map(shingle_set, texts))
        deviation = (exact * (1 - exact) / settings.num_permutations) ** 0.5
        ours = settings.sign(texts)
        theirs = [datasketch_signature(each, settings.num_permutations) for each in texts]
        errors["here"].append((similarities(ours[:, :1].T, ours[:, 1:].T)[0] - exact) / deviation)
        errors["datasketch"].append((theirs[0].jaccard(theirs[1]) - exact) / deviation)
    # The 60 scaled errors should have a standard normal distribution.
    for scaled in errors.values():
        assert abs(np.mean(scaled)) < 3 / 60**0.5
        assert 0.5 < np.mean(np.square(scaled)) < 1.6


def test_candidates_equal_those_of_datasketch() -> None:
    random = np.random.default_rng(1)
    originals = [random_text(random, 150) for _ in range(15)]
    texts = [*originals, *(edited(text, 0.01, random) for text in originals)]
    settings = MinHash(0.8)
    index = MinHashLSH(num_perm=256, params=(settings.bands, settings.rows))
    signatures = [datasketch_signature(text, 256) for text in texts]
    for number, signature in enumerate(signatures):
        index.insert(number, signature)
    theirs = {
        frozenset((number, int(other)))
        for number, signature in enumerate(signatures)
        for other in index.query(signature)
        if number != other
    }
    bands = settings.sign(texts)[: settings.bands * settings.rows].reshape(
        settings.bands, settings.rows, len(texts)
    )
    agree = np.any(np.all(bands[..., :, None] == bands[..., None, :], axis=1), axis=0)
    ours = {frozenset((int(i), int(j))) for i, j in np.argwhere(agree) if i != j}
    assert ours == theirs == {frozenset((number, number + 15)) for number in range(15)}


def test_a_signature_does_not_depend_on_the_other_texts() -> None:
    random = np.random.default_rng(2)
    texts = [random_text(random, length) for length in (3, 40_000, 1, 500, 9_000)]
    texts.insert(2, "…")
    together = MinHash(0.9).sign(texts)
    for number, text in enumerate(texts):
        np.testing.assert_array_equal(MinHash(0.9).sign([text])[:, 0], together[:, number])
    assert np.all(together[:, 2] == 0xFFFF)


def test_signatures_are_the_same_on_every_machine() -> None:
    random = np.random.default_rng(4)
    texts = [random_text(random, length) for length in (700, 3, 0, 9_000, 20, 1)]
    digest = hashlib.sha256(MinHash(0.8).sign(texts).tobytes()).hexdigest()
    assert digest == "c50b0edc6d5c7dff0361615586657e465743421b03b1913dd36da112ecbca7c9"


def test_signing_is_at_least_five_times_as_fast_as_datasketch() -> None:
    """Compare processor time, since other processes may be running."""
    random = np.random.default_rng(3)
    texts = [random_text(random, 1000) for _ in range(10)]
    settings = MinHash(0.8)
    settings.sign(texts[:1])
    ratios = []
    for _ in range(3):
        start = time.process_time()
        for text in texts:
            datasketch_signature(text, settings.num_permutations)
        middle = time.process_time()
        settings.sign(texts)
        ratios.append((middle - start) / (time.process_time() - middle))
    assert max(ratios) > 5
