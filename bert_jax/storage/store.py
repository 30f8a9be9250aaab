"""Define the requests that every object store must support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bert_jax.storage.errors import Problem
from bert_jax.storage.urls import ObjectUrl

# A connection is considered stalled if no byte arrives for this many seconds.
STALL_SECONDS = 20.0
CONNECT_SECONDS = 5.0
# The condition for a write that must not replace an object. Any other condition is a version.
ABSENT: Final = ""
# Larger objects are written in several requests.
MAX_SINGLE_WRITE = 32 << 20
TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True)
class ObjectInfo:
    """A store's description of an object.

    Attributes:
      url: the object.
      num_bytes: the object's size.
      version: the identifier of this content: a generation in GCS and an ETag in S3.
      modified: when the object was written, in seconds since 1970 by the store's clock.
      md5: the MD5 checksum in hex, or None if the store does not have it.
      crc32c: the CRC32C checksum in Base64, or None if the store does not have it.
    """

    url: ObjectUrl
    num_bytes: int
    version: str
    modified: float
    md5: str | None = None
    crc32c: str | None = None


@dataclass(frozen=True)
class Page:
    """A part of a listing.

    Attributes:
      objects: the objects.
      directories: the URLs of directories whose objects are not listed.
      token: the value to pass for the next page, or None if this is the last one.
    """

    objects: Sequence[ObjectInfo]
    directories: Sequence[ObjectUrl]
    token: str | None


class Store(Protocol):
    """The requests to one kind of object store. Each method makes one attempt."""

    def stat(self, url: ObjectUrl) -> ObjectInfo:
        """Describe an object."""

    def list_page(self, url: ObjectUrl, *, recursive: bool, token: str | None) -> Page:
        """List objects below `url`, in the order of their keys."""

    def read(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Return a range of bytes of this version of an object."""

    def write(self, url: ObjectUrl, content: bytes, condition: str | None) -> str:
        """Write an object in one request, if `condition` (`ABSENT`, a version, or None) holds.

        Returns:
          The version that was written.
        """

    def upload(self, url: ObjectUrl, file: Path, *, new: bool) -> None:
        """Write an object from a local file of any size. It appears when it is complete.

        Args:
          url: the object.
          file: the file.
          new: whether the object must not exist yet.
        """

    def remove(self, url: ObjectUrl, version: str | None) -> None:
        """Remove an object if it has this version; None stands for any version."""

    def problem(self, error: BaseException) -> Problem | None:
        """Classify an error that a method raised, or return None if it is unknown."""
