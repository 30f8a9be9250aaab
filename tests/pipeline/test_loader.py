"""Test that batches do not depend on how they are read, and that each record is used once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.records import CorruptRecordError
from bert_jax.corpus.synthetic import random_documents, synthetic_vocabulary, write_corpus
from bert_jax.pipeline import batch_workers
from bert_jax.pipeline import loader as loaders
from bert_jax.pipeline.batch_workers import _portable
from bert_jax.pipeline.examples import Batch, ExampleConfig, ExampleSource
from bert_jax.pipeline.loader import BatchSource, EvaluationSource, Loader
from bert_jax.pipeline.masking import MaskingConfig

from ..commands import TIMEOUT

VOCAB_SIZE = 500
BATCH_SIZE = 12


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    documents = random_documents(6_000, VOCAB_SIZE, seed=0)
    write_corpus(directory, documents, documents[:4], max_length=64, vocab_size=VOCAB_SIZE)
    return directory


@pytest.fixture(scope="module")
def examples(prepared) -> ExampleSource:
    corpus = Corpus(prepared, "train")
    assert 2 * BATCH_SIZE < len(corpus) and len(corpus) % BATCH_SIZE
    return ExampleSource(corpus, synthetic_vocabulary(VOCAB_SIZE), ExampleConfig(seed=1))


@pytest.fixture(scope="module")
def source(examples) -> BatchSource:
    return BatchSource(examples, batch_size=BATCH_SIZE, num_steps=40)


def assert_equal(batch: Batch, other: Batch) -> None:
    assert batch.keys() == other.keys()
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


def stacked(batches: list[Batch]) -> Batch:
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def wait_until(condition: Callable[[], bool], seconds: float = TIMEOUT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was still false after {seconds} s"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def expected(source) -> list[Batch]:
    return [source[step] for step in range(len(source))]


def test_steps_run_through_consecutive_epochs(examples, expected):
    size = len(examples)
    all_rows = stacked([examples.examples(epoch, np.arange(size)) for epoch in range(5)])
    num_rows = 40 * BATCH_SIZE
    assert size < num_rows < 5 * size  # Several batches contain rows from two epochs.
    assert_equal(stacked(expected), {name: array[:num_rows] for name, array in all_rows.items()})


@pytest.mark.parametrize(
    "rows", [range(6, 12), [0, 3, 4, 11], [7], range(12)], ids=["run", "gaps", "one", "all"]
)
def test_a_process_makes_its_own_rows_of_the_same_batch(examples, expected, rows):
    rows = np.array(rows)
    source = BatchSource(examples, batch_size=BATCH_SIZE, num_steps=40, local_rows=rows)
    for step in (0, 7, len(examples) // BATCH_SIZE):
        assert_equal(source[step], {name: array[rows] for name, array in expected[step].items()})


@pytest.mark.parametrize(("batch_size", "steps"), [(4, 6), (24, 1)])
def test_the_examples_are_the_same_for_any_batch_size(examples, expected, batch_size, steps):
    other = BatchSource(examples, batch_size=batch_size, num_steps=steps)
    assert_equal(stacked([other[step] for step in range(steps)]), stacked(expected[:2]))


def test_a_later_phase_on_the_same_corpus_starts_with_a_later_epoch(examples):
    size = len(examples)
    later_phase = BatchSource(examples, batch_size=size, num_steps=1, first_epoch=2)
    assert_equal(later_phase[0], BatchSource(examples, batch_size=size, num_steps=3)[2])


def test_a_batch_larger_than_the_corpus_spans_several_epochs(examples):
    size = len(examples)
    batch = BatchSource(examples, batch_size=3 * size, num_steps=1)[0]
    for epoch in range(3):
        part = {name: array[epoch * size : (epoch + 1) * size] for name, array in batch.items()}
        assert_equal(part, examples.examples(epoch, np.arange(size)))


@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 0), (0, 3), (1, 1), (2, 2)])
def test_a_loader_gives_the_same_batches_for_any_workers(source, expected, num_workers, prefetch):
    with Loader(source, start_step=33, num_workers=num_workers, prefetch=prefetch) as loader:
        for step in range(33, 40):
            assert loader.step == step
            batch = next(loader)
            assert_equal(batch, expected[step])
            assert all(type(array) is np.ndarray for array in batch.values())
        with pytest.raises(StopIteration):
            next(loader)
    assert not multiprocessing.active_children()
    wait_until(lambda: not any(t.name == "batches" for t in threading.enumerate()))
    loader.close()
    with pytest.raises(ValueError, match="This loader is closed"):
        next(loader)


def test_a_loader_continues_from_its_step(source, expected):
    with Loader(source) as loader:
        for _ in range(5):
            next(loader)
        step = loader.step
    with Loader(source, start_step=step) as loader:
        assert_equal(next(loader), expected[5])


def test_a_late_start_makes_no_earlier_batches(examples, monkeypatch):
    source = BatchSource(examples, batch_size=BATCH_SIZE, num_steps=10**9)
    steps = []
    monkeypatch.setattr(
        BatchSource, "__getitem__", lambda self, step: steps.append(step) or {"step": step}
    )
    with Loader(source, start_step=900_000_000, prefetch=0) as loader:
        assert next(loader) == {"step": 900_000_000}
    assert steps == [900_000_000]


def test_workers_survive_signals_while_they_start(source, expected, interrupts_enabled):
    with Loader(source, start_step=38, num_workers=2) as loader:
        wait_until(lambda: len(multiprocessing.active_children()) == 2)
        for worker in multiprocessing.active_children():  # The workers are still importing modules.
            os.kill(worker.pid, signal.SIGINT)
            os.kill(worker.pid, signal.SIGTERM)
        for step in (38, 39):
            assert_equal(next(loader), expected[step])


def test_a_loader_at_the_end_yields_no_batches(source):
    with Loader(source, start_step=40) as loader:
        assert list(loader) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_of_the_loader_name_a_damaged_shard(prepared, tmp_path, num_workers):
    for file in prepared.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    source = BatchSource(
        ExampleSource(
            Corpus(tmp_path, "train"), synthetic_vocabulary(VOCAB_SIZE), ExampleConfig(seed=1)
        ),
        batch_size=BATCH_SIZE,
        num_steps=4,
    )
    shard = tmp_path / "train-00000.arrayrecord"
    shard.write_bytes(bytes(shard.stat().st_size))
    with Loader(source, num_workers=num_workers) as loader:
        with pytest.raises(ValueError, match="train-00000.arrayrecord: cannot be read"):
            next(loader)
    assert not multiprocessing.active_children()


def test_errors_name_a_killed_worker_and_the_signal(source):
    with Loader(source, num_workers=2) as loader:
        next(loader)
        wait_until(lambda: len(multiprocessing.active_children()) == 2)
        # This process makes the batches for odd steps. Batches that it has already sent still
        # arrive.
        os.kill(second_worker(loader), signal.SIGKILL)
        with pytest.raises(
            OSError,
            match=r"^data worker 2 of 2 was killed by SIGKILL, .* memory\. Use fewer workers",
        ):
            for _ in loader:
                pass
        assert not multiprocessing.active_children()
        with pytest.raises(ValueError, match="This loader is closed"):
            next(loader)


def second_worker(loader: Loader) -> int:
    return loader._workers[1]._process.pid


def test_an_unexpected_error_in_a_worker_keeps_its_type_and_traceback(expected):
    source = {0: expected[0], 7: expected[1]}  # Batch 1 is missing.
    with Loader(source, num_workers=1) as loader:
        assert_equal(next(loader), expected[0])
        with pytest.raises(KeyError) as caught:
            next(loader)
    assert "in _serve" in "".join(caught.value.__notes__)
    assert not multiprocessing.active_children()


def test_an_error_that_cannot_be_unpickled_arrives_with_its_message():
    error = _portable(CorruptRecordError(3, "truncated"))
    assert type(error) is ValueError
    assert str(error) == "record 3 of the decoded records is corrupt: truncated"
    assert "CorruptRecordError: record 3" in "".join(error.__notes__)


class Stopped(Exception):
    """An exception that `stop` raises to end a wait."""


def stop() -> None:
    raise Stopped


def test_a_wait_for_a_hanging_worker_can_be_ended(source, monkeypatch):
    monkeypatch.setattr(loaders, "_OVERDUE_SECONDS", 0.1)
    with Loader(source, num_workers=2, while_waiting=stop) as loader:
        loader._while_waiting = lambda: None  # Do not stop while the processes are starting.
        next(loader)
        next(loader)
        loader._while_waiting = stop
        os.kill(second_worker(loader), signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(Stopped):
            for _ in loader:
                pass
    assert time.monotonic() - began < 10
    assert not multiprocessing.active_children()


def test_a_wait_for_a_hanging_file_system_can_be_ended(expected, monkeypatch, caplog):
    monkeypatch.setattr(loaders, "_OVERDUE_SECONDS", 0.7)
    monkeypatch.setattr(loaders, "_WARNED_SECONDS", 0.1)
    monkeypatch.setattr(batch_workers, "_CLOSING_SECONDS", 0.1)
    hangs = threading.Event()

    class Source(list):
        def __getitem__(self, step: int) -> Batch:
            if step == 1:
                hangs.wait(TIMEOUT)
            return super().__getitem__(step)

    with Loader(Source(expected), while_waiting=stop) as loader:
        assert_equal(next(loader), expected[0])
        with pytest.raises(Stopped):
            next(loader)
    hangs.set()
    (warning,) = caplog.messages
    assert warning.startswith("The data thread has not made a batch for ")


@pytest.mark.parametrize("batch_size", [1, 7, 40])
@pytest.mark.parametrize("process_count", [1, 2])
def test_evaluation_uses_every_record_once(prepared, batch_size, process_count):
    corpus = Corpus(prepared, "heldout")
    examples = ExampleSource(
        corpus, synthetic_vocabulary(VOCAB_SIZE), ExampleConfig(seed=9, sentence_pairs="none")
    )
    size = len(corpus)
    assert size % 7 and size < 80
    total = batch_size * process_count
    shares = [
        EvaluationSource(examples, batch_size=total, local_rows=rows)
        for rows in np.arange(total).reshape(process_count, batch_size)
    ]
    assert len(shares[0]) == -(-size // total)
    batch = stacked([share[step] for step in range(len(shares[0])) for share in shares])
    assert_equal(
        {name: array[:size] for name, array in batch.items()},
        examples.examples(0, np.arange(size)),
    )
    for name, array in batch.items():
        padding = examples.vocabulary.pad_id if name == "token_ids" else 0
        assert (array[size:] == padding).all(), name
    with pytest.raises(IndexError):
        shares[0][len(shares[0])]


@pytest.mark.parametrize("limit", [1, 9, 10_000])
def test_evaluation_of_some_records_uses_the_first_ones(prepared, limit):
    corpus = Corpus(prepared, "heldout")
    examples = ExampleSource(
        corpus, synthetic_vocabulary(VOCAB_SIZE), ExampleConfig(seed=9, sentence_pairs="none")
    )
    source = EvaluationSource(examples, batch_size=4, max_records=limit)
    size = min(limit, len(corpus))
    assert len(source) == -(-size // 4)
    batch = stacked([source[step] for step in range(len(source))])
    assert_equal(
        {name: array[:size] for name, array in batch.items()},
        examples.examples(0, np.arange(size)),
    )
    assert not batch["masked_weights"][size:].any()


def test_numbers_out_of_range_are_refused(examples, source):
    for rows in ([], [-1, 0], [3, BATCH_SIZE], [1, 1], [2, 1]):
        with pytest.raises(
            ValueError, match="local_rows=.*: expected ascending numbers from 0 to 11"
        ):
            BatchSource(
                examples, batch_size=BATCH_SIZE, num_steps=1, local_rows=np.array(rows, np.int64)
            )
    with pytest.raises(ValueError, match="start_step=41: expected 0 to 40"):
        Loader(source, start_step=41)
    with pytest.raises(ValueError, match="num_workers=-1, prefetch=2: both must be at least 0"):
        Loader(source, num_workers=-1)
    with pytest.raises(ValueError, match="num_workers=1, prefetch=0: both must be at least 0"):
        Loader(source, num_workers=1, prefetch=0)
    with pytest.raises(IndexError):
        source[40]


PROGRAM = """
import sys, time
from bert_jax.pipeline import batch_workers
from bert_jax.pipeline import loader as loaders
from bert_jax.pipeline.batch_workers import _portable
from bert_jax.corpus.corpus import Corpus
from bert_jax.pipeline.loader import BatchSource, Loader
from bert_jax.pipeline.examples import ExampleConfig, ExampleSource
from bert_jax.corpus.synthetic import synthetic_vocabulary

if __name__ == "__main__":
    examples = ExampleSource(
        Corpus(sys.argv[1], "train"), synthetic_vocabulary(500), ExampleConfig(seed=1)
    )
    loader = Loader(BatchSource(examples, batch_size=12, num_steps=1000), num_workers=1)
    batch = next(loader)
    print("ready", flush=True)
    if sys.argv[2] == "wait":
        time.sleep(60)
"""


def start(tmp_path: Path, prepared: Path, action: str) -> subprocess.Popen[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, str(program), str(prepared), action],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def members(group: int) -> list[str]:
    """Return the ids of the processes in a process group, read from Linux's /proc."""
    process_ids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            process_ids.append(stat.parent.name)
    return process_ids


def test_a_program_that_does_not_close_its_loader_ends_cleanly(prepared, tmp_path):
    process = start(tmp_path, prepared, "end")
    output, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, output, errors) == (0, "ready\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="lists processes through /proc")
def test_workers_survive_signals_but_not_their_parent(prepared, tmp_path):
    process = start(tmp_path, prepared, "wait")
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    workers = [pid for pid in members(process.pid) if int(pid) != process.pid]
    assert workers
    for pid in workers:
        if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(int(pid), signal.SIGINT)
            os.kill(int(pid), signal.SIGTERM)
    time.sleep(0.3)
    assert set(workers) <= set(members(process.pid))
    # Named shared memory would remain after the whole process group was killed.
    for pid in (*workers, process.pid):
        assert "/dev/shm/" not in Path(f"/proc/{pid}/maps").read_text()
    process.kill()
    process.communicate(timeout=TIMEOUT)
    wait_until(lambda: not members(process.pid))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"final_rate": 0.2}, np.linspace(0.4, 0.2, 9)),
        ({"later_rates": (0.3, 0.2)}, np.repeat([0.4, 0.3, 0.2], 3)),
    ],
)
def test_a_masking_rate_changes_from_the_first_step_to_the_last(
    prepared, make_source, change, expected
):
    masking = MaskingConfig(rate=0.4, **change)
    examples = make_source(prepared, sentence_pairs="none", masking=masking)

    def share(batch: Batch) -> float:
        words = np.isin(batch["token_ids"], examples.vocabulary.special_ids[:4], invert=True)
        masked = batch["token_ids"] == examples.vocabulary.mask_id
        return batch["masked_weights"].sum() / (words | masked).sum()

    first = BatchSource(examples, batch_size=16, num_steps=5, run_steps=9)
    second = BatchSource(examples, batch_size=16, num_steps=4, first_step=5, run_steps=9)
    shares = [share(source[step]) for source in (first, second) for step in range(len(source))]
    np.testing.assert_allclose(shares, expected, atol=0.01)
    # Every batch has room for the predictions at the highest masking rate, so shapes never change.
    assert {source[3]["masked_positions"].shape for source in (first, second)} == {
        (16, masking.max_predictions(examples.length))
    }
    # The masking rate is an explicit input: apart from that, examples do not depend on the step.
    given = examples.examples(0, np.arange(16), masking.rate_at(0, 9))
    assert_equal(first[0], given)
    with Loader(second, start_step=2, num_workers=1, prefetch=1) as loader:
        assert_equal(next(loader), second[2])
    held_out = EvaluationSource(examples, batch_size=16)[0]
    assert share(held_out) == pytest.approx(0.2, abs=0.01)
    assert held_out["masked_positions"].shape == first[0]["masked_positions"].shape
    # The random draws do not depend on the rate, so a higher rate only adds predictions.
    last_step = BatchSource(examples, batch_size=16, num_steps=5)[4]
    predictions = [
        {
            (row, int(batch["masked_positions"][row, column]))
            for row, column in zip(*np.nonzero(batch["masked_weights"]), strict=True)
        }
        for batch in (last_step, first[4])
    ]
    assert predictions[0] < predictions[1]
