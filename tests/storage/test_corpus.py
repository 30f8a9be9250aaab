"""Test that training reads the same examples from a bucket as from disk."""

import hashlib
import logging
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.shard_files import corpus_cache
from bert_jax.files import NotWritten
from bert_jax.pipeline.corpus_loader import CorpusLoader
from bert_jax.storage import cache as cache_module
from bert_jax.storage.objects import remove, upload, write_bytes
from bert_jax.storage.urls import ObjectUrl
from bert_jax.tokenizers.tokenizer import Tokenizer

from .conftest import Emulator
from .test_prepare import OnDisk, on_disk

__all__ = ["on_disk"]


@pytest.fixture
def uploaded(on_disk: OnDisk, bucket: ObjectUrl) -> ObjectUrl:
    """Return the URL of a copy of the corpus on disk."""
    url = bucket / "corpus"
    for file in on_disk.corpus.rglob("*"):
        if file.is_file():
            upload(file, url / file.relative_to(on_disk.corpus).as_posix())
    return url


def read_all(corpus: Corpus) -> str:
    blobs = corpus.read(np.random.default_rng(1).permutation(len(corpus)))
    corpus.close()
    return hashlib.sha256(b"".join(blobs)).hexdigest()


def wait_for_copies() -> None:
    for thread in threading.enumerate():
        if "copy-shards" in thread.name:
            thread.join(timeout=30)


def test_records_and_batches_equal_those_on_disk(
    on_disk: OnDisk, uploaded: ObjectUrl, emulator: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    emulator.fail("status", 4, methods="GET")
    expected = read_all(Corpus(on_disk.corpus, "train"))
    with caplog.at_level(logging.INFO):
        corpus = Corpus(uploaded, "train")
        blobs = corpus.read(np.arange(1))
        wait_for_copies()
    assert len(blobs) == 1 and f"{uploaded}: all {len(corpus.info.shards)} shards (" in caplog.text
    assert "; batches waited for" in caplog.text
    assert read_all(Corpus(uploaded, "train")) == expected
    assert Tokenizer.load(uploaded).fingerprint == Tokenizer.load(on_disk.corpus).fingerprint
    loaders = [CorpusLoader(path, batch_size=8) for path in (on_disk.corpus, uploaded)]
    for ours, theirs, _ in zip(*loaders, range(4), strict=False):
        assert ours.keys() == theirs.keys()
        assert all((ours[name] == theirs[name]).all() for name in ours)


def test_a_small_cache_is_shared_and_reported(
    on_disk: OnDisk, uploaded: ObjectUrl, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = Corpus(on_disk.corpus, "train").info.shards
    gib = 2.5 * max(shard.num_bytes for shard in shards) / (1 << 30)
    cache = corpus_cache(tmp_path / "small", gib)
    with caplog.at_level(logging.WARNING):
        assert read_all(Corpus(uploaded, "train", cache)) == read_all(
            Corpus(on_disk.corpus, "train")
        )
    assert "shards will be copied repeatedly. Raise loader.cache_gib" in caplog.text
    assert sum(file.stat().st_size for file in cache.directory.rglob("*.arrayrecord")) <= (
        cache.max_bytes
    )


def test_faults_are_described_in_one_sentence(
    uploaded: ObjectUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(uploaded, "train", corpus_cache(tmp_path / "a"))
    name = corpus.info.shards[0].name
    remove(uploaded / name)
    with pytest.raises(ValueError, match=f"{name}: this shard was deleted from the bucket"):
        corpus.read(np.arange(1))
    with pytest.raises(ValueError, match=f"damaged: {name} is missing"):
        Corpus(uploaded, "train")
    write_bytes(uploaded / name, bytes(corpus.info.shards[0].num_bytes))
    with pytest.raises(OSError, match=f"{name}: .*SHA-256 checksum differs in each of 3 attempts"):
        corpus.read(np.arange(1))
    usage = cache_module.shutil._ntuple_diskusage(100, 99, 1)  # type: ignore[attr-defined]
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: usage)
    other = Corpus(uploaded, "heldout", corpus_cache(tmp_path / "full"))
    with pytest.raises(NotWritten, match="full: cannot be written: No space left on device"):
        other.read(np.arange(1))
    with pytest.raises(ValueError, match="this is not a corpus, since it does not exist"):
        Corpus(uploaded / "other", "train")


READ_ONE = """
import sys, time
import numpy as np
from bert_jax.corpus.corpus import Corpus
Corpus(sys.argv[1], "train").read(np.arange(1))
time.sleep(1)
print("read", flush=True)
"""


@pytest.mark.slow
def test_a_process_ends_without_waiting_for_the_other_shards(
    uploaded: ObjectUrl, emulator: Emulator
) -> None:
    emulator.fail("stall", 1000, seconds=30, path="train-000(?!00)")
    command = [sys.executable, "-c", READ_ONE, str(uploaded)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"read\n"
        assert process.wait(timeout=15) == 0
    assert emulator.faults_left() < 1000


def _read_in_process(url: str, directory: str) -> str:
    return read_all(Corpus(url, "train", corpus_cache(directory)))


@pytest.mark.slow
def test_processes_share_the_copies(on_disk: OnDisk, uploaded: ObjectUrl, tmp_path: Path) -> None:
    arguments = [(str(uploaded), str(tmp_path / "shared"))] * 3
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        digests = pool.starmap(_read_in_process, arguments)
    assert set(digests) == {read_all(Corpus(on_disk.corpus, "train"))}
