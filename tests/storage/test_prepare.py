"""Test that a corpus prepared in a bucket equals one on disk, even if the process is killed."""

import dataclasses
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from bert_jax.corpus.bucket_workspace import BucketShards
from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.manifest import ShardInfo, json_fields, read_manifest, verify_shards
from bert_jax.corpus.prepare import prepare
from bert_jax.corpus.shards import UnitResult
from bert_jax.filtering.options import FilterOptions
from bert_jax.storage import lease as lease_module
from bert_jax.storage.exclusive_writes import ExclusiveWriter
from bert_jax.storage.lease import Lease, LeaseHeldError
from bert_jax.storage.objects import (
    find,
    list_objects,
    read_bytes,
    remove,
    upload_directory,
    write_bytes,
)
from bert_jax.storage.urls import ObjectUrl

from .conftest import Emulator

WORDS = "the a of cat dog house sea tree run ran see saw old new red blue and or not".split()
OPTIONS = {"max_length": 64, "held_out": 0.1, "unit_bytes": 32 << 10}
# Use leases that expire soon, so that a killed preparation can be continued without a long wait.
SHORT_LEASES = """
import sys
from bert_jax.storage import lease, retries
lease.LEASE_SECONDS, lease.RENEWAL_SECONDS, lease.POLL_SECONDS = 4.0, 0.5, 0.2
retries.FIRST_DELAY = 0.05
from bert_jax.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
# This code screens small blocks of documents slowly, and records their numbers in a file.
SMALL_BLOCKS = """
import os, time
from bert_jax.corpus import screened_blocks
screened_blocks.BLOCK_BYTES = 8_000
screen = screened_blocks.BlockScreener.screen
def record(self, block):
    time.sleep(0.05)
    screen(self, block)
    with open(os.environ["RECORD"], "a") as file:
        file.write(f"{block.number}\\n")
screened_blocks.BlockScreener.screen = record
"""


@dataclass(frozen=True)
class OnDisk:
    """Inputs, a tokenizer, and the corpus that was prepared from them."""

    text: Path
    tokenizer: Path
    corpus: Path


@pytest.fixture(scope="session")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> OnDisk:
    root = tmp_path_factory.mktemp("on_disk")
    rng = random.Random(5)
    lines = []
    for number in range(250):
        sentences = [" ".join(rng.choices(WORDS, k=12)) + "." for _ in range(rng.randint(2, 40))]
        lines.append(json.dumps({"text": f"{number} " + " ".join(sentences)}) + "\n")
    (root / "text.jsonl").write_text("".join(lines))
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    digits = [str(digit) for digit in range(10)]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    pieces = [*WORDS, *letters, *digits, *(f"##{piece}" for piece in [*letters, *digits])]
    (root / "vocab.txt").write_text("\n".join(dict.fromkeys([*specials, *pieces])))
    prepare(root / "text.jsonl", root / "vocab.txt", root / "corpus", workers=1, **OPTIONS)
    return OnDisk(root / "text.jsonl", root / "vocab.txt", root / "corpus")


def checksums_on_disk(directory: Path) -> dict[str, str]:
    return {
        file.relative_to(directory).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in directory.rglob("*")
        if file.is_file()
    }


def checksums(url: ObjectUrl) -> dict[str, str]:
    return {
        url.relative(info.url): hashlib.sha256(read_bytes(info.url)).hexdigest()
        for info in list_objects(url)
    }


@pytest.mark.slow
def test_a_corpus_in_a_bucket_equals_one_on_disk(
    on_disk: OnDisk, bucket: ObjectUrl, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 0.2)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.1)
    output = bucket / "corpora/small"
    emulator.fail("status", 5, methods="POST PUT")
    with Lease(output / ".work/lease", "preparation", "x"), pytest.raises(LeaseHeldError):
        prepare(on_disk.text, on_disk.tokenizer, output, workers=1, **OPTIONS)
    corpus = prepare(on_disk.text, on_disk.tokenizer, output, workers=1, **OPTIONS)
    assert corpus.path == output and emulator.faults_left() == 0
    assert checksums(output) == checksums_on_disk(on_disk.corpus)
    again = prepare(on_disk.text, on_disk.tokenizer, output, workers=1, **OPTIONS)
    assert again.manifest == corpus.manifest
    with pytest.raises(ValueError, match="a finished corpus with different settings: max_length"):
        prepare(on_disk.text, on_disk.tokenizer, output, **{**OPTIONS, "max_length": 32})
    with pytest.raises(ValueError, match=f"this is inside the corpus {output}"):
        prepare(on_disk.text, on_disk.tokenizer, output / "inner")
    with pytest.raises(ValueError, match="this directory is not empty"):
        prepare(on_disk.text, on_disk.tokenizer, bucket / "corpora")
    with pytest.raises(ValueError, match=f"{bucket}/other: contains no parts of a corpus"):
        prepare(on_disk.text, on_disk.tokenizer, bucket / "other", merge=True)
    missing = f"output={bucket.scheme}://no-such-bucket/x: the bucket 'no-such-bucket' does not"
    with pytest.raises(ValueError, match=missing):
        prepare(on_disk.text, on_disk.tokenizer, f"{bucket.scheme}://no-such-bucket/x")


@pytest.mark.slow
def test_a_corpus_that_was_finished_while_the_lease_was_held_is_not_changed(
    on_disk: OnDisk, bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.1)
    output, errors = bucket / "corpus", []

    def prepare_again() -> None:
        try:
            prepare(on_disk.text, on_disk.tokenizer, output, workers=1, **OPTIONS)
        except ValueError as error:
            errors.append(str(error))

    waiting, began_to_wait = threading.Thread(target=prepare_again), threading.Event()
    wait = lease_module.wait_until_free

    def wait_for_the_other(url: ObjectUrl, holder: str, setting: str) -> str:
        if setting == f"output={output}":
            began_to_wait.set()
        return wait(url, holder, setting)

    monkeypatch.setattr(lease_module, "wait_until_free", wait_for_the_other)
    with Lease(output / ".work/lease", "preparation", "x"):
        waiting.start()
        assert began_to_wait.wait(timeout=60)
        upload_directory(on_disk.corpus, output, "manifest.json")
    waiting.join(timeout=60)
    message = f"output={output}: another preparation has just finished this corpus. Run the same"
    assert len(errors) == 1 and message in errors[0]
    assert checksums(output) == checksums_on_disk(on_disk.corpus)


def test_only_complete_shards_are_kept(
    bucket: ObjectUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"train-{number:05d}" for number in range(24)]
    for name in names:
        shard = ShardInfo(f"{name}.arrayrecord", 1, 3, "0" * 64)
        result = UnitResult("digest", 3, 1, 0, 1, 1, 1, shard)
        content = json.dumps(dataclasses.asdict(result, dict_factory=json_fields))
        write_bytes(bucket / ".work" / f"{name}.json", content)
        write_bytes(bucket / f"{name}.arrayrecord", "abc")
    write_bytes(bucket / ".work/plan.json", "{}")
    write_bytes(bucket / ".work/train-00003.json", "{")
    write_bytes(bucket / "train-00004.arrayrecord", "ab")
    remove(bucket / "train-00005.arrayrecord")
    remove(bucket / ".work/train-00006.json")
    keeper = BucketShards(bucket, ExclusiveWriter(None))
    kept = [name for name in names if keeper.kept(tmp_path, name) is not None]
    assert kept == [name for name in names if name[-2:] not in ("03", "04", "05", "06")]
    assert not list((tmp_path / "cache").rglob("lock"))  # Nothing was read through the cache.

    # If a preparation is killed while it replaces a shard, no result for the old shard is left.
    def fail(*_: object) -> None:
        raise OSError("killed")

    monkeypatch.setattr(ExclusiveWriter, "upload", fail)
    keeper.keep(tmp_path, names[0])
    with pytest.raises(OSError, match="killed"):
        keeper.wait()
    keeper.close()
    assert BucketShards(bucket, ExclusiveWriter(None)).kept(tmp_path, names[0]) is None


@pytest.mark.slow
def test_documents_are_left_out_in_a_bucket_as_on_disk(
    on_disk: OnDisk, bucket: ObjectUrl, tmp_path: Path
) -> None:
    filters = FilterOptions(min_words=100, near_duplicates=0.8)
    outputs = [tmp_path / "corpus", bucket / "corpora/filtered"]
    for output in outputs:
        prepare(on_disk.text, on_disk.tokenizer, output, workers=1, filters=filters, **OPTIONS)
    found = checksums(bucket / "corpora/filtered")
    assert {"filters.html", "near_duplicates.jsonl"} < found.keys()
    assert found == checksums_on_disk(tmp_path / "corpus")
    verify_shards(outputs[1], read_manifest(outputs[1]))
    remove(bucket / "corpora/filtered/filters.html")
    with pytest.raises(ValueError, match="1 of .* files differ from .*filters.html is missing"):
        verify_shards(outputs[1], read_manifest(outputs[1]))


def command(
    on_disk: OnDisk, inputs: str, output: ObjectUrl, script: str = SHORT_LEASES
) -> list[str]:
    return [
        *(sys.executable, "-W", "ignore", "-c", script, "prepare", "--input", inputs),
        *("--tokenizer", str(on_disk.tokenizer), "--output", str(output), "--workers", "1"),
        *("--max-length", "64", "--held-out", "0.1", "--unit-bytes", str(32 << 10)),
    ]


@pytest.mark.slow
def test_a_preparation_killed_at_random_moments_is_continued(
    on_disk: OnDisk, bucket: ObjectUrl, emulator: Emulator, tmp_path: Path
) -> None:
    output, source = bucket / "corpus", bucket / "text.jsonl"
    write_bytes(source, on_disk.text.read_bytes())
    words = command(on_disk, str(source), output)
    rng = random.Random(7)
    for attempt, num_results in enumerate((0, 2, 5)):
        # Each attempt runs on a "machine" with an empty disk.
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / f"machine{attempt}")}
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment)
        deadline = time.monotonic() + 120
        while sum(info.url.suffix == ".json" for info in list_objects(output)) < 1 + num_results:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert find(output / "manifest.json") is None
    # More than five faults would only cause longer delays.
    emulator.fail("status", 5, methods="GET POST PUT")
    emulator.fail("stall", 1, seconds=25, path="arrayrecord")
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "shards already existed" in run.stdout
    here = {name: digest for name, digest in checksums(output).items() if name != "manifest.json"}
    there = checksums_on_disk(on_disk.corpus)
    del there["manifest.json"]
    # The manifests are not compared, since their source names differ.
    assert here == there
    before, now = (
        json.loads(text)
        for text in (
            (on_disk.corpus / "manifest.json").read_bytes(),
            read_bytes(output / "manifest.json"),
        )
    )
    assert now["sources"][0]["path"] == str(source)
    assert now["sources"][0]["sha256"] == before["sources"][0]["sha256"]
    assert {**now, "sources": None} == {**before, "sources": None}
    assert Corpus(on_disk.corpus, "train").manifest.fingerprint == now["fingerprint"]


@pytest.mark.slow
def test_screening_killed_at_random_moments_is_continued(
    on_disk: OnDisk, bucket: ObjectUrl, emulator: Emulator, tmp_path: Path
) -> None:
    """Results for blocks, and then the result for all documents, are used on other machines."""
    lines = on_disk.text.read_text().splitlines()
    copies = [line.replace(" cat ", " horse ", 1) for line in lines[::10]]
    text = tmp_path / "text.jsonl"
    text.write_text("\n".join([*lines, *copies]))
    filters = FilterOptions(min_words=50, near_duplicates=0.8, verify_near_duplicates=True)
    prepare(text, on_disk.tokenizer, tmp_path / "out", workers=1, filters=filters, **OPTIONS)
    output = bucket / "corpus"
    words = command(on_disk, str(text), output, SMALL_BLOCKS + SHORT_LEASES)
    words += ["--min-words", "50", "--near-duplicates", "0.8", "--verify-near-duplicates"]
    rng = random.Random(13)

    def uploaded() -> set[str]:
        return {output.relative(info.url) for info in list_objects(output)}

    def environment(attempt: int) -> dict[str, str]:
        # Each attempt runs on a "machine" with an empty disk.
        machine = tmp_path / f"machine{attempt}"
        return os.environ | {"XDG_CACHE_HOME": str(machine), "RECORD": f"{machine}.txt"}

    def screened(attempt: int) -> set[str]:
        record = tmp_path / f"machine{attempt}.txt"
        numbers = record.read_text().split() if record.exists() else []
        assert len(numbers) == len(set(numbers))
        return {f".work/screening/block-{int(number):06d}.jsonl" for number in numbers}

    moments = [".work/screening/block-000003.jsonl", ".work/screening/block-000015.jsonl"]
    moments += [".work/screened/result.json"]
    for attempt, moment in enumerate(moments):
        before = uploaded()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment(attempt))
        deadline = time.monotonic() + 120
        while moment not in uploaded():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(rng.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert screened(attempt) and not screened(attempt) & before
        assert find(output / "manifest.json") is None
    emulator.fail("status", 5, methods="GET POST PUT")
    run = subprocess.run(words, capture_output=True, text=True, env=environment(len(moments)))
    assert run.returncode == 0, run.stderr
    assert not screened(len(moments))
    assert checksums(output) == checksums_on_disk(tmp_path / "out")
    clusters = (tmp_path / "out/near_duplicates.jsonl").read_text().splitlines()
    assert len(clusters) > 15
