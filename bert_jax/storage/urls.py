"""Parse the URLs of objects in buckets."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bert_jax.local_paths import SCHEMES, Scheme, check_local, is_url

# `Path` turns "gs://bucket" into "gs:/bucket".
_URL = re.compile(rf"({'|'.join(SCHEMES)})://?(?!/)(.*)", re.DOTALL)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_MAX_KEY_BYTES = 1024


@dataclass(frozen=True, order=True)
class ObjectUrl:
    """The URL of an object, or of all objects whose keys begin with "KEY/".

    Attributes:
      scheme: the kind of store.
      bucket: the bucket's name.
      key: the object's name in the bucket, without slashes at either end; "" for the bucket itself.
    """

    scheme: Scheme
    bucket: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")

    def __fspath__(self) -> str:
        return str(self)

    def __truediv__(self, name: str) -> ObjectUrl:
        """Return the URL of `name`, which may contain slashes, below this one."""
        return ObjectUrl(self.scheme, self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        """The last component of the key, or the bucket's name if there is no key."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def suffixes(self) -> list[str]:
        """The suffixes of the last component of the key, as in `Path`."""
        return PurePosixPath(self.key).suffixes

    @property
    def suffix(self) -> str:
        """The last suffix of the last component of the key, or ""."""
        return PurePosixPath(self.key).suffix

    @property
    def parent(self) -> ObjectUrl:
        """The URL without the last component of its key; the bucket is its own parent."""
        return ObjectUrl(self.scheme, self.bucket, self.key.rpartition("/")[0])

    @property
    def prefix(self) -> str:
        """The prefix that the keys of all objects below this URL have in common."""
        return f"{self.key}/" if self.key else ""

    def relative(self, other: ObjectUrl) -> str:
        """Return the key of `other`, which must be below this URL, without `prefix`."""
        assert other.bucket == self.bucket and other.key.startswith(self.prefix)
        return other.key.removeprefix(self.prefix)


# A file or directory, either on a local file system or in a bucket.
Location = Path | ObjectUrl


def parse_url(path: str | os.PathLike[str], name: str = "") -> ObjectUrl | None:
    """Return a path as a URL, or None if it is on a local file system.

    Args:
      path: the path or URL; a `Path` that was made from a URL is accepted as well.
      name: the option or config key that contains the path, or "" if there is none.

    Raises:
      ValueError: the scheme is not supported, or the URL contains no valid bucket or key.
    """
    if isinstance(path, ObjectUrl):
        return path
    if not is_url(path):
        check_local(path, name)
        return None
    match = _URL.fullmatch(os.fspath(path))
    setting = f"{name}={os.fspath(path)}" if name else os.fspath(path)
    if match is None:
        raise ValueError(f"{setting}: contains no bucket. Expected SCHEME://BUCKET/NAME.")
    bucket, _, key = match[2].partition("/")
    if _BUCKET.fullmatch(bucket) is None:
        raise ValueError(
            f"{setting}: {bucket!r} is not the name of a bucket. A name consists of 3 or more "
            "lowercase letters, digits, dots, hyphens and underscores."
        )
    key = key.strip("/")
    if any(part in ("", ".", "..") for part in key.split("/")) and key:
        raise ValueError(
            f"{setting}: the name contains '//', '/./' or '/../', which a bucket does not resolve. "
            "Specify the object's name as the store lists it."
        )
    if len(key.encode("utf-8", "surrogateescape")) > _MAX_KEY_BYTES:
        raise ValueError(f"{setting}: the name is longer than {_MAX_KEY_BYTES} bytes. Shorten it.")
    scheme: Scheme = "gs" if match[1] == "gs" else "s3"
    return ObjectUrl(scheme, bucket, key)


def is_inside(path: Location, directory: Location) -> bool:
    """Return whether a path is the same as a directory or below it."""
    if isinstance(path, ObjectUrl) and isinstance(directory, ObjectUrl):
        same_bucket = (path.scheme, path.bucket) == (directory.scheme, directory.bucket)
        return same_bucket and f"{path.prefix}".startswith(directory.prefix)
    if isinstance(path, ObjectUrl) or isinstance(directory, ObjectUrl):
        return False
    return path.resolve().is_relative_to(directory.resolve())


def parse_location(path: str | os.PathLike[str], name: str = "") -> Location:
    """Return a path as a URL or, if it is on a local file system, as a `Path`; see `parse_url`."""
    return parse_url(path, name) or Path(path)
