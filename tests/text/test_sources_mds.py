"""Test reading MDS shards, which tests/text/write_mds.py wrote with mosaicml-streaming."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from bert_jax.text.sources import SourceCounts, SourceOptions, expand_inputs, read_documents

from .write_mds import COMPRESSIONS, TEXTS

SHARDS = Path(__file__).parent / "mds"
DOCUMENTS = [text for text in TEXTS if text]


def texts_of(*inputs: Path, counts: SourceCounts | None = None, **options: str) -> list[str]:
    counts = SourceCounts() if counts is None else counts
    names = [str(path) for path in inputs]
    return [each.text for each in read_documents(names, SourceOptions(**options), counts)]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_shards_are_read_with_every_compression(compression: str) -> None:
    counts = SourceCounts(checksums={})
    directory = SHARDS / compression
    assert texts_of(directory, counts=counts) == DOCUMENTS
    files = sorted(directory.glob("shard*"))
    assert expand_inputs([str(directory)]) == [str(file) for file in files] and len(files) == 3
    assert counts.empty_documents == 1 and counts.files == 3
    assert counts.checksums == {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }
    assert counts.bytes_read == sum(file.stat().st_size for file in files)
    urls = texts_of(files[-1], text_field="url")  # Read a single shard.
    assert urls == [f"https://example.org/{n}" for n in range(24 - len(urls), 24)]


def test_merged_and_nested_indices_and_json_columns_are_read(tmp_path: Path) -> None:
    assert texts_of(SHARDS / "merged") == DOCUMENTS
    nested = tmp_path / "all"
    shutil.copytree(SHARDS / "merged", nested / "b")
    shutil.copytree(SHARDS / "none", nested / "a")
    # When both forms of a shard were kept, only the uncompressed one is read.
    (nested / "a" / "shard.00000.mds.zstd").write_bytes(b"unused")
    # This is a JSON Lines file in spite of its name.
    (nested / "index.json").write_text('{"text": "A line."}\n{"text": "Another line."}\n')
    assert texts_of(nested) == [*DOCUMENTS, *DOCUMENTS, "A line.", "Another line."]
    with pytest.raises(ValueError, match=r"mds:row 3: column 'text' is null\. Fix the input"):
        texts_of(SHARDS / "json")
    assert texts_of(SHARDS / "json", on_bad_line="skip") == DOCUMENTS[:2]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_damaged_shards_are_rejected(tmp_path: Path, compression: str) -> None:
    (shard, *_) = sorted((SHARDS / compression).glob("shard*"))
    data = shard.read_bytes()
    damaged = [data[:-1], data[: len(data) // 2], data[:1], b"\xff" * len(data)]
    damaged += [data + b"more"] if compression == "none" else []
    for content in damaged:
        path = tmp_path / shard.name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"not a complete MDS shard \(stopped at row"):
            texts_of(path)


def test_unusable_columns_and_indices_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'body'; the columns are 'id', 'score', 'tags"):
        texts_of(SHARDS / "none", text_field="body")
    with pytest.raises(ValueError, match="'id' has the encoding int; expected str, bytes, json"):
        texts_of(SHARDS / "none", text_field="id")
    with pytest.raises(ValueError, match="a value is JSON of type list, not a string"):
        texts_of(SHARDS / "none", text_field="tags")
    copy = tmp_path / "copy"
    shutil.copytree(SHARDS / "none", copy)
    (copy / "shard.00001.mds").unlink()
    with pytest.raises(
        ValueError, match=r"index\.json: 1 of the 3 files that it lists are missing"
    ):
        expand_inputs([str(copy)])
    index = json.loads((copy / "index.json").read_text())
    index["shards"] = [{**shard, "format": "csv"} for shard in index["shards"]]
    (copy / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="lists shards with the formats csv; expected only mds"):
        expand_inputs([str(copy)])
