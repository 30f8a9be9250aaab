"""Test that Apache Beam prepares the same corpus, even if it repeats steps or loses a worker."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.corpus.prepare import make_corpus, prepare
from bert_jax.corpus.requests import check_request

pytest.importorskip("apache_beam", reason="needs the extra `beam`, in a separate environment")
from bert_jax.corpus import beam_pipeline

# Beam and its workers warn about optional packages and open sockets.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

RUNNERS = {
    "one process": ["DirectRunner", ""],
    "two processes": [
        "DirectRunner",
        "--direct_running_mode=multi_processing --direct_num_workers=2",
    ],
    "another engine": ["BundleBasedDirectRunner", ""],
}


@pytest.fixture
def beam_request(corpus, tokenizer, prepare_options, tmp_path):
    """Return a function that describes the small corpus, to be written to tmp_path / "out"."""

    def make(inputs=corpus.inputs):
        output = tmp_path / "out"
        return check_request(
            inputs, tokenizer, output, prepare_options, 1, None, (), allow_unknown=False
        )

    return make


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_all_runners_prepare_the_same_corpus(beam_request, finished, tmp_path, checksums, runner):
    beam_pipeline.make_with_beam(beam_request(), *runner)
    assert checksums(tmp_path / "out") == checksums(finished)


def test_a_dask_cluster_prepares_the_same_corpus(beam_request, finished, tmp_path, checksums):
    pytest.importorskip("distributed", reason="needs apache-beam[dask]")
    dask = "apache_beam.runners.dask.dask_runner.DaskRunner"
    beam_pipeline.make_with_beam(beam_request(), dask, "")
    assert checksums(tmp_path / "out") == checksums(finished)


def test_steps_may_be_repeated_in_any_order(
    beam_request, finished, tmp_path, checksums, monkeypatch
):
    monkeypatch.setattr(beam_pipeline, "_CHUNK_BYTES", 4096)

    def run(runner, build, *arguments):
        """Run every step twice, and pass on the elements in a different order."""
        if build is beam_pipeline._add_scans:
            tasks, work = arguments
            for task in [*tasks, *reversed(tasks)]:
                beam_pipeline._scan(task, work)
            return
        inputs, reading, making = arguments
        reading.setup()
        making.setup()
        units = {}
        for element in [*inputs, *inputs]:
            for name, chunk in reading.process(element):
                units.setdefault(name, []).insert(0, chunk)
        for element in [*units.items(), *reversed(units.items())]:
            making.process(element)

    monkeypatch.setattr(beam_pipeline, "run_pipeline", run)
    beam_pipeline.make_with_beam(beam_request(), "DirectRunner", "")
    assert checksums(tmp_path / "out") == checksums(finished)


def test_a_bad_input_is_named_and_the_fixed_input_accepted(
    beam_request, corpus, tokenizer, prepare_options, tmp_path, write_json_lines, checksums
):
    path = tmp_path / "in.jsonl"
    write_json_lines(path, corpus.texts)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:250], '{"text": \n', *lines[250:]]))
    with pytest.raises(ValueError, match=r"in\.jsonl:251: not valid JSON"):
        beam_pipeline.make_with_beam(beam_request([str(path)]), "DirectRunner", "")
    assert not (tmp_path / "out" / "manifest.json").exists()
    path.write_text("".join(lines))
    beam_pipeline.make_with_beam(beam_request([str(path)]), "DirectRunner", "")
    make_corpus([str(path)], tokenizer, tmp_path / "whole", prepare_options, 1)
    assert checksums(tmp_path / "out") == checksums(tmp_path / "whole")


def workers_of(process_id: int) -> list[int]:
    """Return the Beam workers in the process group of a child of `process_id`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            command = (stat.parent / "cmdline").read_bytes().split(b"\0")
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            group = os.getpgid(int(stat.parent.name))
            leader = Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue  # The process has ended.
        worker = b"apache_beam.runners.worker.sdk_worker_main" in command
        if worker and parent != 1 and int(leader) == process_id:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_killed_worker_is_reported_and_its_work_repeated(corpus, finished, tmp_path, checksums):
    output = tmp_path / "out"
    words = [
        *(sys.executable, "-m", "bert_jax.cli.main", "prepare", "--input", *corpus.inputs),
        *("--tokenizer", finished / "tokenizer", "--output", output, "--max-length", "64"),
        *("--max-documents-per-record", "4", "--held-out", "0.1", "--unit-bytes", str(64 << 10)),
        *("--runner", "DirectRunner", f"--runner-args={RUNNERS['two processes'][1]}"),
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not list(output.glob(".work/beam/units.json")) or len(workers_of(process.pid)) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    workers = workers_of(process.pid)
    os.kill(workers[0], signal.SIGKILL)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 2
    assert "the Beam pipeline failed: a worker died: Worker subprocess exited" in error
    assert f"The finished shards are kept in {output}/.work" in error
    assert not any(Path(f"/proc/{worker}/exe").exists() for worker in workers)
    assert not (output / "manifest.json").exists()
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert checksums(output) == checksums(finished)


def test_unusable_runners_are_refused(corpus, tokenizer, tmp_path):
    for settings, message in (
        ({"runner": "NoRunner"}, "runner=NoRunner: Unexpected pipeline runner"),
        ({"runner": "DirectRunner", "runner_args": "'"}, "runner_args=': No closing quotation"),
        ({"runner_args": "--x=1"}, "runner_args=--x=1: no runner is set"),
        ({"runner": "DirectRunner", "merge": True}, "cannot be combined with runner"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare(corpus.inputs, tokenizer, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()
