"""Test that parts of a corpus can be made in any order, and that merging them checks everything."""

import dataclasses
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from bert_jax.corpus.parts import Part, make_part, merge_parts, part_of
from bert_jax.corpus.prepare import make_corpus
from bert_jax.corpus.requests import check_request
from bert_jax.corpus.workspace import Workspace


@pytest.fixture
def request_corpus(corpus, tokenizer, prepare_options, tmp_path):
    """Return a function that describes the small corpus, to be written to tmp_path / "out"."""

    def make(*, inputs=corpus.inputs, heldout=(), workers=1, progress=None, **changes):
        options = dataclasses.replace(prepare_options, **changes)
        output = tmp_path / "out"
        return check_request(
            inputs, tokenizer, output, options, workers, progress, heldout, allow_unknown=False
        )

    return make


def test_merged_parts_equal_a_corpus_prepared_at_once(
    request_corpus, finished, tmp_path, checksums
):
    made = [make_part(request_corpus(), Part(index, 3)) for index in (2, 0, 1)]
    assert all(part.num_shards > 0 for part in made)
    assert sum(part.num_shards for part in made) == made[0].total_shards
    merge_parts(request_corpus())
    assert checksums(tmp_path / "out") == checksums(finished)
    # The corpus is already finished.
    assert make_part(request_corpus(), Part(0, 3)).num_shards == 0
    merge_parts(request_corpus())
    assert checksums(tmp_path / "out") == checksums(finished)


@pytest.mark.slow
def test_parts_with_held_out_inputs_equal_a_corpus_prepared_at_once(
    request_corpus, corpus, tokenizer, prepare_options, tmp_path, checksums
):
    first, second = corpus.inputs
    options = dataclasses.replace(prepare_options, heldout_fraction=0)
    make_corpus([first], tokenizer, tmp_path / "whole", options, 1, heldout_inputs=[second])
    settings = {"inputs": [first], "heldout": [second], "heldout_fraction": 0}
    for index in range(2):
        make_part(request_corpus(**settings), Part(index, 2))
    assert merge_parts(request_corpus(**settings)).heldout_repeats > 0
    assert checksums(tmp_path / "out") == checksums(tmp_path / "whole")


@pytest.mark.slow
def test_parts_run_at_the_same_time(request_corpus, finished, tmp_path, checksums):
    errors = []

    def run(index):
        try:
            make_part(request_corpus(), Part(index, 2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[index]) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    merge_parts(request_corpus())
    assert checksums(tmp_path / "out") == checksums(finished)


class Stopped(Exception):
    """An exception that a progress callback raises to stop a part."""


def test_a_stopped_part_is_continued(request_corpus, finished, tmp_path, checksums):
    def stop(progress):
        if progress.new_shards == 2:
            raise Stopped

    with pytest.raises(Stopped):
        make_part(request_corpus(progress=stop), Part(0, 2))
    make_part(request_corpus(), Part(1, 2))
    message = r"shards are missing, .*: (train|heldout)-\d+.* They belong to part 0/2\. Run"
    with pytest.raises(ValueError, match=message):
        merge_parts(request_corpus())
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not list((tmp_path / "out").glob("*.arrayrecord"))
    states = []
    make_part(request_corpus(progress=states.append), Part(0, 2))
    assert states[-1].shards - states[-1].new_shards == 2
    assert states[-1].fraction == pytest.approx(1)
    merge_parts(request_corpus())
    assert checksums(tmp_path / "out") == checksums(finished)


@pytest.mark.slow
def test_a_damaged_shard_is_named_and_made_again(request_corpus, finished, tmp_path, checksums):
    for index in range(2):
        make_part(request_corpus(), Part(index, 2))
    shard = tmp_path / "out" / ".work" / "train-00003.arrayrecord"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ValueError, match=r"1 of \d+ shards are missing, .*: train-00003\. They"):
        merge_parts(request_corpus())
    for index in range(2):
        make_part(request_corpus(), Part(index, 2))
    merge_parts(request_corpus())
    assert checksums(tmp_path / "out") == checksums(finished)


def test_a_merge_without_parts_is_refused(request_corpus, tmp_path):
    with pytest.raises(ValueError, match="contains no parts of a corpus"):
        merge_parts(request_corpus())
    assert not (tmp_path / "out").exists()


def test_parts_with_a_different_plan_are_refused(request_corpus, tmp_path):
    make_part(request_corpus(), Part(0, 2))
    changed = request_corpus(max_documents_per_record=2)
    message = "different settings: max_pieces was 4 and is now 2"
    with pytest.raises(ValueError, match=message):
        make_part(changed, Part(1, 2))
    with pytest.raises(ValueError, match=message):
        merge_parts(changed)


def test_a_part_that_is_running_is_not_started_again(request_corpus, monkeypatch):
    monkeypatch.setattr("bert_jax.corpus.part_workspace._PATIENCE_SECONDS", 0.2)
    refused = []

    def progress(_):
        if not refused:
            for run in (
                lambda: make_part(request_corpus(), Part(0, 2)),
                lambda: merge_parts(request_corpus()),
                lambda: make_part(request_corpus(max_length=128), Part(1, 2)),
            ):
                with pytest.raises(ValueError) as error:
                    run()
                refused.append(str(error.value))

    make_part(request_corpus(progress=progress), Part(0, 2))
    assert re.search("part 0/2 is already running", refused[0])
    assert re.search("another preparation is writing to it", refused[1])
    assert re.search("different settings: max_length was 64 and is now 128", refused[2])
    request = request_corpus()
    with (
        Workspace(request.output, request.plan),
        pytest.raises(ValueError, match="a merge, or a preparation that is not divided into parts"),
    ):
        make_part(request, Part(1, 2))


def test_an_input_that_changes_during_preparation_is_named(
    request_corpus, corpus, tmp_path, write_json_lines
):
    path = tmp_path / "in.jsonl"
    write_json_lines(path, corpus.texts)

    def change(_):
        write_json_lines(path, [text.replace("cat", "dog") for text in corpus.texts])

    make_part(request_corpus(inputs=[str(path)]), Part(0, 2))
    request = request_corpus(inputs=[str(path)])
    change(None)
    with pytest.raises(ValueError, match=r"in\.jsonl: this file changed while the corpus was"):
        make_part(request, Part(1, 2))


@pytest.mark.slow
def test_an_interrupted_merge_is_repeated(
    request_corpus, finished, tmp_path, monkeypatch, checksums
):
    for index in range(2):
        make_part(request_corpus(), Part(index, 2))
    with monkeypatch.context() as patch:
        patch.setattr("bert_jax.corpus.workspace.write_manifest", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            merge_parts(request_corpus())
    assert list((tmp_path / "out").glob("*.arrayrecord"))
    merge_parts(request_corpus())
    assert checksums(tmp_path / "out") == checksums(finished)


@pytest.mark.slow
def test_parts_killed_at_any_time_are_continued(corpus, finished, tmp_path, checksums):
    output = tmp_path / "out"
    words = [
        *(sys.executable, "-m", "bert_jax.cli.main", "prepare", "--input", *corpus.inputs),
        *("--tokenizer", finished / "tokenizer", "--output", output, "--workers", "2"),
        *("--max-length", "64", "--max-documents-per-record", "4", "--held-out", "0.1"),
        *("--unit-bytes", str(64 << 10)),
    ]
    for pattern, count in (("scans/*.json", 1), ("*-0*.json", 1), ("*-0*.json", 4)):
        parts = [
            subprocess.Popen([*words, "--part", f"{index}/2"], stderr=subprocess.DEVNULL)
            for index in range(2)
        ]
        while len(list((output / ".work").glob(pattern))) < count:
            assert all(part.poll() in (None, 0) for part in parts)
            time.sleep(0.002)
        for part in parts:
            part.send_signal(signal.SIGKILL)
            part.wait()
        merge = subprocess.run([*words, "--merge"], capture_output=True, text=True)
        assert merge.returncode == 2
        assert "have not been read" in merge.stderr or "They belong to part" in merge.stderr
        assert not (output / "manifest.json").exists()
    for index in range(2):
        subprocess.run([*words, "--part", f"{index}/2"], check=True, capture_output=True)
    subprocess.run([*words, "--merge"], check=True, capture_output=True)
    assert checksums(output) == checksums(finished)


@pytest.mark.parametrize("text", ["3/3", "1", "-1/2", "0/0", "a/b", "1/2/3"])
def test_a_part_that_does_not_exist_is_refused(text):
    with pytest.raises(ValueError, match=r"part=.*: expected I/N with I from 0 to N - 1"):
        Part.parse(text)


def test_every_unit_belongs_to_one_part(request_corpus):
    @dataclasses.dataclass
    class Span:
        name: str
        split: str
        num_text_bytes: int

    spans = [
        Span(f"{split}{number}", split, size)
        for split, sizes in (("train", [1, 2, 40, 3, 3, 3, 3]), ("heldout", [5]))
        for number, size in enumerate(sizes)
    ]
    for count in (1, 2, 3, 20):
        parts = [part_of(spans, Part(index, count)) for index in range(count)]
        assert sorted(span.name for part in parts for span in part) == sorted(
            span.name for span in spans
        )
