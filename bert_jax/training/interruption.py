"""Treat SIGTERM, SIGHUP and Ctrl-C as requests that all processes stop at the next step."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType, TracebackType

import jax
from jax.experimental import multihost_utils

# What a shell reports for a command ended by the signal.
TERMINATED = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT
HUNG_UP = 128 + signal.SIGHUP

_INTERRUPTED_TEXT = (
    b"\nstopping after the step under way (while starting: after the first), then saving; "
    b"press Ctrl-C again to leave earlier, after a save that has already begun\n"
)


class ToldToStop(Exception):
    """A run was told to stop in the middle of an evaluation or of predictions."""


class StopRequest:
    """Inside the `with` block SIGTERM, SIGHUP and a first Ctrl-C no longer kill; ask `stop_now`.

    Of several processes each has one, and all ask equally often: they agree upon a question, one
    that none of them has asked yet.

    A second Ctrl-C raises KeyboardInterrupt. Signals that were ignored before, such as SIGINT in a
    shell's background jobs or SIGHUP under `nohup`, remain ignored.

    exit_code: 143, 130 after a Ctrl-C, or 129 after SIGHUP.
    """

    def __init__(self) -> None:
        self.exit_code = TERMINATED
        self._signalled = False
        self._questions = 0
        self._previous: dict[int, signal._HANDLER] = {}
        # A closed terminal is no longer recognized as a terminal.
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def __enter__(self) -> StopRequest:
        # With several processes jax.distributed has its own handler, which tells all of them.
        if jax.process_count() == 1:
            self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._terminate)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            self._previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hang_up)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # SIGTERM last, since the other handlers rely on its handler.
        for signum, handler in reversed(self._previous.items()):
            signal.signal(signum, handler)

    def stop_now(self) -> bool:
        """Whether to save and leave; the same answer on every process."""
        if jax.process_count() == 1:
            return self._signalled
        # Not the step: before the first question JAX takes every process to be at 0, so that a
        # signal while a run resumes at step 1,000 would have all wait for question 1 for ever.
        self._questions += 1
        return multihost_utils.reached_preemption_sync_point(self._questions)

    def heed(self) -> None:
        """Raises ToldToStop when it is time to leave; asked after every batch of a long scoring."""
        if self.stop_now():
            raise ToldToStop

    def while_waiting(self) -> None:
        """Raise ToldToStop if this process has been signaled and is the run's only one.

        Meant for waits that may never end. One of several processes cannot stop during a wait: the
        others have already begun the step whose batch it lacks, so their states differ.
        """
        if self._signalled:
            raise ToldToStop

    def _terminate(self, signum: int, frame: FrameType | None) -> None:
        self._signalled = True

    def _hang_up(self, signum: int, frame: FrameType | None) -> None:
        """Stop as after SIGTERM; writes to the closed terminal would fail, so discard them."""
        self.exit_code = HUNG_UP
        for descriptor in self._terminals:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        os.kill(os.getpid(), signal.SIGTERM)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.exit_code = INTERRUPTED
        os.kill(os.getpid(), signal.SIGTERM)
        # Not by print, as the signal may have come in the middle of another one; and the reader of
        # a pipe, such as `tee`, got the same Ctrl-C and may be gone.
        with contextlib.suppress(OSError):
            os.write(2, _INTERRUPTED_TEXT)
