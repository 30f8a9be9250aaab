"""Retry requests that fail for temporary reasons, and report how long that took."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from bert_jax.storage.errors import Problem, storage_error
from bert_jax.storage.urls import ObjectUrl

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How long to keep trying. A store that does not answer for 30 s must not end a run.
BUDGET_SECONDS = 300.0
FIRST_DELAY, LONGEST_DELAY = 0.5, 20.0


def with_retries(
    request: Callable[[], T],
    classify: Callable[[BaseException], Problem | None],
    url: ObjectUrl,
    action: str,
) -> T:
    """Return the result of a request, repeating it while it fails with a transient problem.

    Delays grow exponentially from half a second to 20 s. Each delay is multiplied by a random
    factor between 0.5 and 1, so that many hosts do not repeat their requests at the same time. A
    request that succeeds in the end is logged once.

    Args:
      request: makes one attempt.
      classify: returns the problem behind an error.
      url: the object, for messages.
      action: the purpose of the request, such as "reading".

    Raises:
      StorageError: the request failed, or still fails after five minutes.
    """
    started, delay, attempts, cause = time.monotonic(), FIRST_DELAY, 0, ""
    while True:
        attempts += 1
        try:
            result = request()
        except Exception as error:
            problem, cause = classify(error), f"{type(error).__name__}: {error}".rstrip(": ")
            elapsed = time.monotonic() - started
            if problem != "transient":
                raise storage_error(url, problem, str(error)) from error
            if elapsed > BUDGET_SECONDS:
                detail = f"{attempts} attempts in {elapsed:.0f} s; the last one: {cause}"
                raise storage_error(url, problem, detail) from error
            time.sleep(delay * random.uniform(0.5, 1))
            delay = min(2 * delay, LONGEST_DELAY)
        else:
            if attempts > 1:
                logger.warning(
                    "%s: %s succeeded at attempt %d, after %.1f s (%s)",
                    url,
                    action,
                    attempts,
                    time.monotonic() - started,
                    " ".join(cause.split())[:200],
                )
            return result
