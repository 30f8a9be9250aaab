import errno
import os

import pytest

from bert_jax.text.files import expand_inputs


def test_directories_and_patterns_are_expanded_in_sorted_order(tmp_path):
    corpus = tmp_path / "corpus"
    (corpus / "sub").mkdir(parents=True)
    (corpus / ".hidden").mkdir()
    for name in (
        "b.txt",
        "a.jsonl.gz",
        "sub/c.parquet",
        "sub/_SUCCESS",
        ".hidden/x.txt",
        "LICENSE",
    ):
        (corpus / name).write_bytes(b"x")
    names = [str(corpus / name) for name in ("a.jsonl.gz", "b.txt", "sub/c.parquet")]
    assert expand_inputs([str(corpus)]) == names
    assert expand_inputs([str(corpus / "**" / "*.*")]) == names
    assert expand_inputs([str(corpus / "b.txt"), str(corpus), "tfds:x/y"]) == [
        names[1], names[0], names[2], "tfds:x/y",
    ]  # fmt: skip
    assert expand_inputs([str(corpus / "LICENSE")]) == [str(corpus / "LICENSE")]
    odd = corpus / "odd[1].txt"
    odd.write_text("x")
    assert expand_inputs([str(odd)]) == [str(odd)]


def test_links_to_directories_are_followed_once(tmp_path):
    corpus, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    (corpus / "a").mkdir(parents=True)
    elsewhere.mkdir()
    (corpus / "a" / "up").symlink_to(corpus)
    (corpus / "link").symlink_to(elsewhere)
    (corpus / "twice").symlink_to(elsewhere)
    (corpus / "a" / "in.txt").write_text("x")
    (elsewhere / "out.txt").write_text("x")
    assert expand_inputs([str(corpus)]) == [
        str(corpus / "a" / "in.txt"),
        str(corpus / "link" / "out.txt"),
    ]


def test_a_directory_that_cannot_be_listed_is_not_skipped(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path):  # Simulate a directory without read permission, which even root cannot list.
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="closed"):
        expand_inputs([str(tmp_path)])


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "in.jsonl")
    with pytest.raises(ValueError, match="is a pipe or a device, not a file"):
        expand_inputs([str(tmp_path / "in.jsonl")])


def test_missing_empty_and_unsupported_inputs_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "a.parquet.gz").write_text("x")
    for name, message in [
        ("missing.txt", r"missing\.txt: no such file or directory"),
        ("*.txt", r"\*\.txt: no file matches this pattern"),
        ("empty", "empty: no file in this directory has a supported suffix"),
        ("a.csv", r"cannot read \.csv files"),
        ("a.parquet.gz", r"cannot read a compressed Parquet file\. Decompress it first"),
    ]:
        with pytest.raises(ValueError, match=message):
            expand_inputs([str(tmp_path / name)])
    with pytest.raises(ValueError, match="No inputs"):
        expand_inputs([])
    with pytest.raises(
        ValueError, match=r"inputs='a\.txt': this is a single string\. Expected a list of paths"
    ):
        expand_inputs("a.txt")
