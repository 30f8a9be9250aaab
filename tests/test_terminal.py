"""Test that a terminal shows progress on one line, and a file gets a line every ten seconds."""

import sys
import time

import pytest

from bert_jax.terminal import ProgressLine, StatusLine, format_clock


@pytest.fixture
def now(monkeypatch):
    """Return a fake clock: a list that contains the time, which only the test changes."""
    seconds = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    return seconds


def show_all(line, now, count):
    for number in range(count):
        now[0] += 0.15
        line.show(lambda number=number: f"text {number}")
    line.end()


def test_a_file_gets_a_line_every_ten_seconds(now, capsys):
    show_all(ProgressLine(sys.stderr), now, 150)  # This takes 22.5 s on the fake clock.
    assert capsys.readouterr().err == "text 66\ntext 133\n"


def test_a_terminal_line_is_overwritten(now, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show_all(ProgressLine(sys.stderr), now, 5)
    assert capsys.readouterr().err == "\rtext 1\x1b[K\rtext 3\x1b[K\rtext 4\x1b[K\n"


def test_nothing_is_written_without_progress(now, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ProgressLine(sys.stderr).end()
    assert capsys.readouterr().err == ""


def test_a_status_line_is_replaced_by_all_other_output(now, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "7")
    with StatusLine(sys.stderr) as status:
        report = status.cleared_before(lambda text: print(text, file=sys.stderr))
        status.show("step 1 of 20")
        now[0] += 0.15
        status.show("too early")
        report("run 1")
        report("run 2")  # There is no progress line to remove.
        status.show("step 2")
    expected = "\rstep 1\x1b[K\r\x1b[Krun 1\nrun 2\n\rstep 2\x1b[K\r\x1b[K"
    assert capsys.readouterr().err == expected


def test_a_file_gets_no_status_line(now, capsys):
    with StatusLine(sys.stderr) as status:
        status.show("step 1")
        status.cleared_before(lambda text: print(text, file=sys.stderr))("run 1")
    assert capsys.readouterr().err == "run 1\n"


def test_format_clock():
    assert [format_clock(seconds) for seconds in (0, 59.9, 3723, 90_000)] == [
        "0:00:00", "0:00:59", "1:02:03", "25:00:00",
    ]  # fmt: skip
