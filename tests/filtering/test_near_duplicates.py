from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from bert_jax.filtering import clusters as clusters_module
from bert_jax.filtering import near_duplicates
from bert_jax.filtering.clusters import Clusters
from bert_jax.filtering.minhash import MinHash
from bert_jax.filtering.near_duplicates import SignatureFiles, find_near_duplicates

from .edited import edited, random_text

SETTINGS = MinHash(0.8)


def find(texts: Sequence[str], folder: Path, sizes: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return the clusters, after storing the signatures in files of the given sizes."""
    paths, start = [], 0
    for number, size in enumerate(sizes):
        paths.append(folder / f"{number}.npy")
        np.save(paths[-1], SETTINGS.sign(texts[start : start + size]))
        start += size
    clusters = Clusters(folder / "parents.bin", len(texts))
    find_near_duplicates(SignatureFiles(paths, sizes), SETTINGS, clusters)
    pairs = [pair for batch in clusters.by_first(2) for pair in batch.tolist()]
    assert sorted(pair for each in clusters.removed() for pair in each.tolist()) == pairs
    return [
        (first, [member for _, member in each]) for first, each in groupby(pairs, itemgetter(0))
    ]


@pytest.fixture
def texts() -> list[str]:
    """Return texts with a cluster of three (1, 4, 8), a pair (2, 6), and no other similar texts."""
    random = np.random.default_rng(0)
    texts = [random_text(random, 300) for _ in range(10)]
    texts[4], texts[8] = (edited(texts[1], 0.01, random) for _ in range(2))
    texts[6] = edited(texts[2], 0.005, random)
    texts[7] = edited(texts[3], 0.2, random)
    texts[0] = texts[9] = "…"
    return texts


def test_clusters_are_found_across_files(texts: list[str], tmp_path: Path) -> None:
    for sizes in ([10], [3, 3, 4], [1] * 10):
        assert find(texts, tmp_path, sizes) == [(1, [4, 8]), (2, [6])]


def test_sorting_in_parts_finds_the_same_clusters(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_duplicates, "_ENTRIES", 3)
    monkeypatch.setattr(near_duplicates, "PAIRS", 1)
    monkeypatch.setattr(near_duplicates, "_OPEN_FILES", 1)
    assert find(texts, tmp_path, [4, 4, 2]) == [(1, [4, 8]), (2, [6])]


def test_a_chain_of_similar_texts_is_one_cluster(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    texts = [random_text(random, 400)]
    for _ in range(4):
        texts.append(edited(texts[-1], 0.015, random))
    ends = SETTINGS.sign([texts[0], texts[-1]])
    assert np.mean(ends[:, 0] == ends[:, 1]) < 0.75
    assert find(texts[::-1], tmp_path, [5]) == [(0, [1, 2, 3, 4])]


def test_a_large_bucket_is_one_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "MAX_COMPARED", 2)
    random = np.random.default_rng(2)
    text = random_text(random, 100)
    assert find([text] * 500, tmp_path, [250, 250]) == [(0, list(range(1, 500)))]


@pytest.mark.parametrize("part", [1, 7, 1 << 20])
def test_clusters_are_sorted_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Put most documents into one cluster, so that the parts are divided repeatedly."""
    monkeypatch.setattr(clusters_module, "_PART", part)
    monkeypatch.setattr(clusters_module, "_MOST_FILES", 3)
    random = np.random.default_rng(4)
    clusters = Clusters(tmp_path / "parents.bin", 100)
    firsts = np.arange(100)
    for position in range(20, 100):
        firsts[position] = 13 if random.random() < 0.6 else random.integers(20)
        clusters.join(position, int(firsts[position]))
    expected = sorted((int(firsts[position]), position) for position in range(20, 100))
    batches = list(clusters.by_first(5))
    assert np.concatenate(batches).tolist() == [list(pair) for pair in expected]
    assert max(map(len, batches)) <= 5
    assert [path.name for path in tmp_path.iterdir()] == ["parents.bin"]


def test_no_documents_give_no_clusters(tmp_path: Path) -> None:
    assert find([], tmp_path, []) == []
    assert find(["…", "!"], tmp_path, [2]) == []
