import signal
import sys
import time

import pytest

from bert_jax.uncaught import ignore_closed_loops, raise_lost_interrupts


def test_an_interrupt_in_a_garbage_collection_callback_is_not_lost(monkeypatch):
    class Interrupted:
        def __del__(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        raise_lost_interrupts()
        with pytest.raises(KeyboardInterrupt):
            Interrupted()
            time.sleep(5)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_only_a_closed_loop_is_not_printed(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: printed.append(error))
    ignore_closed_loops()
    other = RuntimeError("another")
    for error in (RuntimeError("Event loop is closed"), other, ValueError("Event loop is closed")):
        sys.excepthook(type(error), error, None)
    assert printed[0] is other and len(printed) == 2


def test_only_an_unraisable_closed_loop_is_not_printed(monkeypatch):
    class Failing:
        def __init__(self, error):
            self.error = error

        def __del__(self):
            raise self.error

    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: printed.append(str(event.exc_value)))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    ignore_closed_loops()
    for message in ("Event loop is closed", "another"):
        Failing(RuntimeError(message))
    assert printed == ["another"]
