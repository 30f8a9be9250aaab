"""Draw a sample of text, and prepare a corpus for each row length."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from commands import ROOT, bert_jax

from bert_jax.corpus.manifest import Manifest, read_manifest
from bert_jax.files import temporary_beside, write_file
from bert_jax.text.sources import SourceCounts, SourceOptions, read_documents

SMALL, LARGE = "corpus_small", "corpus_large"
VOCABULARY = ROOT / "experiments/finetuning/bert-mini/vocab.txt"
# The number of words, as separated by white space, to draw from the large corpus.
WORDS, FAST_WORDS = 10_000_000, 2_000
# The fraction of documents to hold out.
HELD_OUT, FAST_HELD_OUT = "0.02", "0.2"


def prepare(data: Path, work: Path, lengths: Sequence[int], *, fast: bool) -> None:
    """Prepare a corpus for each row length in `work`/corpora, unless it is finished."""
    for length in lengths:
        output = work / "corpora" / str(length)
        if (output / "manifest.json").is_file():
            continue
        sample = draw(data / LARGE, work / "text", FAST_WORDS if fast else WORDS)
        words: list[str | Path] = ["--max-length", str(length), "--tokenizer", VOCABULARY]
        words += ["--held-out", FAST_HELD_OUT if fast else HELD_OUT]
        bert_jax("prepare", "--input", *_files(data / SMALL), sample, "--output", output, *words)


def draw(source: Path, output: Path, words: int) -> Path:
    """Write a sample of the documents in a folder's files to `output`, and return its path.

    Documents are drawn in the order of the SHA-256 of their text until they have `words` words in
    total. They are written in the order in which they are read. A file next to the sample describes
    it.
    """
    sample, description = output / "sample.jsonl.gz", output / "sample.json"
    if description.is_file():
        return sample
    output.mkdir(parents=True, exist_ok=True)
    print(f"drawing {words:,} words from {source}", flush=True)
    sizes = {_hash(text): len(text.split()) for _, text in _documents(source)}
    drawn, total = set(), 0
    for key in sorted(sizes):
        if total >= words:
            break
        drawn.add(key)
        total += sizes[key]
    counts: dict[str, Counter[str]] = {}
    with temporary_beside(sample) as temporary:
        # Leave the file name and the time out of the gzip header, so that the same text always
        # yields the same bytes.
        with temporary.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as file:
            for name, text in _documents(source):
                if (key := _hash(text)) in drawn:
                    drawn.remove(key)
                    counts.setdefault(name, Counter()).update(documents=1, words=sizes[key])
                    file.write(json.dumps({"text": text}).encode() + b"\n")
        temporary.rename(sample)
    described = {"words": total, "sources": counts}
    write_file(description, json.dumps(described, indent=1) + "\n")
    return sample


def opened(corpora: Path, lengths: Sequence[int]) -> dict[int, Manifest]:
    """Return the manifest of the corpus for each row length; exit if a corpus is unusable."""
    manifests = {length: _opened(corpora / str(length), length) for length in lengths}
    if len({manifest.vocab_size for manifest in manifests.values()}) > 1:
        sizes = "; ".join(f"{each.vocab_size:,} in {name}/" for name, each in manifests.items())
        raise SystemExit(
            f"{corpora}: contains vocabularies of different sizes ({sizes}). Prepare all corpora "
            "with the same tokenizer"
        )
    return manifests


def _opened(corpus: Path, length: int) -> Manifest:
    if not (corpus / "manifest.json").is_file():
        raise SystemExit(
            f"{corpus}: not a finished corpus. Run with --steps prepare and without --corpora "
            "first, or correct --corpora"
        )
    manifest = read_manifest(corpus)
    if manifest.max_length != length:
        raise SystemExit(
            f"{corpus}: has rows of {manifest.max_length} tokens. Prepare it with "
            f"`bert-jax prepare --max-length {length}`"
        )
    if not manifest.heldout.num_documents:
        raise SystemExit(
            f"{corpus}: has no held-out text. Prepare it with `bert-jax prepare --held-out "
            f"{HELD_OUT}`"
        )
    return manifest


def description_of(manifests: Mapping[int, Manifest]) -> dict[str, Any]:
    """Return a description of each corpus, to be stored with the results."""
    return {
        str(length): {
            "fingerprint": manifest.fingerprint,
            "tokens": manifest.train.num_tokens,
            "documents": manifest.train.num_documents,
            "held_out_tokens": manifest.heldout.num_tokens,
            "held_out_documents": manifest.heldout.num_documents,
            "sources": [Path(source["path"]).name for source in manifest.sources],
        }
        for length, manifest in manifests.items()
    }


def _files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.jsonl*"))
    if not files:
        raise SystemExit(f"{folder}: contains no .jsonl files. Correct --data")
    return files


def _documents(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of each document in a folder; exit if a file is damaged."""
    for file in _files(folder):
        try:
            for document in read_documents([str(file)], SourceOptions(), SourceCounts()):
                yield file.name, document.text
        except ValueError as error:
            # The rest of the message names an option that this experiment does not have.
            problem, _, _ = str(error).rpartition(". ")
            raise SystemExit(f"{problem}. Correct the file") from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
