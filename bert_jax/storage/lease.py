"""Let only one process at a time write below a URL, by means of a lease that expires.

A lease is an object with the name of its owner. The owner creates it only if it does not exist, and
removes it at the end. In the meantime, a thread renews it by replacing exactly the version that was
written last. Another process may replace a lease that its owner has not renewed for
`LEASE_SECONDS`. The other process watches the lease for that long instead of comparing timestamps,
so the clocks of two machines may differ.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from types import TracebackType

from bert_jax.storage.errors import ConflictError, MissingObjectError, StorageError
from bert_jax.storage.objects import find, read_versioned, remove, write_bytes
from bert_jax.storage.store import ABSENT
from bert_jax.storage.urls import ObjectUrl

logger = logging.getLogger(__name__)

# An owner can renew its lease within this time even after a short outage of the store.
LEASE_SECONDS = 90.0
RENEWAL_SECONDS = 10.0
POLL_SECONDS = 1.0


class LeaseHeldError(ValueError):
    """An error for a lease that another process holds."""


class LeaseLostError(OSError):
    """An error for a lease that another process took over."""


class Lease:
    """A context manager that holds a lease; see the module's description."""

    def __init__(self, url: ObjectUrl, holder: str, setting: str):
        """Create the object without taking the lease.

        Args:
          url: the object that represents the lease.
          holder: the kind of process that holds the lease, such as "preparation", for messages.
          setting: the option with the URL that the lease protects, such as
            "output=gs://bucket/corpus".
        """
        self._url, self._holder, self._setting = url, holder, setting
        self._owner = uuid.uuid4().hex
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
          StorageError: the object cannot be written.
        """
        while True:
            try:
                self._write(wait_until_free(self._url, self._holder, self._setting))
                break
            except ConflictError:
                continue  # Another process wrote the lease first.
        self._thread.start()
        return self

    def _write(self, condition: str) -> None:
        started = time.monotonic()  # The store may apply the write at any time from now on.
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
        while not self._stop.wait(RENEWAL_SECONDS):
            try:
                with self._lock:
                    self._write(self._version)
            except ConflictError:
                self._lost = "another process took over its lease"
                return
            except OSError as error:
                logger.warning("%s: the lease could not be renewed: %s", self._setting, error)

    def check(self) -> None:
        """Check that this process still holds the lease; call this before a final write.

        A lease that has expired is renewed first, which succeeds only if no other process has taken
        it over. Therefore, a run continues even if the store has not responded for minutes.

        Raises:
          LeaseLostError: the lease was taken over.
          StorageError: the lease has expired and cannot be renewed.
        """
        if not self._lost and self._is_expired():
            with self._lock:  # If the thread is renewing the lease, wait for it.
                try:
                    if self._is_expired():
                        self._write(self._version)
                except ConflictError:
                    self._lost = "another process took over its lease"
        if self._lost:
            raise LeaseLostError(
                f"{self._setting}: this {self._holder} stopped writing, because {self._lost}. "
                "Make sure that no other process writes there, and run the same command again"
            )

    def _is_expired(self) -> bool:
        return time.monotonic() - self._renewed_at > LEASE_SECONDS

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
                remove(self._url)
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
