"""Test that a preparation stopped by a signal or a full disk never looks finished."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.corpus.prepare import make_corpus


def test_a_killed_worker_is_reported_and_its_unit_is_repeated(
    corpus, finished, tokenizer, tmp_path, prepare_options, checksums
):
    def kill_one(state):
        child = multiprocessing.active_children()[0]
        os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(
        OSError, match=r"preparing (train|heldout)-\d+ was killed by SIGKILL, .*mem"
    ):
        make_corpus(corpus.inputs, tokenizer, tmp_path, prepare_options, 1, kill_one)
    assert not multiprocessing.active_children()
    assert not (tmp_path / "manifest.json").exists()
    make_corpus(corpus.inputs, tokenizer, tmp_path, prepare_options, 1)
    assert checksums(tmp_path) == checksums(finished)


def command(inputs, tokenizer_directory, output):
    return [
        *(sys.executable, "-m", "bert_jax.cli.main", "prepare", "--input", *inputs),
        *("--tokenizer", str(tokenizer_directory), "--output", str(output), "--workers", "2"),
        *("--max-length", "64", "--max-documents-per-record", "4", "--held-out", "0.1"),
        *("--unit-bytes", str(64 << 10)),
    ]


def children(process_id):
    """Return the child processes of `process_id`, according to Linux's /proc."""
    process_ids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # The process has ended.
        if int(fields[1]) == process_id:
            process_ids.append(int(stat.parent.name))
    return process_ids


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
def test_a_preparation_killed_at_any_time_is_continued(corpus, finished, tmp_path, checksums):
    output = tmp_path / "out"
    words = command(corpus.inputs, finished / "tokenizer", output)
    for shards_before_kill in (0, 3, 9):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while len(list(output.glob(".work/*.json"))) < 1 + shards_before_kill:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.005)
        workers = children(process.pid)
        process.kill()
        process.wait()
        process.stderr.close()
        assert not (output / "manifest.json").exists()
        # Wait, since workers that are still starting up do not end together with their parent.
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{worker}/exe").exists() for worker in workers):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    run = subprocess.run(words, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "shards already existed" in run.stdout
    assert checksums(output) == checksums(finished)
    again = subprocess.run(words, capture_output=True, text=True)
    assert again.returncode == 0
    assert f"{output} is already finished and matches its checksums: nothing to do" in again.stdout


def test_a_full_disk_is_reported_and_the_preparation_continued(
    corpus, finished, tmp_path, checksums
):
    output = tmp_path / "out"
    words = command(corpus.inputs, finished / "tokenizer", output)

    # A limit of 64 KiB per file simulates a full disk without special permissions.
    limit = "import os, resource as r, sys; r.setrlimit(r.RLIMIT_FSIZE, (1 << 16, 1 << 16)); "
    limited = [sys.executable, "-c", limit + "os.execv(sys.argv[1], sys.argv[1:])", *words]
    run = subprocess.run(limited, capture_output=True, text=True)
    assert run.returncode == 2
    assert "cannot be written: " in run.stderr and "File too large" in run.stderr
    assert f"The finished shards are kept in {output}/.work" in run.stderr
    assert "Traceback" not in run.stderr
    assert not (output / "manifest.json").exists()
    assert not list(output.rglob("*.arrayrecord"))
    assert subprocess.run(words, stdout=subprocess.DEVNULL).returncode == 0
    assert checksums(output) == checksums(finished)


def test_an_interrupt_is_reported_and_leaves_no_finished_corpus(corpus, finished, tmp_path):
    output = tmp_path / "out"
    # Tests that run in the background ignore SIGINT, and their child processes inherit this.
    default_sigint = "import os, signal as s, sys; s.signal(s.SIGINT, s.SIG_DFL); "
    words = command(corpus.inputs, finished / "tokenizer", output)
    process = subprocess.Popen(
        [sys.executable, "-c", default_sigint + "os.execv(sys.argv[1], sys.argv[1:])", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(output.glob(".work/*-00000.json")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1].strip() == "bert-jax: interrupted"
    assert process.returncode == 130
    assert not (output / "manifest.json").exists()
