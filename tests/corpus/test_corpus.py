"""Test that records can be read by number, and that a corpus must match its manifest."""

from __future__ import annotations

import pickle
import resource
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.manifest import read_manifest, write_manifest
from bert_jax.corpus.packing import TokenizedDocument, pack_documents
from bert_jax.corpus.records import encode_record
from bert_jax.corpus.synthetic import random_documents, write_corpus

VOCAB_SIZE = 1000
LENGTH = 64


@pytest.fixture(scope="module")
def documents() -> list[TokenizedDocument]:
    return random_documents(20_000, VOCAB_SIZE, seed=0)


@pytest.fixture(scope="module")
def prepared(documents, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    write_corpus(
        directory, documents, documents[:5], max_length=LENGTH, vocab_size=VOCAB_SIZE, num_shards=7
    )
    return directory


@pytest.fixture
def damaged(prepared, tmp_path) -> Path:
    """Return a copy of the corpus that a test may damage."""
    return Path(shutil.copytree(prepared, tmp_path / "copy"))


@pytest.fixture(scope="module")
def blobs(documents) -> list[bytes]:
    return [
        encode_record(fragments, 2) for fragments in pack_documents(documents, LENGTH, LENGTH // 32)
    ]


def test_records_of_all_shards_are_returned_in_the_given_order(prepared, blobs):
    corpus = Corpus(prepared, "train")
    assert len(corpus) == len(blobs)
    # Some indices occur several times.
    indices = np.random.default_rng(0).integers(0, len(blobs), 300)
    assert corpus.read(indices) == [blobs[index] for index in indices]
    assert corpus.read(np.arange(len(blobs))) == blobs
    assert corpus.read(np.array([], np.int64)) == []
    assert len(Corpus(prepared, "heldout")) == read_manifest(prepared).heldout.num_records


def test_a_number_outside_the_split_is_refused(prepared):
    corpus = Corpus(prepared, "train")
    for index in (-1, len(corpus)):
        with pytest.raises(IndexError):
            corpus.read(np.array([0, index]))


def test_a_pickled_copy_reads_the_same_records(prepared, blobs):
    corpus = Corpus(prepared, "train")
    corpus.read(np.array([3]))
    copy = pickle.loads(pickle.dumps(corpus))
    assert copy.read(np.array([3, 200])) == [blobs[3], blobs[200]]
    corpus.close()
    assert corpus.read(np.array([3])) == [blobs[3]]


def test_threads_can_share_a_corpus(prepared, blobs):
    corpus = Corpus(prepared, "train")
    wrong = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            indices = rng.integers(0, len(blobs), 20)
            wrong.extend(
                index
                for index, blob in zip(indices, corpus.read(indices), strict=True)
                if blob != blobs[index]
            )

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "open_at_once"),
    [(1024, 4096, None, 7), (12, 4096, 19, 7), (12, 14, 14, 5), (12, 12, 12, 3)],
)
def test_shards_stay_open_within_the_limit_on_open_files(
    prepared, blobs, monkeypatch, soft, hard, raised, open_at_once
):
    new_limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: new_limits.append(limits))
    corpus = Corpus(prepared, "train")
    assert new_limits == ([] if raised is None else [(raised, hard)])
    assert corpus.read(np.arange(len(blobs))) == blobs
    assert len(corpus._readers) == open_at_once


def test_opening_a_corpus_opens_no_shard(prepared):
    assert not Corpus(prepared, "train")._readers


def test_missing_and_truncated_shards_are_all_named(damaged):
    (damaged / "train-00001.arrayrecord").unlink()
    with open(damaged / "train-00004.arrayrecord", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError) as caught:
        Corpus(damaged, "train")
    assert "train-00001.arrayrecord is missing" in str(caught.value)
    assert "train-00004.arrayrecord has 1000 bytes instead of" in str(caught.value)
    # The held-out split can still be opened, because its shards are undamaged.
    Corpus(damaged, "heldout")


def test_a_shard_with_another_record_count_is_named(damaged):
    manifest = read_manifest(damaged)
    first, *others = manifest.train.shards
    shards = (replace(first, num_records=first.num_records - 1), *others)
    train = replace(
        manifest.train, shards=shards, num_records=sum(shard.num_records for shard in shards)
    )
    write_manifest(damaged, replace(manifest, train=train))
    with pytest.raises(ValueError, match="train-00000.* it has .* according to the manifest"):
        Corpus(damaged, "train").read(np.array([0]))


def test_an_error_names_the_shard_with_a_flipped_bit(damaged, blobs):
    path = damaged / "train-00002.arrayrecord"
    manifest = read_manifest(damaged)
    index = sum(shard.num_records for shard in manifest.train.shards[:2]) + 5
    content = bytearray(path.read_bytes())
    offset = content.find(blobs[index])
    assert offset > 0
    content[offset + 20] ^= 1
    path.write_bytes(content)
    corpus = Corpus(damaged, "train")
    with pytest.raises(ValueError, match="train-00002.arrayrecord: cannot be read"):
        corpus.read(np.array([index]))


def test_an_error_names_the_shard_and_number_of_a_corrupt_record(damaged, blobs):
    path = damaged / "train-00003.arrayrecord"
    manifest = read_manifest(damaged)
    before = sum(shard.num_records for shard in manifest.train.shards[:3])
    count = manifest.train.shards[3].num_records
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for within in range(count):
        blob = blobs[before + within]
        writer.write(blob if within != 4 else blob[:2] + b"\xff" * (len(blob) - 2))
    writer.close()
    assert path.stat().st_size == manifest.train.shards[3].num_bytes
    corpus = Corpus(damaged, "train")
    indices = np.array([before + 1, before + 4])
    with pytest.raises(ValueError, match="train-00003.arrayrecord: record 4 is corrupt"):
        corpus.decode(indices, corpus.read(indices))


def test_an_unfinished_directory_and_an_unknown_split_are_refused(prepared, tmp_path):
    with pytest.raises(ValueError, match="not a corpus, since it has no manifest.json"):
        Corpus(tmp_path, "train")
    with pytest.raises(ValueError, match="split='test': expected 'train' or 'heldout'"):
        Corpus(prepared, "test")  # type: ignore[arg-type]
