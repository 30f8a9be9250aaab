import errno
import os
import pickle
import sys

import pytest

from bert_jax.error_advice import file_message
from bert_jax.files import NotWritten, full_disk, write_file, writing
from bert_jax.finetuning.sweep_run import reports_to
from bert_jax.runs.outputs import new_directory
from bert_jax.training import reporting
from bert_jax.training.metrics_log import MetricsLog
from bert_jax.training.reporting import Reporter, TensorBoard
from bert_jax.training.reports import Message

# The messages with which TensorStore, array_record and SQLite report a full disk.
WORDS = (
    'RESOURCE_EXHAUSTED: Error writing local file "x": [OS error 28: ENOSPC No space left on '
    "device]",
    "write() failed: No space left on device; writing x.tmp; at byte 86016",
    "database or disk is full",
)


def full():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("words", WORDS)
def test_a_full_disk_is_recognized_by_library_messages(words):
    assert full_disk(ValueError(words))
    error = RuntimeError("saving failed")
    error.__cause__ = ValueError(words)
    assert full_disk(error)
    assert not full_disk(ValueError("RESOURCE_EXHAUSTED: Out of memory"))


def test_the_unwritten_file_is_named_with_the_cause_and_advice(tmp_path):
    with pytest.raises(NotWritten) as caught, writing(tmp_path / "outer"):
        with writing(tmp_path / "inner"):
            raise full()
    assert str(caught.value) == f"{tmp_path / 'inner'}: cannot be written: No space left on device"
    sentence = file_message(caught.value, "pretrain", sys.stdout)
    assert sentence.endswith("run the same command again to resume")
    assert "No incomplete file was left" in file_message(caught.value, "export", sys.stdout)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert file_message(ValueError("no such key"), "pretrain", sys.stdout) is None
    assert (
        file_message(ValueError("differ:\n  a\nGive the same command"), "pretrain", sys.stdout)
        is None
    )
    with pytest.raises(KeyError), writing(tmp_path):
        raise KeyError("a mistake of ours")


def test_system_errors_name_the_file(tmp_path):
    with pytest.raises(OSError) as caught:
        (tmp_path / ("x" * 300)).stat()
    assert file_message(caught.value, "export", sys.stdout).endswith("xxx: File name too long")
    assert file_message(full(), "export", sys.stdout) is None


def test_an_unfinished_directory_is_named_and_removed(tmp_path):
    output = tmp_path / "made/output"
    with pytest.raises(NotWritten, match="made/output: cannot be written: No space"):
        with new_directory(output) as target:
            (target / "part").write_text("x")
            raise ValueError(WORDS[0])
    assert not os.listdir(tmp_path)


def test_a_log_that_cannot_grow_is_named(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", start_step=0)
    log._file.close()
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(NotWritten, match="metrics.jsonl: cannot be written: No space"):
        log.append("train", 1, {"loss": 1.0})
    log.close()


def test_training_continues_without_tensorboard_events(tmp_path, caplog):
    board = TensorBoard(tmp_path, start_step=0)
    records = board._writer._py_recordio_writer
    records.close()
    records._writer = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    board.add({"train/loss": 1.0, "train/accuracy": 0.5}, step=1)
    board.add({"train/loss": 1.0}, step=2)
    board.close()
    records.close()
    [line] = caplog.messages
    assert line.startswith(f"{tmp_path / 'tensorboard'}: cannot be written: No space left")


def test_training_continues_without_curves(tmp_path, monkeypatch, caplog):
    def draw(log, output, *, title):
        with writing(output):
            raise full()

    monkeypatch.setattr(reporting, "draw_curves", draw)
    options = dict(start_step=0, peak_flops=None, tensorboard=False)
    reporter = Reporter(tmp_path, [(4, 1.0)], **options)
    reporter.evaluation(2, {"loss": 1.0})
    reporter.evaluation(4, {"loss": 0.5})
    reporter.close()
    [line] = caplog.messages
    assert line.startswith(f"{tmp_path / 'curves.png'}: cannot be written: No space left")


def test_files_are_written_atomically(tmp_path, monkeypatch):
    def fail(descriptor):
        raise full()

    path = tmp_path / "scores.json"
    write_file(path, "before")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(NotWritten, match="scores.json: cannot be written: No space"):
        write_file(path, "after")
    assert os.listdir(tmp_path) == ["scores.json"] and path.read_text() == "before"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_the_output_of_a_run_of_a_sweep_is_named(tmp_path):
    (tmp_path / "output.txt").symlink_to("/dev/full")
    with (
        pytest.raises(NotWritten, match="output.txt: cannot be written: No space"),
        reports_to(tmp_path / "output.txt") as report,
    ):
        report(Message("run"))
    with pytest.raises(FileNotFoundError), reports_to(tmp_path / "other.txt"):
        (tmp_path / "nothing").read_text()
