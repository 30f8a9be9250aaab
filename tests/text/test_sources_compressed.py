"""Test that compressed inputs are read completely, and that damaged ones are never skipped."""

import gzip
import hashlib
import json
import lzma
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.text.sources import read_documents

COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
}
DEFAULTS = SourceOptions()
SKIP = SourceOptions(on_bad_line="skip")


def texts(path, options=DEFAULTS):
    return [document.text for document in read_documents([str(path)], options, SourceCounts())]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_concatenated_archives_are_all_read(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"".join(COMPRESS[suffix](f"part {i}\n\n".encode()) for i in range(50)))
    assert texts(path) == [f"part {i}" for i in range(50)]


def test_zstandard_skippable_frames_and_frames_of_unknown_size_are_read(tmp_path):
    skippable = bytes.fromhex("502a4d18") + (5).to_bytes(4, "little") + b"abcde"
    streaming = zstandard.ZstdCompressor().compressobj()
    frame = streaming.compress(b"one\n" * 100_000) + streaming.flush()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(skippable + frame + skippable + COMPRESS[".zst"](b"\ntwo"))
    assert [len(text) for text in texts(path)] == [399_999, 3]


@pytest.mark.parametrize("log", [28, 29])
def test_a_zstandard_window_too_large_for_memory_is_not_reported_as_damage(tmp_path, log):
    parameters = zstandard.ZstdCompressionParameters(window_log=log)
    streaming = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(streaming.compress(b"text") + streaming.flush())
    if log == 28:
        assert texts(path) == ["text"]
    else:
        with pytest.raises(
            ValueError, match=r"a\.txt\.zst: compressed with `zstd --long`.*256 MiB"
        ):
            texts(path)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("content", ["txt", "jsonl"])
@pytest.mark.parametrize("options", [SourceOptions(), SKIP])
def test_a_truncated_archive_is_always_an_error(tmp_path, suffix, content, options):
    words = random.Random(0).choices(["alpha", "beta", "gamma", "delta"], k=200_000)
    lines = [" ".join(words[i : i + 10]) for i in range(0, len(words), 10)]
    data = "\n".join(lines).encode()
    if content == "jsonl":
        data = "".join(json.dumps({"text": line}) + "\n" for line in lines).encode()
    whole = COMPRESS[suffix](data)
    path = tmp_path / f"a.{content}{suffix}"
    for size in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"a\.{content}\{suffix}: .*truncated or damaged"):
            texts(path, options=options)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_file_with_the_suffix_of_an_archive_must_be_one(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(b"just some text\n")
    with pytest.raises(ValueError, match="truncated or damaged"):
        texts(path)


def test_the_checksum_covers_bytes_after_an_archive(tmp_path):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(COMPRESS[".xz"](b"one\n") + bytes(range(256)) * 4096)
    counts = SourceCounts(checksums={})
    documents = read_documents([str(path)], DEFAULTS, counts)
    assert [document.text for document in documents] == ["one"]
    assert counts.checksums == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz", "a.txt.zst", "a.parquet"])
def test_the_checksum_covers_the_compressed_file(tmp_path, name):
    """Test that the checksum covers the whole file, even if it consists of two archives."""
    path = tmp_path / name
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": ["one", "two"], "other": [1, 2]}), path)
    else:
        compress = COMPRESS.get(path.suffix, bytes)
        path.write_bytes(compress(b"one\n\n") + compress(b"two\n\n"))
    hashed, plain = SourceCounts(checksums={}), SourceCounts()
    for counts in (hashed, plain):
        documents = read_documents([str(path)], DEFAULTS, counts)
        assert [document.text for document in documents] == ["one", "two"]
    assert hashed.checksums == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    assert plain.checksums is None and plain.bytes_read == hashed.bytes_read
