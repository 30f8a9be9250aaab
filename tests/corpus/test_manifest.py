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
    """Return a directory with two shards, a tokenizer file and their manifest."""
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
        max_fragments=1,
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


def test_a_written_manifest_is_read_unchanged(corpus):
    directory, manifest = corpus
    assert read_manifest(directory) == manifest
    assert not list(directory.glob("*.tmp"))
    content = json.loads((directory / "manifest.json").read_text())
    assert content["fingerprint"] == manifest.fingerprint
    assert content["max_pieces"] == manifest.max_fragments == 1
    assert content["train"]["num_pieces"] == manifest.train.num_fragments == 3


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


def test_the_fingerprint_covers_everything_seen_in_training(corpus):
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


def test_errors_explain_why_there_is_no_manifest(tmp_path):
    with pytest.raises(ValueError, match="none: this corpus does not exist. Prepare a corpus with"):
        read_manifest(tmp_path / "none")
    with pytest.raises(
        ValueError, match="not a corpus, since it has no manifest.json. Prepare a c"
    ):
        read_manifest(tmp_path)
    (tmp_path / "text.jsonl").touch()
    with pytest.raises(
        ValueError, match="is a file, not a corpus. Prepare a corpus with `bert-jax"
    ):
        read_manifest(tmp_path / "text.jsonl")
    (tmp_path / ".work").mkdir()
    with pytest.raises(ValueError, match="is not finished. Run the same `bert-jax prepare` again"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "manifest.json: not valid JSON: "),
        (lambda text: "[]", r"manifest\.json: expected a JSON object, got an array"),
        (lambda text: "{}", "manifest.json: damaged: missing key 'format_version'"),
        (lambda text: text.replace('"max_pieces"', '"pieces"'), "manifest.json: damaged: .*pieces"),
        (lambda text: text.replace('"num_tokens": 40', '"num_tokens": 41'), "damaged or edited"),
        (
            lambda text: text.replace('"format_version": 1', '"format_version": 9'),
            "format_version=9: this version of bert_jax expects 1. Prepare the corpus again",
        ),
    ],
)
def test_a_damaged_manifest_is_refused(corpus, damage, message):
    path = corpus[0] / "manifest.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=message):
        read_manifest(path.parent)


def test_a_manifest_that_is_not_text_is_refused(corpus):
    path = corpus[0] / "manifest.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"manifest\.json: not UTF-8 text \('utf-8' codec"):
        read_manifest(path.parent)


def test_verification_names_all_faulty_files(corpus):
    directory, manifest = corpus
    seen = []
    verify_shards(directory, manifest, lambda done, total: seen.append((done, total)))
    assert seen == [(3, 8), (8, 8)]
    (directory / "train-00000.arrayrecord").write_bytes(b"onE")
    (directory / "heldout-00000.arrayrecord").unlink()
    (directory / "tokenizer" / "vocab.txt").write_bytes(b"[pad]\n")
    with pytest.raises(ValueError) as error:
        verify_shards(directory, manifest)
    assert f"{directory}: 3 of 3 files differ" in str(error.value)
    assert f"{directory}/train-00000.arrayrecord is corrupt" in str(error.value)
    assert f"{directory}/heldout-00000.arrayrecord is missing" in str(error.value)
    assert f"{directory}/tokenizer/vocab.txt is corrupt" in str(error.value)
