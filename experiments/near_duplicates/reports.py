"""Measure the time and memory for reporting millions of near-duplicates.

    python experiments/near_duplicates/reports.py --documents 20000000 --removed 10000000 \\
        --scratch DIR --output experiments/near_duplicates

The clusters, and the results for blocks of documents, are generated at random instead of being
computed from text. Then a separate process runs the step after the search, as `bert-jax prepare`
does. The scratch directory needs about 600 bytes per document.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.corpus import screening
from bert_jax.corpus.screened_blocks import ScreenedBlock, signatures_path, write_block
from bert_jax.corpus.screened_files import keep_screening, kept_screening
from bert_jax.corpus.screening import Screener
from bert_jax.corpus.shared_files import SameDirectory
from bert_jax.corpus.workspace import SCREENED, SCREENING
from bert_jax.filtering.clusters import Clusters
from bert_jax.filtering.minhash import MinHash
from bert_jax.filtering.options import FilterOptions

# A block of 4 MiB contains this many documents of 3 kB.
BLOCK = 1400
OPTIONS = FilterOptions(min_words=50, near_duplicates=0.95)
# This fraction of the removed documents belongs to a single cluster.
LARGEST = 0.1
# This fraction of all documents fails a filter.
FILTERED = 0.05
BEGINNING = "The ferry to the northern islands leaves at noon and at six. " * 5


def sizes_of(documents: int) -> list[int]:
    """Return the number of documents in each block."""
    return [min(BLOCK, documents - start) for start in range(0, documents, BLOCK)]


def make_blocks(directory: Path, documents: int) -> None:
    """Write the results for blocks: sources, beginnings, findings and random signatures."""
    random = np.random.default_rng(0)
    permutations = MinHash(OPTIONS.near_duplicates or 0).num_permutations
    (directory / SCREENING).mkdir(parents=True)
    for number, size in enumerate(sizes_of(documents)):
        lines = range(number % 100 * BLOCK + 1, number % 100 * BLOCK + size + 1)
        sources = [f"/data/web/part-{number // 100:05d}.jsonl.zst:{line}" for line in lines]
        failed = np.flatnonzero(random.random(size) < FILTERED).tolist()
        findings = [(place, "min_words", "40, at least 50") for place in failed]
        block = ScreenedBlock("", sources, findings)
        write_block(directory / SCREENING, number, block, [BEGINNING[:300]] * size)
        signatures = random.integers(0, 1 << 16, (permutations, size), np.uint16)
        np.save(signatures_path(directory / SCREENING, number), signatures)


def make_clusters(documents: int, removed: int) -> np.ndarray:
    """Return the kept document for each document; one cluster is huge, and the others are small."""
    random = np.random.default_rng(1)
    parents = np.arange(documents)
    later = np.sort(1 + random.choice(documents - 1, removed, replace=False))
    kept = np.setdiff1d(parents, later, assume_unique=True)
    num_before = np.searchsorted(kept, later)
    chosen = kept[(num_before * random.random(removed)).astype(np.int64)]
    parents[later] = np.where(random.random(removed) < LARGEST, 0, chosen)
    return parents


class Memory(threading.Thread):
    """A sampler for the part of this process's memory that is not backed by files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0

    def run(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text()
            anonymous = int(status.split("RssAnon:")[1].split()[0])
            self.peak = max(self.peak, anonymous >> 10)
            time.sleep(0.05)


def report(directory: Path, documents: int) -> None:
    """Run the step after the search, and print the times and the sizes."""
    parents = np.load(directory / "parents.npy", mmap_mode="r")
    times: dict[str, float] = {}

    def find(_signatures: Any, _settings: Any, clusters: Clusters, *_: Any) -> None:
        began = time.perf_counter()
        for start in range(0, documents, 1 << 20):
            clusters._parents[start : start + (1 << 20)] = parents[start : start + (1 << 20)]
        times["search"] = time.perf_counter() - began

    screening.find_near_duplicates = find
    memory = Memory()
    memory.start()
    files, output = SameDirectory(directory), directory / SCREENED
    wall, processor = time.perf_counter(), time.process_time()
    screener = Screener(OPTIONS, None)
    result = screener.combine(directory / SCREENING, sizes_of(documents), output)
    times["combine"] = time.perf_counter() - wall - times.pop("search")
    keep_screening(files, result, {}, b"")
    times["combine and keep"] = time.perf_counter() - wall
    kept = kept_screening(files, {})
    assert kept is not None and kept.screening == result
    summary = result.as_json()
    results = {
        "documents": documents,
        "summary": summary,
        "seconds": times | {"processor": time.process_time() - processor},
        "peak_anonymous_memory_mib": memory.peak,
        "bytes": {path.name: path.stat().st_size for path in sorted(output.iterdir())},
        "lines": sum(1 for _ in open(output / "near_duplicates.jsonl", encoding="utf-8")),
    }
    (directory / "reports.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1), flush=True)


def main() -> None:
    """Make the decisions, and measure the reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=20_000_000)
    parser.add_argument("--removed", type=int, default=10_000_000, help="near-duplicates")
    parser.add_argument("--scratch", type=Path, required=True, help="an empty directory")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    if not (args.scratch / "parents.npy").exists():
        make_blocks(args.scratch, args.documents)
        np.save(args.scratch / "parents.npy", make_clusters(args.documents, args.removed))
    os.sync()
    process = multiprocessing.get_context("spawn").Process(
        target=report, args=(args.scratch, args.documents)
    )
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(process.exitcode)
    (args.output / "reports.json").write_text((args.scratch / "reports.json").read_text())


if __name__ == "__main__":
    main()
