"""Test the local copies of objects, and reading objects as files."""

import fcntl
import gzip
import io
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bert_jax.files import NotWritten
from bert_jax.storage import cache as cache_module
from bert_jax.storage import reader as reader_module
from bert_jax.storage.cache import Cache, local_file, local_tree
from bert_jax.storage.errors import MissingObjectError, StorageError
from bert_jax.storage.objects import stat, write_bytes
from bert_jax.storage.reader import ObjectReader
from bert_jax.storage.urls import ObjectUrl

from .conftest import Emulator


def test_copies_follow_the_object(bucket: ObjectUrl) -> None:
    url = bucket / "text.jsonl"
    write_bytes(url, "1")
    first = local_file(url)
    assert first.name == "text.jsonl" and first.read_text() == "1"
    assert local_file(url) == first
    write_bytes(url, "2")
    assert local_file(url).read_text() == "2" and first.read_text() == "1"
    with pytest.raises(MissingObjectError):
        local_file(bucket / "missing")


def test_a_copy_that_is_kept_needs_one_open_file(bucket: ObjectUrl) -> None:
    write_bytes(bucket / "x", "1")
    copies = {local_file(bucket / "x") for _ in range(5)}
    (copy,) = copies
    opened = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
    assert opened.count(os.path.realpath(copy.parent / "lock")) == 1


def test_directories_are_copied(bucket: ObjectUrl) -> None:
    for name in ("a", "inner/b", "inner/big"):
        write_bytes(bucket / "model" / name, name)
    copy = local_tree(bucket / "model", lambda name: name != "inner/big")
    assert copy.name == "model"
    files = {str(file.relative_to(copy)): file.read_text() for file in copy.rglob("*?/*")}
    assert files == {"inner/b": "inner/b"} and (copy / "a").read_text() == "a"
    assert local_tree(bucket / "model", lambda name: name != "inner/big") == copy
    with pytest.raises(MissingObjectError):
        local_tree(bucket / "other")


def test_the_size_is_bounded_and_copies_in_use_are_kept(bucket: ObjectUrl, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "bounded", 250)
    infos = []
    for number in range(5):
        write_bytes(bucket / f"{number}", bytes([number]) * 100)
        infos.append(stat(bucket / f"{number}"))
    with cache.copy_of(infos[0]) as used:
        for age, info in enumerate(infos[1:4]):
            with cache.copy_of(info) as copy:
                os.utime(copy.parent / "lock", (age, age))
        assert used.exists()
        assert len([*cache.directory.glob("??/*/?")]) == 2
        with (
            cache.copy_of(infos[3]),
            pytest.raises(NotWritten, match="the copies in use need 200 of the 250 bytes"),
        ):
            cache.copy_of(infos[4]).__enter__()
    with pytest.raises(NotWritten, match="may hold 50 bytes, but one copy needs 100"):
        Cache(tmp_path / "tiny", 50).keep(infos[0])


def test_the_cache_is_searched_only_if_copies_must_be_removed(
    bucket: ObjectUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, searches, entries = Cache(tmp_path / "cache", 1000), [], cache_module._entries
    monkeypatch.setattr(
        cache_module, "_entries", lambda directory: searches.append(0) or entries(directory)
    )
    copies, nums_searches = [], []
    for number in range(13):
        write_bytes(bucket / f"{number}", bytes(100))
        with cache.copy_of(stat(bucket / f"{number}")):
            pass
        copies.append(num_copies(cache))
        nums_searches.append(len(searches))
    assert copies == [*range(1, 11), 9, 10, 9]
    assert nums_searches == [*[1] * 10, 2, 2, 3]
    # A process that was killed may have recorded a larger size than the actual one.
    (cache.directory / "room").write_text("990")
    shutil.rmtree(next(cache.directory.glob("??")))
    with cache.copy_of(stat(bucket / "0")):
        pass
    assert (cache.directory / "room").read_text() == f"{num_copies(cache)}00"


def num_copies(cache: Cache) -> int:
    return len([*cache.directory.glob("??/*/lock")])


def test_a_copy_is_never_found_while_it_is_removed(
    bucket: ObjectUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes(bucket / "x", bytes(600))
    write_bytes(bucket / "y", bytes(600))
    cache, info = Cache(tmp_path / "cache", 1000), stat(bucket / "x")
    with cache.copy_of(info) as copy:
        pass
    unlink, used = os.unlink, []

    def unlink_and_use(name: str, **options: int) -> None:
        unlink(name, **options)
        if os.path.basename(name) == "lock" and not copy.parent.joinpath("lock").exists():
            used.append(cache_module._locked(copy.parent / "lock", fcntl.LOCK_SH))
            assert not copy.exists()

    monkeypatch.setattr(os, "unlink", unlink_and_use)
    with cache.copy_of(stat(bucket / "y")):
        assert used
    os.close(used[0])


def test_a_full_disk_is_named(
    bucket: ObjectUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bytes(bucket / "x", "text")
    usage = cache_module.shutil._ntuple_diskusage(100, 99, 1)  # type: ignore[attr-defined]
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(NotWritten, match=r"full: cannot be written: No space left on device"):
        Cache(tmp_path / "full", 1 << 30).keep(stat(bucket / "x"))


def test_a_wrong_checksum_is_an_error(bucket: ObjectUrl, tmp_path: Path) -> None:
    write_bytes(bucket / "x", "text")
    cache = Cache(tmp_path / "cache", 1 << 20)
    with pytest.raises(StorageError, match="the SHA-256 checksum differs in each of 3 attempts"):
        cache.keep(stat(bucket / "x"), sha256="0" * 64)
    assert not list(cache.directory.rglob("x"))


def _copy_all(arguments: tuple[str, str, int]) -> int:
    directory, bucket, seed = arguments
    cache = Cache(Path(directory), 3000)
    order = list(range(8)) * 3
    random.Random(seed).shuffle(order)
    for number in order:
        from bert_jax.storage.urls import parse_url

        url = parse_url(f"{bucket}/{number}")
        assert url is not None
        with cache.copy_of(stat(url)) as copy:
            assert copy.read_bytes() == bytes([number]) * 500
    return sum(file.stat().st_size for file in Path(directory).rglob("?"))


@pytest.mark.slow
def test_processes_share_a_small_cache(bucket: ObjectUrl, tmp_path: Path) -> None:
    for number in range(8):
        write_bytes(bucket / f"{number}", bytes([number]) * 500)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        sizes = pool.map(
            _copy_all, [(str(tmp_path / "shared"), str(bucket), seed) for seed in range(4)]
        )
    assert max(sizes) <= 3000


def test_objects_are_read_as_files(
    bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch, emulator: Emulator
) -> None:
    monkeypatch.setattr(reader_module, "READ_BYTES", 1000)
    content = random.Random(2).randbytes(3500)
    write_bytes(bucket / "x.gz", gzip.compress(content))
    with ObjectReader(stat(bucket / "x.gz")) as raw, gzip.GzipFile(fileobj=raw) as file:
        assert file.read() == content
        assert raw.name == f"{bucket}/x.gz"
    write_bytes(bucket / "x", content)
    emulator.fail("status", 2, path="/x")
    with io.BufferedReader(ObjectReader(stat(bucket / "x")), 64) as buffered:
        assert buffered.seek(-100, io.SEEK_END) == 3400 and buffered.read() == content[-100:]
        assert buffered.seek(990) == 990 and buffered.read(20) == content[990:1010]
        assert buffered.seek(0) == 0 and buffered.read() == content
    for thread in threading.enumerate():
        if "read-ahead" in thread.name:
            thread.join(timeout=5)
            assert not thread.is_alive()


READ_AHEAD = """
import sys, time
from bert_jax.storage import reader
from bert_jax.storage.objects import stat
from bert_jax.storage.urls import parse_url

read = reader.ObjectReader._read
reader.READ_BYTES = 10
reader.ObjectReader._read = lambda file, number: (
    time.sleep(60) if number == 2 else read(file, number)
)
file = reader.ObjectReader(stat(parse_url(sys.argv[1])))
file.read(10), file.read(10)
print("read", flush=True)
"""


@pytest.mark.slow
def test_a_process_ends_without_waiting_for_what_is_read_ahead(bucket: ObjectUrl) -> None:
    write_bytes(bucket / "x", bytes(100))
    command = [sys.executable, "-c", READ_AHEAD, f"{bucket}/x"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"read\n"
        assert process.wait(timeout=20) == 0
