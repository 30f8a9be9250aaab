"""Test that parts of a corpus and Beam workers write the same files to a bucket as to a disk."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bert_jax.corpus.prepare import prepare, prepare_part
from bert_jax.filtering.options import FilterOptions
from bert_jax.storage import lease as lease_module
from bert_jax.storage.lease import Lease, LeaseHeldError
from bert_jax.storage.objects import find, list_directory, list_objects, remove
from bert_jax.storage.urls import ObjectUrl

from .conftest import Emulator
from .test_prepare import OPTIONS, OnDisk, checksums, checksums_on_disk, command, on_disk

__all__ = ["on_disk"]


@pytest.fixture(autouse=True)
def short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 4.0)
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 0.3)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.1)


def make(on_disk: OnDisk, output: ObjectUrl, part: str, **options: object) -> None:
    settings = {**OPTIONS, "workers": 1, **options}
    prepare_part(part, on_disk.text, on_disk.tokenizer, output, **settings)


@pytest.mark.slow
def test_merged_parts_in_a_bucket_equal_a_corpus_on_disk(
    on_disk: OnDisk, bucket: ObjectUrl, emulator: Emulator
) -> None:
    output = bucket / "corpora/parts"
    emulator.fail("status", 4, methods="POST PUT GET")
    for part in ("2/3", "0/3"):
        make(on_disk, output, part)
    assert emulator.faults_left() == 0
    merging = {**OPTIONS, "workers": 1, "merge": True}
    message = "shards are missing, damaged or made from other text: .* They belong to part 1/3."
    with pytest.raises(ValueError, match=f"{output}: .* {message}"):
        prepare(on_disk.text, on_disk.tokenizer, output, **merging)
    assert find(output / "manifest.json") is None
    with pytest.raises(ValueError, match="its parts were made with different settings: max_length"):
        make(on_disk, output, "1/3", max_length=32)
    with (
        Lease(output / ".work/part-1-of-3.lease", "run", "x"),
        pytest.raises(LeaseHeldError, match=f"output={output}: another run of part 1/3 is writing"),
    ):
        make(on_disk, output, "1/3")
    with (
        Lease(output / ".work/lease", "preparation", "x"),
        pytest.raises(LeaseHeldError, match="another preparation or merge is writing to it"),
    ):
        make(on_disk, output, "1/3")
    make(on_disk, output, "1/3")
    with (
        Lease(output / ".work/part-1-of-3.lease", "run", "x"),
        pytest.raises(LeaseHeldError, match="another part of the preparation is writing to it"),
    ):
        prepare(on_disk.text, on_disk.tokenizer, output, **merging)
    lost = next(info for info in list_directory(output)[0] if "train-00002" in info.url.name)
    remove(lost.url)
    with pytest.raises(ValueError, match=f"1 of .* shards are missing.*: {lost.url.name[:11]}"):
        prepare(on_disk.text, on_disk.tokenizer, output, **merging)
    for index in range(3):
        make(on_disk, output, f"{index}/3")  # Only the lost shard is made again.
    prepare(on_disk.text, on_disk.tokenizer, output, **merging)
    assert checksums(output) == checksums_on_disk(on_disk.corpus)
    make(on_disk, output, "0/3")  # The corpus is already finished.


@pytest.mark.slow
def test_parts_in_a_bucket_share_the_screening(
    on_disk: OnDisk, bucket: ObjectUrl, tmp_path: Path
) -> None:
    filters = FilterOptions(min_words=100, near_duplicates=0.8)
    settings = {**OPTIONS, "workers": 1, "filters": filters}
    prepare(on_disk.text, on_disk.tokenizer, tmp_path / "corpus", **settings)
    for part in ("1/2", "0/2"):
        make(on_disk, bucket / "filtered", part, filters=filters)
    prepare(on_disk.text, on_disk.tokenizer, bucket / "filtered", merge=True, **settings)
    assert checksums(bucket / "filtered") == checksums_on_disk(tmp_path / "corpus")


@pytest.mark.slow
def test_parts_killed_at_random_moments_are_continued(
    on_disk: OnDisk, bucket: ObjectUrl, tmp_path: Path
) -> None:
    output = bucket / "corpus"
    words = command(on_disk, str(on_disk.text), output)
    rng = random.Random(11)
    for attempt, num_files in enumerate((1, 3)):
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / f"machine{attempt}")}
        process = subprocess.Popen(
            [*words, "--part", "0/2"], stdout=subprocess.DEVNULL, env=environment
        )
        deadline = time.monotonic() + 120
        while sum(info.url.suffix == ".json" for info in list_objects(output)) < 1 + num_files:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for last in (["--part", "1/2"], ["--part", "0/2"], ["--merge"]):
        run = subprocess.run([*words, *last], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
    assert checksums(output) == checksums_on_disk(on_disk.corpus)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Beam and its workers warn about optional packages.
@pytest.mark.parametrize(
    "arguments", ["", "--direct_running_mode=multi_processing --direct_num_workers=2"]
)
def test_beam_prepares_the_same_corpus_in_a_bucket(
    on_disk: OnDisk, bucket: ObjectUrl, arguments: str
) -> None:
    pytest.importorskip("apache_beam", reason="needs the extra `beam`")
    engine = {"runner": "DirectRunner", "runner_args": arguments}
    settings = {**OPTIONS, "workers": 1, **engine}
    prepare(on_disk.text, on_disk.tokenizer, bucket / "corpus", **settings)
    assert checksums(bucket / "corpus") == checksums_on_disk(on_disk.corpus)
    bad = on_disk.text.with_name("bad.jsonl")
    bad.write_text(json.dumps({"text": "the cat saw a house."}) + "\n{\n")
    with pytest.raises(ValueError, match="bad.jsonl"):
        prepare([on_disk.text, bad], on_disk.tokenizer, bucket / "other", **settings)
    assert find(bucket / "other/manifest.json") is None
