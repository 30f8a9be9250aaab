from pathlib import Path

import numpy as np
import pytest

from bert_jax.filtering import exact_similarity
from bert_jax.filtering.clusters import Clusters
from bert_jax.filtering.exact_similarity import ShingleFiles, pack_shingles
from bert_jax.filtering.minhash import MinHash
from bert_jax.filtering.near_duplicates import SignatureFiles, find_near_duplicates
from bert_jax.filtering.options import FilterOptions
from bert_jax.filtering.words import all_shingles

from .edited import edited, random_text, shingle_set

SETTINGS = MinHash(0.8)


@pytest.fixture
def texts() -> list[str]:
    """Return texts and edited copies of them, most with a similarity between 0.7 and 0.9."""
    random = np.random.default_rng(0)
    originals = [random_text(random, 300) for _ in range(60)]
    return [*originals, *(edited(text, 0.023, random) for text in originals), "…", "a b c", "a b c"]


def write(texts: list[str], folder: Path, sizes: list[int]) -> tuple[SignatureFiles, ShingleFiles]:
    start = 0
    for number, size in enumerate(sizes):
        hashes, counts = all_shingles(texts[start : start + size], 5)
        np.save(folder / f"signatures{number}.npy", SETTINGS.sign_shingles(hashes, counts))
        np.save(folder / f"shingles{number}.npy", pack_shingles(hashes, counts))
        start += size
    signatures, shingles = (
        [folder / f"{name}{number}.npy" for number in range(len(sizes))]
        for name in ("signatures", "shingles")
    )
    return SignatureFiles(signatures, sizes), ShingleFiles(shingles, sizes)


@pytest.mark.parametrize("sizes", [[123], [50, 0, 73], [1] * 123])
def test_similarities_equal_those_of_python_sets(
    texts: list[str], sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_similarity, "_OPEN_FILES", 3)
    _, files = write(texts, tmp_path, sizes)
    pairs = np.array([(number, number + 60) for number in range(60)] + [(3, 64), (5, 120)])
    sets = [shingle_set(text) for text in texts]
    expected = [len(sets[i] & sets[j]) / max(1, len(sets[i] | sets[j])) for i, j in pairs]
    np.testing.assert_allclose(files.similarities(pairs), expected, rtol=1e-15)
    assert 0.7 < np.mean(expected[:60]) < 0.9
    assert files.similarities(np.array([(121, 122)])).tolist() == [1.0]
    assert files.similarities(np.zeros((0, 2), np.int64)).tolist() == []


def test_the_exact_similarity_decides_about_candidates(texts: list[str], tmp_path: Path) -> None:
    signatures, shingles = write(texts, tmp_path, [40, 83])
    sets = [shingle_set(text) for text in texts]
    exact = {
        number + 60
        for number in range(60)
        if len(sets[number] & sets[number + 60]) / len(sets[number] | sets[number + 60]) >= 0.8
    }
    removed = {}
    for name, files in (("estimated", None), ("verified", shingles)):
        clusters = Clusters(tmp_path / "parents.bin", len(texts))
        find_near_duplicates(signatures, SETTINGS, clusters, shingles=files)
        removed[name] = {position for pairs in clusters.removed() for _, position in pairs.tolist()}
    assert 10 < len(exact) < 50
    assert removed["verified"] == exact | {122} != removed["estimated"]


def test_verification_requires_a_threshold() -> None:
    with pytest.raises(ValueError, match="verify_near_duplicates=True: this has no effect without"):
        FilterOptions(verify_near_duplicates=True)
    plain, verified = (
        FilterOptions(near_duplicates=0.8),
        FilterOptions(near_duplicates=0.8, verify_near_duplicates=True),
    )
    assert verified.as_json() == {**plain.as_json(), "verify_near_duplicates": True}
