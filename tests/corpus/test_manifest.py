import dataclasses
import hashlib
import json

import pytest

from bert_jax.corpus.manifest import (
    Manifest,
    ShardInfo,
    SplitInfo,
    read_manifest,
    verify_shards,
    write_manifest,
)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def corpus(tmp_path):
    """A directory of two shards, a tokenizer file and their manifest."""
    contents = {"train-00000.arrayrecord": b"one", "heldout-00000.arrayrecord": b"three"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_bytes(b"[PAD]\n")
    train, heldout = (
        SplitInfo((ShardInfo(name, 2, len(content), sha256(content)),), 2, 3, 2, 5, 40, 0.5)
        for name, content in contents.items()
    )
    manifest = Manifest(
        max_length=32,
        max_pieces=1,
        token_bytes=2,
        vocab_size=100,
        tokenizer_fingerprint="f" * 64,
        tokenizer_files={"vocab.txt": sha256(b"[PAD]\n")},
        lowercase=True,
        options={"language": "en"},
        sources=({"path": "/a.txt", "num_bytes": 12},),
        duplicates_removed=1,
        empty_documents=0,
        bad_lines_skipped=0,
        documents_split=0,
        train=train,
        heldout=heldout,
    )
    write_manifest(tmp_path, manifest)
    return tmp_path, manifest


def test_reads_back_equal(corpus):
    directory, manifest = corpus
    assert read_manifest(directory) == manifest
    assert not list(directory.glob("*.tmp"))
    shown = json.loads((directory / "manifest.json").read_text())
    assert shown["fingerprint"] == manifest.fingerprint


def test_an_older_manifest_without_unknown_counts_is_read(corpus):
    directory, manifest = corpus
    path = directory / "manifest.json"
    content = json.loads(path.read_text())
    for split in ("train", "heldout"):
        del content[split]["num_unknown"]
    path.write_text(json.dumps(content))
    assert read_manifest(directory).train.unknown_share is None
    counted = dataclasses.replace(
        manifest, train=dataclasses.replace(manifest.train, num_unknown=4)
    )
    assert counted.train.unknown_share == 0.1
    assert counted.fingerprint == manifest.fingerprint == content["fingerprint"]


def test_fingerprint_is_of_what_training_sees(corpus):
    _, manifest = corpus
    moved = dataclasses.replace(manifest, sources=({"path": "/b.txt", "num_bytes": 12},))
    assert moved.fingerprint == manifest.fingerprint
    shard = dataclasses.replace(manifest.train.shards[0], sha256=sha256(b"other"))
    train = dataclasses.replace(manifest.train, shards=(shard,))
    for other in (
        dataclasses.replace(manifest, train=train),
        dataclasses.replace(manifest, tokenizer_fingerprint="0" * 64),
        dataclasses.replace(manifest, max_length=33),
    ):
        assert other.fingerprint != manifest.fingerprint


def test_absent(tmp_path):
    with pytest.raises(ValueError, match="there is no such directory"):
        read_manifest(tmp_path / "none")
    with pytest.raises(ValueError, match="it has no manifest.json; `bert-jax prepare` makes one"):
        read_manifest(tmp_path)
    (tmp_path / "text.jsonl").touch()
    with pytest.raises(ValueError, match="that is a file; `bert-jax prepare` makes one of text"):
        read_manifest(tmp_path / "text.jsonl")
    (tmp_path / ".work").mkdir()
    with pytest.raises(ValueError, match="is not finished: run the same `bert-jax prepare` again"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "manifest.json: not valid JSON: "),
        (lambda text: "[]", r"manifest\.json: expected a JSON object, got an array"),
        (lambda text: "{}", "manifest.json: damaged: missing key 'format_version'"),
        (lambda text: text.replace('"max_pieces"', '"pieces"'), "manifest.json: damaged: .*pieces"),
        (lambda text: text.replace('"num_tokens": 40', '"num_tokens": 41'), "or was edited"),
        (
            lambda text: text.replace('"format_version": 1', '"format_version": 9'),
            "has format version 9, this bert_jax reads 1: prepare the corpus again",
        ),
    ],
)
def test_damaged(corpus, damage, message):
    path = corpus[0] / "manifest.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=message):
        read_manifest(path.parent)


def test_not_text(corpus):
    path = corpus[0] / "manifest.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"manifest\.json: not UTF-8 text \('utf-8' codec"):
        read_manifest(path.parent)


def test_verify_names_every_faulty_file(corpus):
    directory, manifest = corpus
    seen = []
    verify_shards(directory, manifest, lambda done, total: seen.append((done, total)))
    assert seen == [(3, 8), (8, 8)]
    (directory / "train-00000.arrayrecord").write_bytes(b"onE")
    (directory / "heldout-00000.arrayrecord").unlink()
    (directory / "tokenizer" / "vocab.txt").write_bytes(b"[pad]\n")
    with pytest.raises(ValueError) as error:
        verify_shards(directory, manifest)
    assert "3 of 3 files" in str(error.value)
    assert f"{directory}/train-00000.arrayrecord is corrupt" in str(error.value)
    assert f"{directory}/heldout-00000.arrayrecord is missing" in str(error.value)
    assert f"{directory}/tokenizer/vocab.txt is corrupt" in str(error.value)
