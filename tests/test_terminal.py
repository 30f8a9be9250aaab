"""Progress on a terminal is one line written over; in a file, a line every ten seconds."""

import sys
import time

import pytest

from bert_jax.terminal import ProgressLine, format_clock


@pytest.fixture
def now(monkeypatch):
    """The time, which only the test moves on: a list of one number."""
    seconds = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    return seconds


def show_all(line, now, count):
    for number in range(count):
        now[0] += 0.15
        line.show(lambda number=number: f"text {number}")
    line.end()


def test_in_a_file(now, capsys):
    show_all(ProgressLine(sys.stderr), now, 150)  # 22.5 s
    assert capsys.readouterr().err == "text 66\ntext 133\n"


def test_on_a_terminal(now, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show_all(ProgressLine(sys.stderr), now, 5)
    assert capsys.readouterr().err == "\rtext 1\x1b[K\rtext 3\x1b[K\rtext 4\x1b[K\n"


def test_nothing_shown_leaves_nothing(now, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ProgressLine(sys.stderr).end()
    assert capsys.readouterr().err == ""


def test_format_clock():
    assert [format_clock(seconds) for seconds in (0, 59.9, 3723, 90_000)] == [
        "0:00:00", "0:00:59", "1:02:03", "25:00:00",
    ]  # fmt: skip
