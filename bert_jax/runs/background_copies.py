"""Run a thread that copies a run's checkpoints to a bucket, and report when it fails."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from bert_jax.storage.errors import StorageError
from bert_jax.storage.lease import LeaseLostError
from bert_jax.storage.urls import ObjectUrl
from bert_jax.training.agreement import FailedElsewhere, ProcessMessages
from bert_jax.training.distributed import StopRequest, lost_process

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 10.0
# A process that ends because of an error waits this long for the other processes to begin copying
# their parts of a checkpoint. They may never begin, since they may be waiting for this process.
_HURRY_SECONDS = 10.0


class RunNotUploaded(OSError):
    """An error for files of a run that could not be copied; the bucket remains consistent."""


class BackgroundCopies(ABC):
    """A thread that copies files, which implements `Mirror`.

    Args:
      url: the run's URL.
      messages: messages to and from the other processes of the run; None if there are none.
    """

    def __init__(self, url: ObjectUrl, messages: ProcessMessages | None = None) -> None:
        self._url, self._messages = url, messages
        self._condition = threading.Condition()
        self._due: set[int] = set()
        self._busy = self._closing = self._settling = False
        self._failure: BaseException | None = None
        self._stop: StopRequest | None = None
        self._thread = threading.Thread(target=self._run, name="uploads", daemon=True)

    @property
    def divided(self) -> bool:
        """Whether each process has its part of a checkpoint on its own disk."""
        return self._messages is not None

    @abstractmethod
    def _copy(self, steps: Sequence[int], *, closing: bool) -> None:
        """Copy the checkpoints at `steps`, which are complete, and other files that are due."""

    @abstractmethod
    def _complete_steps(self) -> Iterable[int]:
        """Return the steps of the complete checkpoints in the bucket."""

    @contextmanager
    def running(self, stop: StopRequest | None = None) -> Iterator[None]:
        """Copy files during a `with` block, and copy all remaining changes at its end.

        Args:
          stop: a request to stop the run. If a run has several processes and one of them cannot
            copy a file, the request makes all of them stop at the same step.

        Raises:
          RunNotUploaded: a file cannot be copied.
        """
        self._stop = stop
        self._thread.start()
        try:
            yield
        except BaseException as error:
            with suppress(RunNotUploaded):  # Raise the error that ended the run.
                self._close_after(error)
            raise
        self._close()

    def _close_after(self, error: BaseException) -> None:
        if self._messages is None:
            self._close()
            return
        if lost_process(error) is not None:
            self._messages.abandon()
        timer = threading.Timer(_HURRY_SECONDS, self._messages.hurry)
        timer.daemon = True
        timer.start()
        try:
            self._close()
        finally:
            timer.cancel()
            with suppress(Exception):  # The first process, which stores messages, may have ended.
                self._messages.fail(f"a process has stopped: {error}")

    def _close(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
        self._raise_failure()

    def saved(self, step: int) -> None:
        """Start copying the checkpoint at `step` and all other files."""
        with self._condition:
            self._due.add(step)
            self._condition.notify_all()

    def settle(self) -> None:
        """Upload the changes made before training, and wait until they are copied.

        Raises:
          RunNotUploaded: a file cannot be copied.
        """
        with self._condition:
            self._settling = True
            self._condition.notify_all()
        self.raise_if_failed(wait=True)

    def raise_if_failed(self, *, wait: bool = False) -> None:
        """Raise RunNotUploaded if a file could not be copied; see `Mirror`."""
        with self._condition:
            while wait and self._failure is None and (self._due or self._busy or self._settling):
                self._condition.wait()
        if self.divided and not wait:
            # No process may stop before the others. They all raise the error at the next save.
            if self._failure is not None and self._stop is not None:
                self._stop.request()
                self._stop = None
            return
        self._raise_failure()

    def _raise_failure(self) -> None:
        with self._condition:
            failure = self._failure
        if failure is None:
            return
        if isinstance(failure, LeaseLostError):
            raise RunNotUploaded(str(failure)) from failure
        steps = ", ".join(map(str, sorted(self._complete_steps()))) or "none"
        raise RunNotUploaded(
            f"{self._url}: the run cannot be copied to the bucket: {_explained(failure)}. "
            f"The run has stopped; its checkpoints in the bucket are intact (steps: {steps}). Fix "
            "the cause, and run the same command again to resume."
        ) from failure

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._due or self._closing or self._settling, timeout=PERIOD_SECONDS
                )
                due, closing = sorted(self._due), self._closing
                self._busy = bool(due) or self._settling
                self._settling = False
                self._due.clear()
            try:
                if self._messages is not None:
                    self._messages.raise_if_failed()
                self._copy(due, closing=closing)
            except Exception as error:
                logger.debug("uploading failed", exc_info=True)
                self._fail(error)
                return
            with self._condition:
                self._busy = False
                self._condition.notify_all()
                if closing and not self._due:
                    return

    def _fail(self, error: Exception) -> None:
        if self._messages is not None and not isinstance(error, FailedElsewhere):
            with suppress(Exception):  # The first process, which stores messages, may have ended.
                self._messages.fail(_explained(error))
        with self._condition:
            self._failure, self._busy = error, False
            self._condition.notify_all()


def _explained(error: BaseException) -> str:
    text = error.explanation if isinstance(error, StorageError) else str(error)
    return text.rstrip(". ") or type(error).__name__
