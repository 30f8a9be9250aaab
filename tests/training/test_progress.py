import pytest

from bert_jax.training.reporting import Progress
from bert_jax.training.reports import TrainReport, format_count, format_duration, format_metric


def test_eta_leaves_out_the_first_interval_and_keeps_pauses() -> None:
    now = 0.0
    progress = Progress([(1000, 1.0)], clock=lambda: now)
    now += 90.0  # Compilation takes 80 s, and each of 100 steps takes 0.1 s.
    assert progress.seconds_left(100) is None
    now += 10.0
    assert progress.seconds_left(200) == pytest.approx(80.0)
    now += 10.0 + 6.0  # An evaluation between the two reports takes 6 s.
    assert progress.seconds_left(300) == pytest.approx(26.0 / 200 * 700)
    now += 10.0
    assert progress.seconds_left(1000) == 0.0


def test_eta_follows_a_change_of_pace() -> None:
    now = 0.0
    progress = Progress([(100_000, 1.0)], clock=lambda: now)
    left = None
    for step in range(100, 6001, 100):
        now += 1.0
        left = progress.seconds_left(step)
    assert left == pytest.approx(940.0)
    # Because of other work on the machine, these steps are eight times slower.
    for step in range(6100, 12_001, 100):
        now += 8.0
        left = progress.seconds_left(step)
    assert left == pytest.approx(880 * 8.0)


def test_eta_accounts_for_longer_steps_later() -> None:
    now = 0.0
    progress = Progress([(900, 2.0), (100, 9.0)], clock=lambda: now)
    progress.seconds_left(100)
    now += 20.0
    assert progress.seconds_left(200) == pytest.approx(700 * 0.2 + 100 * 0.9)
    now += 700 * 0.2 + 50 * 0.9
    assert progress.seconds_left(950) == pytest.approx(50 * 0.9)


def test_a_progress_line_contains_every_figure() -> None:
    report = TrainReport(
        1200,
        100_000,
        {"loss": 5.3123, "mlm_loss": 4.6, "mlm_accuracy": 0.2412, "nsp_accuracy": 0.61},
        learning_rate=1.25e-3,
        tokens_per_second=607_123.0,
        utilization=0.412,
        stall=0.003,
        seconds_left=7500.0,
        seconds=2.0,
        steps=10,
        compiling=False,
    )
    assert str(report) == (
        "step   1,200/100,000  loss 5.312  mlm 24.1%  nsp 61.0%  lr 1.25e-03  607k tok/s  "
        "MFU 41.2%  stall 0.3%  ETA 2h 05m"
    )


def test_a_progress_line_leaves_out_unknown_figures() -> None:
    report = TrainReport(
        1,
        10,
        {"loss": 1.0},
        learning_rate=1e-3,
        tokens_per_second=7.0,
        utilization=None,
        stall=0.0,
        seconds_left=None,
        seconds=2.0,
        steps=10,
        compiling=False,
    )
    assert "MFU" not in str(report)
    assert str(report).endswith("ETA -")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7.25, "7.25"), (812, "812"), (999.7, "1k"), (18_400, "18.4k"), (4.1e6, "4.1M")],
)
def test_counts(value: float, text: str) -> None:
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (252, "4m 12s"),
        (7500, "2h 05m"),
        (400_000, "4d 15h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_metrics() -> None:
    assert format_metric("nsp_accuracy", 0.6123) == "61.2%"
    assert format_metric("loss", 5.37) == "5.370"
    assert format_metric("mlm_perplexity", 30522.0) == "30,522.0"
