"""Retry requests that fail for temporary reasons, and report how long the retries took."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from bert_jax.storage.errors import Problem, storage_error
from bert_jax.storage.urls import ObjectUrl

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The time in seconds after which a request is abandoned. A run must survive a store that does not
# respond for 30 s.
BUDGET_SECONDS = 300.0
# If a store has not responded to any request of this process, its address may be wrong. Attempts to
# connect to it are therefore abandoned earlier: after the first of these times in seconds, or after
# the second one if the address refuses connections.
FIRST_CONTACT_SECONDS, REFUSED_SECONDS = 60.0, 15.0
FIRST_DELAY, LONGEST_DELAY = 0.5, 20.0
# A request that keeps failing is reported after this time, but only one request per minute.
NOTICE_SECONDS, NOTICE_INTERVAL = 3.0, 60.0
# Classes in aiohttp, google-auth and botocore for connections that could not be opened.
_UNREACHABLE = frozenset(
    {
        *("ClientConnectorError", "ConnectionTimeoutError", "TransportError"),
        *("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError"),
    }
)


class Contacts:
    """The stores that have responded to this process, and the time of the last notice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answered: set[object] = set()
        self._noticed_at: float | None = None

    def answered(self, store: object) -> bool:
        """Return whether a store has responded to a request of this process."""
        with self._lock:
            return store in self._answered

    def note_answer(self, store: object) -> None:
        """Record that a store has responded to a request, even if with an error."""
        with self._lock:
            self._answered.add(store)

    def may_notice(self) -> bool:
        """Return whether the caller may log a notice: at most one is logged per minute."""
        now = time.monotonic()
        with self._lock:
            if self._noticed_at is not None and now - self._noticed_at < NOTICE_INTERVAL:
                return False
            self._noticed_at = now
            return True


contacts = Contacts()


def with_retries(
    request: Callable[[], T],
    classify: Callable[[BaseException], Problem | None],
    url: ObjectUrl,
    action: str,
    store: object = None,
    check: Callable[[], None] = lambda: None,
) -> T:
    """Return the result of a request, repeating it while it fails with a transient problem.

    Delays grow exponentially from half a second to 20 s. Each delay is multiplied by a random
    factor between 0.5 and 1, so that many hosts do not repeat their requests at the same time. If a
    request keeps failing for a few seconds, this is logged, and so is every request that succeeds
    only at a later attempt.

    Args:
      request: makes one attempt.
      classify: returns the problem that caused an error.
      url: the object, for messages.
      action: the purpose of the request, such as "reading".
      store: identifies the store. If it has never answered, connections to it are attempted only
        for a minute, or for 15 s if they are refused.
      check: called before every attempt; raises an error if the request may no longer be made. This
        function does not handle its errors.

    Raises:
      StorageError: the request failed, or still fails after five minutes.
    """
    started, delay, attempts, cause = time.monotonic(), FIRST_DELAY, 0, ""
    noticed = False
    while True:
        attempts += 1
        check()
        try:
            result = request()
        except Exception as error:
            problem, cause = classify(error), f"{type(error).__name__}: {error}".rstrip(": ")
            elapsed = time.monotonic() - started
            if problem != "transient":
                contacts.note_answer(store)
                raise storage_error(url, problem, str(error)) from error
            budget = _budget(error, store)
            if elapsed > budget:
                detail = f"{attempts} attempts in {elapsed:.0f} s; the last one: {cause}"
                raise storage_error(url, problem, detail) from error
            wait = min(delay * random.uniform(0.5, 1), budget - elapsed)
            if not noticed and elapsed + wait > NOTICE_SECONDS and contacts.may_notice():
                noticed = True
                logger.warning(
                    "%s: %s has failed for %.1f s and is retried for up to %.0f s (%s)",
                    url,
                    action,
                    elapsed,
                    budget - elapsed,
                    _brief(cause),
                )
            time.sleep(wait)
            delay = min(2 * delay, LONGEST_DELAY)
        else:
            contacts.note_answer(store)
            if attempts > 1:
                logger.warning(
                    "%s: %s succeeded at attempt %d, after %.1f s (%s)",
                    url,
                    action,
                    attempts,
                    time.monotonic() - started,
                    _brief(cause),
                )
            return result


def _budget(error: BaseException, store: object) -> float:
    """Return the time limit for attempts after an error, in seconds."""
    causes = _causes(error)
    if not any(kind.__name__ in _UNREACHABLE for each in causes for kind in type(each).__mro__):
        contacts.note_answer(store)
    if contacts.answered(store):
        return BUDGET_SECONDS
    refused = any(isinstance(each, ConnectionRefusedError) for each in causes)
    return min(BUDGET_SECONDS, REFUSED_SECONDS if refused else FIRST_CONTACT_SECONDS)


def _causes(error: BaseException) -> list[BaseException]:
    causes = []
    current: BaseException | None = error
    while current is not None:
        causes.append(current)
        current = current.__cause__ or current.__context__
    return causes


def _brief(cause: str) -> str:
    return " ".join(cause.split())[:200]
