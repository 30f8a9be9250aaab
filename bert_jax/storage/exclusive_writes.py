"""Write objects on behalf of the holder of a lease, so that its late writes are rejected.

Every write and removal applies only to the version of the object that the process last wrote or
found. If the store has another version, the process looks up that version, and then asks the store
to confirm that the process still holds the lease. Only after that does it replace exactly this
version.

If another process has taken the lease over, either the confirmation fails, or the other process has
replaced the version in the meantime, so the write is rejected. A process therefore never replaces
an object that a later holder has written. A late write can only create an object that the later
holder has not written yet, and the later holder then replaces it.

In S3, the version of an object is a checksum of its content. Therefore, a late removal in S3 can
still remove an object that a later holder has written with the same content.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from bert_jax.storage.errors import ConflictError
from bert_jax.storage.lease import Lease
from bert_jax.storage.objects import find, remove, upload, write_bytes
from bert_jax.storage.store import ABSENT, MAX_SINGLE_WRITE, ObjectInfo
from bert_jax.storage.urls import ObjectUrl


class ExclusiveWriter:
    """Writes objects for the holder of a lease; see the module's description."""

    def __init__(self, lease: Lease | None):
        """Create the writer without sending a request.

        Args:
          lease: the lease; None for a worker process of the holder, which cannot check it.
        """
        self._lease = lease

    def check(self) -> None:
        """Check that this process still holds the lease; see `Lease.check`."""
        if self._lease is not None:
            self._lease.check()

    def write(self, url: ObjectUrl, content: str | bytes, version: str = ABSENT) -> str:
        """Write an object, and return its version.

        Args:
          url: the object.
          content: the content; text is encoded as UTF-8.
          version: the expected version of the object; it is replaced without a confirmation.

        Raises:
          LeaseLostError: another process has taken over.
          StorageError: the object cannot be written.
        """
        data = content.encode() if isinstance(content, str) else content
        if len(data) > MAX_SINGLE_WRITE:
            with tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                return self.upload(Path(file.name), url)
        while True:
            try:
                return write_bytes(url, data, version, check=self.check)
            except ConflictError:
                version = self._confirmed_version(url)

    def upload(self, file: Path, url: ObjectUrl) -> str:
        """Write a local file of any size to an object, and return its version; see `write`."""
        if file.stat().st_size <= MAX_SINGLE_WRITE:
            return self.write(url, file.read_bytes())
        while True:
            try:
                return upload(file, url, new=True, check=self.check)
            except ConflictError:
                info = find(url)
                # An earlier attempt may have succeeded, although its response was lost.
                if info is not None and _has_content(info, file):
                    return info.version
                self.remove(url, self._confirmed_version(url))

    def remove(self, url: ObjectUrl, version: str) -> None:
        """Remove an object; see `write`."""
        while version != ABSENT:
            try:
                return remove(url, version, check=self.check)
            except ConflictError:
                version = self._confirmed_version(url)

    def _confirmed_version(self, url: ObjectUrl) -> str:
        # Look up the version before the confirmation, so that no later holder has written it.
        info = find(url)
        if self._lease is not None:
            self._lease.confirm()
        return ABSENT if info is None else info.version


def _has_content(info: ObjectInfo, file: Path) -> bool:
    if info.md5 is None or info.num_bytes != file.stat().st_size:
        return False
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "md5").hexdigest() == info.md5
