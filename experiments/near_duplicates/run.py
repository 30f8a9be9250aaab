"""Check the search for near-duplicates against exact Jaccard similarities and datasketch.

    python experiments/near_duplicates/run.py --data DIR --output experiments/near_duplicates

The directory must contain wiki_aa.jsonl.xz, with an article in the field "text" of each line. The
shingles (word 5-grams) for the exact similarities and for datasketch are computed by separate code,
using character categories, joined strings and xxhash.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
import time
import unicodedata
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import xxhash
from datasketch import MinHash as Datasketch
from datasketch import MinHashLSH
from scipy import sparse

from bert_jax.filtering.clusters import Clusters
from bert_jax.filtering.exact_similarity import ShingleFiles, pack_shingles
from bert_jax.filtering.minhash import SHINGLE_WORDS, MinHash
from bert_jax.filtering.near_duplicates import SignatureFiles, estimate, find_near_duplicates
from bert_jax.filtering.words import all_shingles

THRESHOLDS = (0.5, 0.7, 0.8, 0.9)
COMPARED = 0.8  # At this threshold, the results are also compared with datasketch.
PARTS = ("throughput", "planted", "real", "verified")
EDITS = (0.01, 0.05, 0.10, 0.20)
# This directory is removed at exit.
SCRATCH = tempfile.TemporaryDirectory(prefix="near_duplicates")
MARGIN = 0.05  # The margin is two standard errors of the estimated similarity.

Pairs = set[tuple[int, int]]


def read_articles(data: Path, limit: int | None) -> list[str]:
    """Return the texts of all articles."""
    with lzma.open(data / "wiki_aa.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in islice(file, limit)]


def split_words(text: str) -> list[str]:
    """Split at white space, and drop all characters but letters, marks and digits."""
    words = []
    for word in text.casefold().split():
        if not word.isalnum():
            word = "".join(c for c in word if unicodedata.category(c)[0] in "LMN")
        if word:
            words.append(word)
    return words


def shingle_strings(text: str) -> set[str]:
    """Return a text's 5-grams of words."""
    words = split_words(text)
    return {" ".join(words[start : start + 5]) for start in range(max(1, len(words) - 4))}


def exact_similarities(sets: Sequence[np.ndarray], lowest: float) -> dict[tuple[int, int], float]:
    """Return the pairs of sets whose Jaccard similarity is at least `lowest`, with its value."""
    sizes = np.array([len(each) for each in sets])
    values, counts = np.unique(np.concatenate(sets), return_counts=True)
    shared = values[counts > 1]
    rows, columns = [], []
    for number, each in enumerate(sets):
        places = np.searchsorted(shared, each)
        found = places[
            (places < len(shared)) & (shared[np.minimum(places, len(shared) - 1)] == each)
        ]
        rows.append(np.full(len(found), number))
        columns.append(found)
    indices = (np.concatenate(rows), np.concatenate(columns))
    matrix = sparse.csr_array(
        (np.ones(len(indices[0]), np.int32), indices), (len(sets), len(shared))
    )
    similar = {}
    for start in range(0, len(sets), 500):
        product = (matrix[start : start + 500] @ matrix.T).tocoo()
        first, second = product.row + start, product.col
        union = sizes[first] + sizes[second] - product.data
        jaccard = product.data / union
        for i, j, value in zip(first, second, jaccard, strict=True):
            if i < j and value >= lowest:
                similar[int(i), int(j)] = float(value)
    return similar


class PairRecorder(Clusters):
    """Clusters that record every joined pair, even if a cluster already contains both."""

    def __init__(self, path: Path, num_documents: int):
        super().__init__(path, num_documents)
        self.pairs: Pairs = set()

    def firsts(self, positions: np.ndarray) -> np.ndarray:
        return positions

    def join(self, position: int, other: int) -> None:
        self.pairs.add((min(position, other), max(position, other)))


class ShingleRecorder(ShingleFiles):
    """Shingles that record which pairs were compared, and the processor time that this took."""

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int]):
        super().__init__(paths, sizes)
        self.pairs: Pairs = set()
        self.seconds = 0.0

    def similarities(self, pairs: np.ndarray) -> np.ndarray:
        start = time.process_time()
        values = super().similarities(pairs)
        self.seconds += time.process_time() - start
        self.pairs.update((min(pair), max(pair)) for pair in pairs.tolist())
        return values


def our_pairs(texts: Sequence[str], threshold: float) -> tuple[Pairs, SignatureFiles]:
    """Return the pairs that this package finds, and the signatures."""
    pairs, files, _ = search(texts, threshold, verify=False)
    return pairs, files


def search(
    texts: Sequence[str], threshold: float, *, verify: bool
) -> tuple[Pairs, SignatureFiles, ShingleRecorder]:
    """Return the pairs that this package finds, the signatures, and the exact comparisons."""
    settings = MinHash(threshold)
    folder = Path(tempfile.mkdtemp(dir=SCRATCH.name))
    signatures, shingles, sizes = [], [], []
    for start in range(0, len(texts), 500):
        part = texts[start : start + 500]
        sizes.append(len(part))
        hashes, counts = all_shingles(part, SHINGLE_WORDS)
        signatures.append(folder / f"signatures{start}.npy")
        np.save(signatures[-1], settings.sign_shingles(hashes, counts))
        if verify:
            shingles.append(folder / f"shingles{start}.npy")
            np.save(shingles[-1], pack_shingles(hashes, counts))
    recorder = PairRecorder(folder / "parents.bin", len(texts))
    files = SignatureFiles(signatures, sizes)
    exact = ShingleRecorder(shingles, sizes)
    find_near_duplicates(files, settings, recorder, shingles=exact if verify else None)
    return recorder.pairs, files, exact


def score(found: Pairs, exact: dict[tuple[int, int], float], threshold: float) -> dict[str, float]:
    """Return precision and recall, with and without pairs near the threshold."""
    true = {pair for pair, value in exact.items() if value >= threshold}
    clear = {pair for pair, value in exact.items() if value >= threshold + MARGIN}
    possible = {pair for pair, value in exact.items() if value >= threshold - MARGIN}
    return {
        "true_pairs": len(true),
        "found_pairs": len(found),
        "precision": len(found & true) / max(1, len(found)),
        "recall": len(found & true) / max(1, len(true)),
        "precision_outside_margin": len(found & possible) / max(1, len(found)),
        "recall_outside_margin": len(found & clear) / max(1, len(clear)),
    }


def datasketch_pairs(signatures: Sequence[Datasketch], settings: MinHash) -> Pairs:
    """Return the pairs that datasketch finds and whose estimates reach the threshold."""
    index = MinHashLSH(num_perm=settings.num_permutations, params=(settings.bands, settings.rows))
    found = set()
    for number, signature in enumerate(signatures):
        for other in index.query(signature):
            if signature.jaccard(signatures[int(other)]) >= settings.threshold:
                found.add((int(other), number))
        index.insert(number, signature)
    return found


def edit(text: str, fraction: float, scattered: bool, random: np.random.Generator) -> str:
    """Replace a fraction of a text's words, at random places or in one passage."""
    words = text.split()
    count = round(fraction * len(words))
    if scattered:
        places = random.choice(len(words), count, replace=False)
    else:
        places = random.integers(0, len(words) - count + 1) + np.arange(count)
    for place in places:
        words[place] = "".join(random.choice(list("abcdefghijklmnopqrstuvwxyz"), 7))
    return " ".join(words)


def sets_of(texts: Sequence[str]) -> list[np.ndarray]:
    """Return the sets of the texts' hashed shingles."""
    return [
        np.unique(
            [xxhash.xxh3_64_intdigest(each.encode()) for each in shingle_strings(text)]
        ).astype(np.uint64)
        for text in texts
    ]


def paragraphs(articles: Sequence[str]) -> list[str]:
    """Return the paragraphs with at least 20 words."""
    parts = (part for article in articles for part in article.split("\n"))
    return [part for part in parts if len(part.split()) >= 20]


def real_sample(texts: Sequence[str], results: dict) -> None:
    """Compare the pairs that are found among real paragraphs with the exact ones."""
    results["paragraphs"], results["words"] = len(texts), sum(len(text.split()) for text in texts)
    exact = exact_similarities(sets_of(texts), min(THRESHOLDS) - MARGIN)
    results["real"] = {}
    for threshold in THRESHOLDS:
        settings = MinHash(threshold)
        start = time.process_time()
        ours, files = our_pairs(texts, threshold)
        row = {
            "permutations": settings.num_permutations,
            "bands": settings.bands,
            "rows": settings.rows,
            "cpu_seconds": time.process_time() - start,
            "here": score(ours, exact, threshold),
        }
        if threshold == COMPARED:
            row |= compare_with_datasketch(texts, ours, files, exact)
        results["real"][str(threshold)] = row
        print(threshold, json.dumps(row, indent=1), flush=True)


def verified_sample(texts: Sequence[str], results: dict) -> None:
    """Compare searches with and without `--verify-near-duplicates`, among real paragraphs."""
    exact = exact_similarities(sets_of(texts), min(THRESHOLDS) - MARGIN)
    results["verified"] = {}
    for threshold in THRESHOLDS:
        rows = {}
        for verify in (False, True):
            start = time.process_time()
            found, _, comparisons = search(texts, threshold, verify=verify)
            seconds = time.process_time() - start
            name = "verified" if verify else "estimated"
            rows[name] = {"cpu_seconds": seconds, **score(found, exact, threshold)}
            if verify:
                documents = {position for pair in comparisons.pairs for position in pair}
                rows[name] |= {
                    "compared_pairs": len(comparisons.pairs),
                    "compared_paragraphs": len(documents),
                    "comparison_cpu_seconds": comparisons.seconds,
                }
        results["verified"][str(threshold)] = rows
        print(threshold, json.dumps(rows), flush=True)


def compare_with_datasketch(
    texts: Sequence[str],
    ours: Pairs,
    files: SignatureFiles,
    exact: dict[tuple[int, int], float],
) -> dict:
    """Compare pairs and estimates with those of datasketch, using the same bands."""
    settings = MinHash(COMPARED)
    start = time.process_time()
    signatures = []
    empty = Datasketch(num_perm=settings.num_permutations)
    for text in texts:
        # Copying an empty signature is faster than computing the permutations again.
        signature = empty.copy()
        signature.update_batch([each.encode() for each in shingle_strings(text)])
        signatures.append(signature)
    theirs = datasketch_pairs(signatures, settings)
    seconds = time.process_time() - start
    pairs = np.array(sorted(exact), np.int64)
    values = np.array([exact[i, j] for i, j in pairs.tolist()])
    estimates = {
        "here": estimate(files, pairs),
        "datasketch": np.array([signatures[i].jaccard(signatures[j]) for i, j in pairs.tolist()]),
    }
    deviation = np.sqrt(values * (1 - values) / settings.num_permutations)
    usable = deviation > 0
    near = {pair for pair, value in exact.items() if abs(value - COMPARED) < MARGIN}
    return {
        "datasketch": score(theirs, exact, COMPARED),
        "datasketch_cpu_seconds": seconds,
        "pairs_of_both": len(ours & theirs),
        "pairs_of_one": len(ours ^ theirs),
        "pairs_of_one_outside_margin": len((ours ^ theirs) - near),
        "pairs_with_estimates": len(pairs),
        "estimates": {
            name: {
                "mean_error": float(np.mean(estimated - values)),
                "rms_error": float(np.sqrt(np.mean((estimated - values) ** 2))),
                "rms_error_in_standard_errors": float(
                    np.sqrt(np.mean(((estimated - values)[usable] / deviation[usable]) ** 2))
                ),
            }
            for name, estimated in estimates.items()
        },
    }


def planted_copies(texts: Sequence[str], results: dict) -> None:
    """Measure which of the edited copies of articles are found."""
    random = np.random.default_rng(0)
    originals = [" ".join(text.split()[:1000]) for text in texts]
    results["planted"] = []
    for scattered in (False, True):
        for fraction in EDITS:
            copies = [edit(text, fraction, scattered, random) for text in originals]
            everything = [*originals, *copies]
            exact = exact_similarities(sets_of(everything), 0.05)
            planted = [(number, number + len(originals)) for number in range(len(originals))]
            similar = np.array([exact.get(pair, 0.0) for pair in planted])
            row = {
                "edits": "scattered" if scattered else "one passage",
                "fraction": fraction,
                "similarity": float(similar.mean()),
            }
            for threshold in THRESHOLDS:
                found, _ = our_pairs(everything, threshold)
                verified, _, _ = search(everything, threshold, verify=True)
                row[str(threshold)] = {
                    "at_least_threshold": float(np.mean(similar >= threshold)),
                    "removed": float(np.mean([pair in found for pair in planted])),
                    **score(found, exact, threshold),
                    "verified": {
                        "removed": float(np.mean([pair in verified for pair in planted])),
                        **score(verified, exact, threshold),
                    },
                }
            results["planted"].append(row)
            print(json.dumps(row), flush=True)


def throughput(texts: Sequence[str]) -> dict:
    """Measure the processor time for computing signatures, alternating between the libraries."""
    settings = MinHash(0.8)
    num_words = sum(len(text.split()) for text in texts)
    num_bytes = sum(len(text.encode()) for text in texts)
    settings.sign(texts[:1])  # Warm up: the first call builds the character tables.
    empty = Datasketch(num_perm=settings.num_permutations)
    rounds = []
    for _ in range(5):
        start = time.process_time()
        settings.sign(texts)
        middle = time.process_time()
        shingles = [[each.encode() for each in shingle_strings(text)] for text in texts]
        made = time.process_time()
        for each in shingles:
            empty.copy().update_batch(each)
        end = time.process_time()
        rounds.append(
            {"here": middle - start, "shingle strings": made - middle, "datasketch": end - made}
        )
        print(json.dumps(rounds[-1]), flush=True)
    return {
        "documents": len(texts),
        "words": num_words,
        "bytes": num_bytes,
        "rounds": rounds,
        "mb_per_second": num_bytes / 1e6 / min(each["here"] for each in rounds),
        "ratio": float(
            np.median([(e["shingle strings"] + e["datasketch"]) / e["here"] for e in rounds])
        ),
        "ratio_without_shingle_strings": float(
            np.median([e["datasketch"] / e["here"] for e in rounds])
        ),
    }


def main() -> None:
    """Run the comparisons and add their results to results.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="articles (default: all)")
    parser.add_argument("--planted", type=int, default=1000, help="planted copies per kind")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="what to measure")
    args = parser.parse_args()
    path = args.output / "results.json"
    results: dict = json.loads(path.read_text()) if path.exists() else {}
    texts = read_articles(args.data, args.limit)
    if "throughput" in args.only:
        sample = texts[:: max(1, len(texts) // 300)]
        results["throughput"] = throughput(sample)
        results["throughput_of_paragraphs"] = throughput(paragraphs(sample))
    if "planted" in args.only:
        chosen = np.random.default_rng(1).choice(len(texts), min(args.planted, len(texts)), False)
        planted_copies([texts[number] for number in sorted(chosen)], results)
    if "real" in args.only:
        real_sample(paragraphs(texts), results)
    if "verified" in args.only:
        verified_sample(paragraphs(texts), results)
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
