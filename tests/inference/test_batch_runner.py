"""Test that sequences run in only a few batch shapes, and that the package loads modules lazily."""

from __future__ import annotations

import subprocess
import sys

import jax
import numpy as np
import pytest

from bert_jax.inference.predictor import BatchRunner, row_lengths
from bert_jax.labeled_data.features import Features, Sequences

from ..commands import TIMEOUT


def features_of(lengths: list[int]) -> Features:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.concatenate([np.arange(n, dtype=np.int32) + 100 * n for n in lengths])
    return Features(Sequences(ids, starts, np.array(lengths)))


def sums(model, batch):
    assert model == "model"
    return {"sums": batch["token_ids"].sum(axis=1), "tokens": batch["token_ids"]}


@pytest.mark.parametrize("batch_size", [1, 3, 8, 50])
def test_every_example_gets_its_own_outputs(batch_size):
    lengths = np.random.default_rng(0).integers(1, 60, 45).tolist()
    runner = BatchRunner("model", 60, batch_size)
    rows = runner(sums, features_of(lengths))
    assert [int(row["sums"]) for row in rows] == [
        sum(100 * n + place for place in range(n)) for n in lengths
    ]
    assert runner.shapes <= {(batch_size, length) for length in (16, 32, 60)}


def test_few_sequences_run_in_small_batches():
    runner = BatchRunner("model", 512, 32)
    for count in (1, 2, 8, 9, 40):
        runner(sums, features_of([20] * count))
    assert runner.shapes == {(1, 32), (8, 32), (32, 32)}
    assert runner(sums, Features(Sequences(np.empty(0, np.int32), np.zeros(1), np.empty(0)))) == []


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="tests batches on a CPU")
def test_batches_of_long_rows_fit_into_the_caches_of_a_cpu():
    runner = BatchRunner("model", 512, 32)
    lengths = [512] * 24 + [16] * 20
    rows = runner(sums, features_of(lengths))
    assert [len(row["tokens"]) for row in rows] == lengths
    assert runner.shapes == {(8, 512), (32, 16)}


def test_a_batch_that_exceeds_memory_is_refused(monkeypatch):
    # On a CPU, the batch would be split instead.
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(ValueError, match="batch_size=1000000000000: a batch takes at least"):
        BatchRunner("model", 512, 10**12)(sums, features_of([20] * 9))
    assert len(BatchRunner("model", 512, 10**12)(sums, features_of([20] * 8))) == 8


def test_row_lengths():
    assert row_lengths(512) == (16, 32, 64, 128, 256, 512)
    assert row_lengths(40) == (16, 32, 40)
    assert row_lengths(16) == (16,) and row_lengths(5) == (5,)


def test_outputs_that_are_not_finite_are_an_error():
    def divided(_, batch):
        return {"scores": np.where(batch["token_ids"] == 300, np.nan, 1.0)}

    runner = BatchRunner("model", 16, 4)
    assert len(runner(divided, features_of([4, 2]))) == 2
    with pytest.raises(ValueError, match="the model's scores are not all finite. Check"):
        runner(divided, features_of([4, 3]))


def test_importing_the_package_does_not_import_jax():
    program = (
        "import sys, bert_jax; assert 'jax' not in sys.modules and 'numpy' not in sys.modules;"
        "assert {'FillMask', 'cosine_similarity'} <= set(dir(bert_jax)) >= set(bert_jax.__all__);"
        "assert not hasattr(bert_jax, 'FilMask');"
        "from bert_jax import *; assert Tag.heads == ('tagging',) and 'jax' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT)
