"""Let all processes of a run fail together, and let their threads exchange messages."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar, cast

import jax
import numpy as np
from jax._src import distributed
from jax.experimental import multihost_utils

T = TypeVar("T")

_MAX_TEXT_BYTES = 4096
# The pause between two requests for messages grows, since other processes may take minutes to copy
# a checkpoint.
POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.1, 2.0
_FAILED = "failed"
# All processes open the same runs in the same order, so they count them in the same way.
_runs = itertools.count()


class FailedElsewhere(ValueError):
    """An error that another process of the run has raised."""


def on_all_processes(action: Callable[[], T]) -> T:
    """Perform an action on every process, and fail on all of them if it fails on any.

    All processes must call this together. A process on which the action succeeds would otherwise
    wait forever for the others in its next collective operation.

    Args:
      action: the action, which must not contain collective operations.

    Raises:
      FailedElsewhere: the action failed on another process, and this error has the same message. If
        the action fails on this process, its own error is raised instead.
    """
    result: T | None = None
    failure: Exception | None = None
    try:
        result = action()
    except Exception as error:
        failure = error
    if jax.process_count() > 1:
        texts = _gathered("" if failure is None else str(failure) or type(failure).__name__)
        first = next((index for index, text in enumerate(texts) if text), None)
        if failure is None and first is not None:
            where = f"process {first}: " if first else ""
            raise FailedElsewhere(where + texts[first])
    if failure is not None:
        raise failure
    return cast(T, result)


def _gathered(text: str) -> list[str]:
    """Return the texts of all processes, shortened to `_MAX_TEXT_BYTES`."""
    encoded = np.frombuffer(text.encode()[:_MAX_TEXT_BYTES], np.uint8)
    padded = np.zeros(_MAX_TEXT_BYTES, np.uint8)
    padded[: len(encoded)] = encoded
    rows = np.asarray(multihost_utils.process_allgather(padded, tiled=False))
    return [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in rows]


class ProcessMessages:
    """Messages from any thread of any process of a run to all threads of all processes.

    Collective operations can be used only by one thread, and only by all processes together. The
    messages are kept by JAX's coordination service, which runs in the first process.

    Every process must create these objects for the same runs in the same order.
    """

    def __init__(self) -> None:
        client = distributed.global_state.client
        assert client is not None, "there are several processes"
        self._client = client
        self._directory = f"bert_jax/run{next(_runs)}"
        self._hurried, self._abandoned = threading.Event(), threading.Event()

    def send(self, key: str, text: str = "-") -> None:
        """Send a message, or replace an earlier one with the same key."""
        self._client.key_value_set(f"{self._directory}/{key}", text, allow_overwrite=True)

    def remove(self, prefix: str) -> None:
        """Remove all messages whose keys begin with `prefix` and a slash."""
        self._client.key_value_delete(f"{self._directory}/{prefix}/")

    def fail(self, text: str) -> None:
        """Report to all processes why this one cannot continue."""
        self.send(f"{_FAILED}/{jax.process_index()}", text)

    def raise_if_failed(self) -> None:
        """Raise FailedElsewhere if any process cannot continue."""
        _raise_failure(self._received())

    def wait_for(self, keys: Iterable[str], *, begun: bool) -> dict[str, str]:
        """Wait for messages with all of these keys, and return all messages by key.

        Args:
          keys: the keys.
          begun: whether the other processes have already begun the work that they will report. If
            so, `hurry` does not end the wait.

        Raises:
          FailedElsewhere: a process cannot continue, or the wait was ended.
        """
        wanted, pause = set(keys), POLL_SECONDS
        while True:
            messages = self._received()
            _raise_failure(messages)
            if wanted <= messages.keys():
                return messages
            if self._abandoned.wait(pause) or (self._hurried.is_set() and not begun):
                raise FailedElsewhere("another process of this run has stopped")
            pause = min(1.5 * pause, _LONGEST_POLL_SECONDS)

    def hurry(self) -> None:
        """Stop waiting for other processes to begin something, since this process is ending."""
        self._hurried.set()

    def abandon(self) -> None:
        """Stop all waiting for other processes, since one of them was lost."""
        self._abandoned.set()

    def _received(self) -> dict[str, str]:
        """Return all messages by key."""
        messages = self._client.key_value_dir_get(f"{self._directory}/")
        return {key.removeprefix(f"{self._directory}/"): text for key, text in messages}


def _raise_failure(messages: Mapping[str, str]) -> None:
    """Raise FailedElsewhere with the text of the first process that cannot continue."""
    failed = {
        int(key.removeprefix(f"{_FAILED}/")): text
        for key, text in messages.items()
        if key.startswith(f"{_FAILED}/")
    }
    if failed:
        raise FailedElsewhere(failed[min(failed)])
