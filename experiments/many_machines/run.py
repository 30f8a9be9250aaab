"""Prepare one corpus with several engines, and print a checksum of each engine's files.

    python experiments/many_machines/run.py --input TEXT --tokenizer TOKENIZER --work DIR

The engines are the local command with one and with two workers, three parts that run at the same
time and are merged, and Apache Beam. Beam's engines are left out if it is not installed. The script
fails if a checksum differs. It also measures how much CPU time it takes to read and hash the text
and to tokenize it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "experiments")]

from commands import bert_jax  # noqa: E402

from bert_jax.corpus.assignment import AssignOptions, assign  # noqa: E402
from bert_jax.corpus.inputs import PrepareInputs, PrepareOptions  # noqa: E402
from bert_jax.corpus.packing import tokenize_document  # noqa: E402
from bert_jax.corpus.records import token_dtype  # noqa: E402
from bert_jax.corpus.scans import read_scan, scan_input, scan_tasks  # noqa: E402
from bert_jax.text.documents import SourceCounts  # noqa: E402
from bert_jax.text.sources import expand_inputs, read_documents  # noqa: E402
from bert_jax.tokenizers.tokenizer import Tokenizer  # noqa: E402

BEAM = {
    "Beam, DirectRunner, 1 process": ["DirectRunner"],
    "Beam, DirectRunner, 2 processes": [
        "DirectRunner",
        "--runner-args=--direct_running_mode=multi_processing --direct_num_workers=2",
    ],
    "Beam, DaskRunner": ["apache_beam.runners.dask.dask_runner.DaskRunner"],
}
MEASURED_BYTES = 4_000_000


def checksum(directory: Path) -> str:
    """Return a SHA-256 of the names and the contents of all files below a directory."""
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            name = path.relative_to(directory).as_posix()
            total.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def run_parts(words: list[str], output: Path) -> None:
    """Prepare three parts at the same time, and merge them."""
    command = [sys.executable, "-m", "bert_jax.cli.main", *words, "--output", str(output)]
    workers = ["--workers", "1"]
    parts = [
        subprocess.Popen([*command, *workers, "--part", f"{index}/3"], cwd=ROOT)
        for index in range(3)
    ]
    if any(part.wait() for part in parts):
        raise SystemExit("a part failed")
    bert_jax(*words, "--output", output, "--merge")


def measure(inputs: list[str], tokenizer: Tokenizer, work: Path) -> None:
    """Print how many megabytes of text are scanned, assigned and tokenized per CPU second."""
    options = PrepareOptions()
    prepare_inputs = PrepareInputs(expand_inputs(inputs), [])
    plan = {"sources": prepare_inputs.describe(options.sources)}
    tasks = scan_tasks(prepare_inputs, plan, options)
    work.mkdir(parents=True, exist_ok=True)
    start = time.process_time()
    for task in tasks:
        scan_input(task, work)
    scanned = time.process_time()
    scans = [scan for task in tasks if (scan := read_scan(task, work)) is not None]
    num_bytes = sum(scan.counts.text_bytes for scan in scans)
    num_documents = sum(len(scan.rows) for scan in scans)
    print(f"{num_documents:,} documents, {num_bytes / 1e6:,.1f} MB of text")
    print(f"scan:     {num_bytes / 1e6 / (scanned - start):6.1f} MB/s per core")
    start = time.process_time()
    assign(scans, AssignOptions(0, options.heldout_fraction, options.unit_bytes))
    print(f"assign:   {num_documents / (time.process_time() - start):,.0f} documents/s")
    texts, size = [], 0
    for document in read_documents(inputs, options.sources, SourceCounts()):
        texts.append(document.text)
        size += len(document.text.encode())
        if size > MEASURED_BYTES:
            break
    tokenize_document("Warm up.", tokenizer, "en", token_dtype(2))
    start = time.process_time()
    for text in texts:
        tokenize_document(text, tokenizer, "en", token_dtype(2))
    print(f"tokenize: {size / 1e6 / (time.process_time() - start):6.1f} MB/s per core")


def main() -> None:
    """Run all engines, and compare their checksums."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--input", nargs="+", required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="new folder for all files")
    parser.add_argument("--max-length", default="128")
    parser.add_argument("--unit-bytes", default="2000000")
    args = parser.parse_args()
    if args.work.exists():
        parser.error(f"--work {args.work}: this exists. Choose a new folder, or remove it")
    words = ["prepare", "--input", *args.input, "--tokenizer", str(args.tokenizer)]
    words += ["--max-length", args.max_length, "--unit-bytes", args.unit_bytes]
    engines = {
        "local, 1 worker": lambda output: bert_jax(*words, "--output", output, "--workers", "1"),
        "local, 2 workers": lambda output: bert_jax(*words, "--output", output, "--workers", "2"),
        "3 parts and a merge": lambda output: run_parts(words, output),
    }
    if importlib.util.find_spec("apache_beam"):
        for name, runner in BEAM.items():
            if "Dask" in name and not importlib.util.find_spec("distributed"):
                continue
            engines[name] = lambda output, runner=runner: bert_jax(
                *words, "--output", output, "--runner", *runner
            )
    results = {}
    for name, run in engines.items():
        output = args.work / name.replace(" ", "_").replace(",", "")
        start = time.perf_counter()
        run(output)
        results[name] = checksum(output), time.perf_counter() - start
    for name, (digest, seconds) in results.items():
        print(f"{digest}  {name} ({seconds:.0f} s)")
    measure(args.input, Tokenizer.load(args.tokenizer), args.work / "measured")
    if len({digest for digest, _ in results.values()}) != 1:
        raise SystemExit("the corpora differ")


if __name__ == "__main__":
    main()
