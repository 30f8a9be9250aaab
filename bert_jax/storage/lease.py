"""Let only one process at a time write below a URL, by means of a lease that expires.

A lease is an object with the name of its owner. The owner creates it only if it does not exist, and
removes it at the end. In the meantime, a thread renews it by replacing exactly the version that was
written last. Another process may replace a lease that its owner has not renewed for
`LEASE_SECONDS`. The other process watches the lease for that long instead of comparing timestamps,
so the clocks of two machines may differ.

A lease by itself does not prevent late writes. A process may be suspended between `Lease.check` and
its write, or the network may deliver a request late, and another process may take the lease over in
the meantime. No store can make a write conditional on another object, so the holder of a lease must
make late writes harmless in one of two ways:

- Each write replaces only the version of an object that the process has seen, so the store rejects
  late writes (see `exclusive_writes`).
- The names of the objects contain the number of the holder, so no process reads late writes (see
  `runs.run_index`).

Both ways require a store that checks conditions on writes: `ifGenerationMatch` in GCS, and
`If-Match` and `If-None-Match` in S3. Whether a store does so is tested whenever a lease is taken.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from bert_jax.storage.errors import ConflictError, MissingObjectError, StorageError
from bert_jax.storage.objects import find, read_versioned, remove, write_bytes
from bert_jax.storage.store import ABSENT
from bert_jax.storage.urls import ObjectUrl

logger = logging.getLogger(__name__)

# An owner can renew its lease within this time even after a short outage of the store.
LEASE_SECONDS = 90.0
RENEWAL_SECONDS = 10.0
POLL_SECONDS = 1.0
# Versions that no object has.
_NO_VERSION = {"gs": "1", "s3": f'"{0:032x}"'}
_TAKEN = "another process took over its lease"


class LeaseHeldError(ValueError):
    """An error for a lease that another process holds."""


class LeaseLostError(OSError):
    """An error for a lease that another process took over."""


def clock() -> float:
    """Return the seconds on a clock that also runs while the process or machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME if _HAS_BOOTTIME else time.CLOCK_MONOTONIC)


_HAS_BOOTTIME = hasattr(time, "CLOCK_BOOTTIME")  # only on Linux


class Lease:
    """A context manager that holds a lease; see the module's description.

    Attributes:
      took_over: whether this process replaced an expired lease. If so, late writes of the former
        holder may still reach the store.
      predecessor: the owner of the expired lease that this one replaced; "" if there was none.
    """

    def __init__(self, url: ObjectUrl, holder: str, setting: str, within: Lease | None = None):
        """Create the object without taking the lease.

        Args:
          url: the object that represents the lease.
          holder: the kind of process that holds the lease, such as "preparation", for messages.
          setting: the option with the URL that the lease protects, such as
            "output=gs://bucket/corpus".
          within: a broader lease that this process already has. If the broader lease was taken over
            from a killed process, the new lease is taken over from the same process without
            waiting.
        """
        self._url, self._holder, self._setting = url, holder, setting
        self._within, self.predecessor = within, ""
        self.took_over = False
        self._owner: str = uuid.uuid4().hex if within is None else within._owner
        self._version = ABSENT
        self._renewals = 0
        self._renewed_at = 0.0
        self._lost = ""
        self._lock = threading.Lock()  # This lock is held while the lease is renewed.
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="lease", daemon=True)

    def __enter__(self) -> Lease:
        """Take the lease, waiting up to `LEASE_SECONDS` for a killed process's lease to expire.

        Raises:
          LeaseHeldError: another process holds the lease and renews it.
          ValueError: the store ignores conditions on writes.
          StorageError: the object cannot be written.
        """
        while True:
            try:
                expired = self._free_version()
                self._write(expired)
                break
            except ConflictError:
                continue  # Another process wrote the lease first.
        try:
            check_conditions(self._url, self._setting)
        except ValueError:
            remove(self._url)
            raise
        self.took_over = expired != ABSENT
        self._thread.start()
        return self

    def _free_version(self) -> str:
        """Return the version of the lease to replace; see `wait_until_free`."""
        content, version = _read(self._url) or ({}, ABSENT)
        owner = str(content.get("owner", ""))
        if self._within is not None and owner and owner == self._within.predecessor:
            return version
        expired = wait_until_free(self._url, self._holder, self._setting)
        self.predecessor = owner if expired == version != ABSENT else ""
        return expired

    def _write(self, condition: str) -> None:
        started = clock()  # The store may apply the write at any time from now on.
        content = {
            "owner": self._owner,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "renewals": self._renewals,
        }
        write_bytes(self._url, json.dumps(content) + "\n", condition)
        current = _read(self._url)
        if current is None or current[0].get("owner") != self._owner:
            raise ConflictError(self._url, "conflict")
        self._version, self._renewed_at = current[1], started
        self._renewals += 1

    def _keep_renewing(self) -> None:
        while not self._stop.wait(RENEWAL_SECONDS) and not self._lost:
            try:
                self._renew(lambda: True)
            except OSError as error:
                logger.warning("%s: the lease could not be renewed: %s", self._setting, error)

    def check(self) -> None:
        """Check that this process still holds the lease; call this before each attempt to write.

        A lease that has expired is renewed first, which succeeds only if no other process has taken
        it over. Therefore, a run continues even if the store has not responded for minutes.

        Raises:
          LeaseLostError: the lease was taken over.
          StorageError: the lease has expired and cannot be renewed.
        """
        if self._is_expired():
            self._renew(self._is_expired)
        self._raise_if_lost()

    def discard(self, url: ObjectUrl) -> None:
        """Remove a lease if it belongs to the killed process whose lease this one replaced.

        Raises:
          StorageError: the object cannot be read or removed.
        """
        content, version = _read(url) or ({}, ABSENT)
        if self.predecessor and content.get("owner") == self.predecessor:
            with suppress(ConflictError):  # Another process has just taken it over.
                remove(url, version)

    def confirm(self) -> None:
        """Ask the store whether this process still holds the lease, by renewing it.

        Raises:
          LeaseLostError: the lease was taken over.
          StorageError: the lease cannot be renewed.
        """
        self._renew(lambda: True)
        self._raise_if_lost()

    def lose(self) -> NoReturn:
        """Stop renewing the lease, since another process has replaced what this one wrote.

        Raises:
          LeaseLostError: always.
        """
        self._lost = _TAKEN
        self._raise_if_lost()
        raise AssertionError

    def _renew(self, is_due: Callable[[], bool]) -> None:
        with self._lock:  # If the thread is renewing the lease, wait for it.
            try:
                if not self._lost and is_due():
                    self._write(self._version)
            except ConflictError:
                self._lost = _TAKEN

    def _raise_if_lost(self) -> None:
        if self._lost:
            raise LeaseLostError(
                f"{self._setting}: this {self._holder} stopped writing, because {self._lost}. "
                "Make sure that no other process writes there, and run the same command again."
            )

    def _is_expired(self) -> bool:
        return clock() - self._renewed_at > LEASE_SECONDS

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._lost:
            return
        try:
            current = find(self._url)
            if current is not None and current.version == self._version:
                remove(self._url, self._version)
        except ConflictError:
            pass  # Another process has just taken the lease over.
        except StorageError as failure:  # The lease expires by itself.
            logger.warning("%s: the lease could not be removed: %s", self._setting, failure)


def wait_until_free(url: ObjectUrl, holder: str, setting: str) -> str:
    """Wait until there is no lease or it has not been renewed for `LEASE_SECONDS`.

    Args:
      url: the object that represents the lease.
      holder: the kind of process that may hold the lease, for messages; see `Lease`.
      setting: the option with the URL that the lease protects; see `Lease`.

    Returns:
      The version of the lease that expired, or `ABSENT` if there is none.

    Raises:
      LeaseHeldError: the lease was renewed.
    """
    current = _read(url)
    if current is None:
        return ABSENT
    content, version = current
    process = f"process {content.get('process', '?')} on {content.get('host', '?')}"
    logger.warning(
        "%s: waiting for up to %.0f s, since %s may have been killed while writing",
        setting,
        LEASE_SECONDS,
        process,
    )
    started = time.monotonic()
    while time.monotonic() - started < LEASE_SECONDS:
        time.sleep(POLL_SECONDS)
        info = find(url)
        if info is None:
            return ABSENT
        if info.version != version:
            raise LeaseHeldError(
                f"{setting}: another {holder} is writing to it ({process}). Wait until it ends, or "
                "stop it."
            )
    return version


def check_conditions(url: ObjectUrl, setting: str) -> None:
    """Check that a store rejects writes whose conditions do not hold.

    Args:
      url: an existing object. A store that ignores conditions replaces its content.
      setting: the option with the protected URL; see `Lease`.

    Raises:
      ValueError: the store ignores conditions.
    """
    for condition in (ABSENT, _NO_VERSION[url.scheme]):
        with suppress(ConflictError):
            write_bytes(url, "", condition)
            raise ValueError(
                f"{setting}: this store ignores conditions on writes (If-Match, If-None-Match), so "
                "two processes could write there at the same time. Use another store or a disk."
            )


def _read(url: ObjectUrl) -> tuple[dict[str, object], str] | None:
    """Return a lease's content and version, or None if there is no lease."""
    try:
        data, info = read_versioned(url)
    except MissingObjectError:
        return None
    try:
        content = json.loads(data)
    except ValueError:
        content = {}
    return (content if isinstance(content, dict) else {}), info.version
