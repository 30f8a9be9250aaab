"""Make requests to Google Cloud Storage with gcsfs.

gcsfs finds the credentials, and reads the address of an emulator from STORAGE_EMULATOR_HOST.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bert_jax.storage.errors import Problem, missing_extra
from bert_jax.storage.store import (
    ABSENT,
    CONNECT_SECONDS,
    MAX_SINGLE_WRITE,
    STALL_SECONDS,
    TRANSIENT_STATUS,
    ObjectInfo,
    Page,
)
from bert_jax.storage.urls import ObjectUrl

EMULATOR = "STORAGE_EMULATOR_HOST"
_PAGE_SIZE = 1000


@cache
def _single_attempt_class() -> type[Any]:
    """Return gcsfs's class without its own retries, which this package could not report."""
    try:
        from gcsfs.core import GCSFileSystem
    except ImportError as error:
        raise missing_extra("gs") from error
    request = GCSFileSystem._request.__wrapped__

    class SingleAttempt(GCSFileSystem):
        async def _request(self, *args: Any, **kwargs: Any) -> Any:
            return await request(self, *args, **kwargs)

    return SingleAttempt


class Gcs:
    """Google Cloud Storage; see `Store`."""

    def __init__(self) -> None:
        cls = _single_attempt_class()
        import aiohttp

        self._files = cls(
            token="anon" if os.environ.get(EMULATOR) else None,
            skip_instance_cache=True,
            use_listings_cache=False,
            requests_timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_SECONDS, sock_read=STALL_SECONDS
            ),
        )

    def stat(self, url: ObjectUrl) -> ObjectInfo:
        """Describe an object."""
        return _info(url, self._call("GET", "b/{}/o/{}", url.bucket, url.key))

    def list_page(self, url: ObjectUrl, *, recursive: bool, token: str | None) -> Page:
        """List objects below `url`."""
        options = {} if recursive else {"delimiter": "/"}
        if token is not None:
            options["pageToken"] = token
        page = self._call(
            "GET", "b/{}/o", url.bucket, prefix=url.prefix, maxResults=_PAGE_SIZE, **options
        )
        bucket = ObjectUrl(url.scheme, url.bucket)
        return Page(
            [
                _info(bucket / item["name"], item)
                for item in page.get("items", [])
                # A name with a trailing slash represents an empty folder.
                if not item["name"].endswith("/")
            ],
            [bucket / prefix for prefix in page.get("prefixes", [])],
            page.get("nextPageToken"),
        )

    def read(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Read a range of bytes from an object."""
        path = f"{info.url.bucket}/{info.url.key}"
        content: bytes = self._files.cat_file(path, start, end, generation=info.version)
        return content

    def write(self, url: ObjectUrl, content: bytes, condition: str | None) -> str:
        """Write an object in one request, and return its version."""
        options = {}
        if condition is not None:
            options["ifGenerationMatch"] = "0" if condition == ABSENT else condition
        answer = self._call(
            "POST",
            f"{self._files.base.replace('/storage/', '/upload/storage/')}b/{url.bucket}/o",
            uploadType="media",
            name=url.key,
            data=io.BytesIO(content),  # With `bytes` of more than 1 MiB, aiohttp logs a warning.
            headers={"Content-Type": "application/octet-stream"},
            **options,
        )
        digest = hashlib.md5(content, usedforsecurity=False).digest()
        if answer.get("md5Hash", "") != base64.b64encode(digest).decode():
            raise TimeoutError("the content was not transferred correctly")
        return str(answer["generation"])

    def upload(self, url: ObjectUrl, file: Path, *, new: bool) -> None:
        """Write an object from a local file."""
        if file.stat().st_size <= MAX_SINGLE_WRITE:
            # Small files are not uploaded by gcsfs, because it adds a line break after the content.
            # If the content ends in a carriage return, the store may mistake it for a part of the
            # line break.
            self.write(url, file.read_bytes(), ABSENT if new else None)
            return
        mode = "create" if new else "overwrite"
        target = f"{url.bucket}/{url.key}"
        self._files.put_file(str(file), target, consistency="md5", mode=mode)

    def remove(self, url: ObjectUrl, version: str | None) -> None:
        """Remove an object if it has this version."""
        options = {} if version is None else {"ifGenerationMatch": version}
        self._files.call("DELETE", "b/{}/o/{}", url.bucket, url.key, **options)

    def _call(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._files.call(*args, json_out=True, **kwargs)
        return answer

    def problem(self, error: BaseException) -> Problem | None:
        """Classify an error raised by gcsfs."""
        from gcsfs.retry import ChecksumError, HttpError

        if isinstance(error, FileExistsError):
            return "conflict"  # This is status 412.
        if isinstance(error, FileNotFoundError):
            return "missing"
        if isinstance(error, HttpError):
            status = int(error.code or 0)
            if status == 401:
                return "credentials"
            # 410 means that an upload in several requests has to start over.
            return "transient" if status in TRANSIENT_STATUS or status == 410 else None
        if isinstance(error, OSError) and str(error).startswith("Forbidden"):
            return "denied"
        module = type(error).__module__.partition(".")[0]
        if module == "google":
            return "transient" if _is_unreachable(error) else "credentials"
        network = module in ("aiohttp", "requests")
        return "transient" if network or isinstance(error, TimeoutError | ChecksumError) else None


def _info(url: ObjectUrl, item: Mapping[str, Any]) -> ObjectInfo:
    md5 = item.get("md5Hash")
    return ObjectInfo(
        url,
        num_bytes=int(item["size"]),
        version=str(item["generation"]),
        modified=datetime.datetime.fromisoformat(item["updated"]).timestamp(),
        md5=base64.b64decode(md5).hex() if md5 else None,
        crc32c=item.get("crc32c"),
    )


def _is_unreachable(error: BaseException | None) -> bool:
    """Return whether google-auth could not reach the server that gives it tokens."""
    from google.auth.exceptions import GoogleAuthError, TransportError

    while error is not None:
        if isinstance(error, TransportError) or (
            isinstance(error, GoogleAuthError) and error.retryable
        ):
            return True
        error = error.__cause__
    return False


def crc32c_of(chunks: Iterator[bytes]) -> str:
    """Return the CRC32C checksum of the chunks in Base64, as GCS writes it."""
    import google_crc32c

    checksum = google_crc32c.Checksum()
    for chunk in chunks:
        checksum.update(chunk)
    return base64.b64encode(checksum.digest()).decode()
