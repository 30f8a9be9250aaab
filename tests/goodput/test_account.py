"""Test how the starts of a run are added up, on ledgers whose totals were computed by hand."""

import random

import pytest

from bert_jax.goodput.account import Account, Goodput
from bert_jax.goodput.categories import CATEGORIES
from bert_jax.goodput.entries import Entry


def start(time: float, began: float, step: int = 0, **seconds: float) -> Entry:
    return Entry("start", time, step, seconds, began=began, total_steps=100, peak_flops=50.0, pid=1)


def progress(time: float, step: int, tokens: float = 0.0, **seconds: float) -> Entry:
    flops, positions = 10 * tokens, 2 * tokens
    return Entry("progress", time, step, seconds, tokens, positions, flops)


def end(time: float, step: int, **seconds: float) -> Entry:
    return Entry("end", time, step, seconds, state="finished")


def total(*entries: Entry) -> Goodput:
    goodput = Account(entries).goodput()
    assert goodput is not None
    assert goodput.total_seconds == pytest.approx(sum(goodput.seconds.values()))
    assert set(goodput.seconds) == set(CATEGORIES)
    return goodput


KILLED = (
    start(1010, 1000, tpu_initialization=6, training_prep=4),
    progress(1020, 5, tokens=50, program_startup=5, productive=5),
    progress(1022, 5, unproductive_checkpoint_save_time=2),  # The run saves a checkpoint at step 5.
    progress(1030, 9, tokens=40, productive=8),
    progress(1031, 9, productive=1),  # The run is killed during step 10.
    start(1045, 1041, step=5, tpu_initialization=4),
    progress(1061, 10, tokens=50, productive=10, data_stall=6),
    end(1061, 10),
)


def test_lost_steps_and_idle_time_are_found() -> None:
    goodput = total(*KILLED)
    nonzero = {name: seconds for name, seconds in goodput.seconds.items() if seconds}
    assert nonzero == {
        "productive": 15,
        "tpu_initialization": 10,
        "training_prep": 4,
        "program_startup": 5,
        "unproductive_checkpoint_save_time": 2,
        "data_stall": 6,
        "wasted_progress_from_disruption": 9,
        "infrastructure_recovery_from_disruption": 10,
    }
    assert goodput.total_seconds == 61
    assert goodput.goodput == 15 / 61
    assert (goodput.starts, goodput.killed, goodput.repeated_steps) == (2, 1, 4)
    assert (goodput.step, goodput.state) == (10, "finished")
    assert (goodput.tokens, goodput.repeated_tokens) == (100, 40)
    assert goodput.training_seconds == 30
    assert goodput.tokens_per_second == 140 / 30
    assert goodput.overall_tokens_per_second == 100 / 61
    assert goodput.fill_rate == 0.5
    assert goodput.utilization == pytest.approx(1400 / 30 / 50)
    assert goodput.overall_utilization == pytest.approx(1000 / 61 / 50)
    assert goodput.stall == 6 / 30


def test_a_run_without_checkpoints_loses_everything() -> None:
    again = start(1045, 1041), progress(1055, 10, productive=10)
    goodput = total(*KILLED[:5], *again)
    assert goodput.seconds["wasted_progress_from_disruption"] == 14
    assert goodput.seconds["productive"] == 10
    assert (goodput.repeated_steps, goodput.state) == (9, None)


def test_going_back_without_a_restart_loses_steps_too() -> None:
    rewind = Entry("rewind", 1031, 5)
    goodput = total(*KILLED[:5], rewind, progress(1041, 10, productive=10))
    assert goodput.seconds["wasted_progress_from_disruption"] == 9
    assert goodput.seconds["productive"] == 15
    assert (goodput.starts, goodput.repeated_steps) == (1, 4)


def test_an_entry_that_spans_the_checkpoint_is_divided() -> None:
    # This happens only if the ledger could not be written for a while.
    goodput = total(*KILLED[:1], progress(1020, 10, productive=10), start(1030, 1020, step=4))
    assert goodput.seconds["productive"] == pytest.approx(4)
    assert goodput.seconds["wasted_progress_from_disruption"] == pytest.approx(6)


def test_each_step_counts_once_if_a_run_is_killed_at_random() -> None:
    rng = random.Random(0)
    entries: list[Entry] = []
    now, saved, lost = 0.0, 0, 0
    for _ in range(200):
        began = now + rng.random()
        now = began + 2
        entries.append(start(now, began, saved, training_prep=2))
        step = saved
        for _ in range(rng.randrange(8)):
            step, now = step + 1, now + 1
            entries.append(progress(now, step, tokens=7, productive=1))
            if rng.random() < 0.3:
                saved = step
        lost += step - saved
    goodput = total(*entries, start(now + 2, now, saved, training_prep=2))
    assert goodput.seconds["productive"] == pytest.approx(saved)
    assert goodput.seconds["wasted_progress_from_disruption"] == pytest.approx(lost)
    assert (goodput.tokens, goodput.repeated_tokens) == (7 * saved, 7 * lost)
    assert goodput.repeated_steps == lost


def test_an_empty_ledger_has_no_goodput() -> None:
    assert Account().goodput() is None
    with pytest.raises(ValueError, match="must be a start"):
        Account([progress(1, 1)])
