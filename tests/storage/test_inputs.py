"""Test that inputs in a bucket give the same documents, order and manifest as files on disk."""

import dataclasses
import gzip
import lzma
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from bert_jax.storage import reader as reader_module
from bert_jax.storage.objects import upload, write_bytes
from bert_jax.storage.urls import ObjectUrl
from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.text.files import expand_inputs
from bert_jax.text.sources import read_documents, total_bytes

from .conftest import Emulator

RNG = random.Random(3)
LINES = "".join(f'{{"text": "{RNG.randbytes(30).hex()} {n}"}}\n' for n in range(200)).encode()
FILES = {
    "a.jsonl": LINES,
    "b.txt": b"One.\n\nTwo.\n\n" * 50,
    "c/d.jsonl.gz": gzip.compress(LINES),
    "c/e.jsonl.xz": lzma.compress(LINES),
    "c/f.txt.zst": zstandard.compress(b"Three.\n\nFour.\n" * 50),
    "c/_hidden.txt": b"Hidden.",
    "c/.g.txt": b"Hidden.",
    "notes.md": b"Notes.",
}


@pytest.fixture
def both(tmp_path: Path, bucket: ObjectUrl) -> tuple[Path, ObjectUrl]:
    """Write the same files below a directory and below a URL."""
    local, remote = tmp_path / "text", bucket / "text"
    for name, content in FILES.items():
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_bytes(content)
        write_bytes(remote / name, content)
    table = pa.table({"text": [f"Row {row}." for row in range(5000)]})
    pq.write_table(table, local / "p.parquet", row_group_size=1000)
    upload(local / "p.parquet", remote / "p.parquet")
    return local, remote


@pytest.mark.parametrize("pattern", ["", "/*.txt", "/**/*.jsonl*", "/[ab].*", "/p.parquet"])
def test_inputs_are_expanded_and_read_alike(
    both: tuple[Path, ObjectUrl],
    pattern: str,
    emulator: Emulator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_module, "READ_BYTES", 4096)
    local, remote = both
    found = [str(local), str(remote)]
    names = [
        [os.path.relpath(name, root) for name in expand_inputs([f"{root}{pattern}"])]
        for root in found
    ]
    assert names[0] == names[1] and names[0]
    emulator.fail("status", 3, methods="GET", path="/text")
    read = []
    for root in found:
        counts = SourceCounts(checksums={})
        documents = list(read_documents([f"{root}{pattern}"], SourceOptions(), counts))
        assert counts.bytes_read == total_bytes([f"{root}{pattern}"])
        assert counts.checksums is not None
        checksums = {os.path.relpath(name, root): sum for name, sum in counts.checksums.items()}
        places = [os.path.relpath(document.source, root) for document in documents]
        texts = [document.text for document in documents]
        read.append((texts, places, checksums, dataclasses.replace(counts, checksums=None)))
    assert read[0] == read[1]


def test_unusable_inputs_are_described_in_one_sentence(both: tuple[Path, ObjectUrl]) -> None:
    _, remote = both
    for name, message in {
        "/none": "/none: there is no such object or directory in the bucket",
        "/*.none": "/\\*.none: no object matches this pattern",
    }.items():
        with pytest.raises(ValueError, match=message):
            expand_inputs([f"{remote}{name}"])
    write_bytes(remote / "bad/x.parquet", b"PAR1")
    with pytest.raises(ValueError, match="bad/x.parquet: not a complete Parquet file"):
        list(read_documents([str(remote / "bad")], SourceOptions(), SourceCounts()))
    write_bytes(remote / "cut/x.jsonl.gz", gzip.compress(LINES)[:-9])
    with pytest.raises(ValueError, match="cut/x.jsonl.gz: the .gz archive is truncated"):
        list(read_documents([str(remote / "cut")], SourceOptions(), SourceCounts()))
    with pytest.raises(OSError, match="the bucket 'no-such-bucket' does not exist"):
        expand_inputs([f"{remote.scheme}://no-such-bucket/x"])
