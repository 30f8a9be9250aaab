"""Test how the machines that prepare a corpus in a bucket exchange files."""

from pathlib import Path

import pytest

from bert_jax.corpus.shared_files import BucketFiles
from bert_jax.storage.exclusive_writes import ExclusiveWriter
from bert_jax.storage.objects import find, read_bytes
from bert_jax.storage.urls import ObjectUrl

MARK, OTHER = "screening/block.jsonl", "screening/block.npy"


def write(work: Path, content: str) -> None:
    (work / "screening").mkdir(parents=True, exist_ok=True)
    for name in (MARK, OTHER):
        (work / name).write_text(f"{content} of {name}")


def test_files_are_copied_and_marked_as_finished_last(
    bucket: ObjectUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = bucket / "corpus/.work"
    writer = ExclusiveWriter(None)
    one, two, three = (BucketFiles(tmp_path / name, remote, writer) for name in ("1", "2", "3"))
    two.fetch_all("screening")
    assert not list((two.work / "screening").iterdir())
    write(one.work, "first content")
    one.share(MARK, OTHER)
    two.fetch(MARK, OTHER)
    assert not (two.work / MARK).exists()  # A list of the objects is reused for five seconds.
    two.fetch_all("screening")
    for name in (MARK, OTHER):
        assert (two.work / name).read_text() == f"first content of {name}"

    # If a machine is killed while it replaces the files, they are not marked as finished.
    write(two.work, "second content")

    def upload(writer: ExclusiveWriter, file: Path, url: ObjectUrl) -> None:
        assert find(remote / MARK) is None
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ExclusiveWriter, "upload", upload)
        with pytest.raises(OSError, match="killed"):
            two.share(MARK, OTHER)
    three.fetch(MARK, OTHER)
    assert not (three.work / MARK).exists()
    two.share(MARK, OTHER)
    assert read_bytes(remote / MARK) == f"second content of {MARK}".encode()
    (three.work / "screening").mkdir(parents=True)
    (three.work / OTHER).write_text("a file of this machine is kept")
    three.fetch_all("screening")
    assert (three.work / MARK).read_text() == f"second content of {MARK}"
    assert (three.work / OTHER).read_text() == "a file of this machine is kept"
