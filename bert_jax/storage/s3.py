"""Make requests to Amazon S3 with s3fs.

botocore finds the credentials, and reads the address of another store from AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_jax.storage.errors import ConflictError, Problem, missing_extra
from bert_jax.storage.store import (
    ABSENT,
    CONNECT_SECONDS,
    STALL_SECONDS,
    TRANSIENT_STATUS,
    ObjectInfo,
    Page,
)
from bert_jax.storage.urls import ObjectUrl

ENDPOINT = "AWS_ENDPOINT_URL"
_CREDENTIAL_CODES = frozenset(
    {
        *("ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"),
        *("TokenRefreshRequired", "RequestTimeTooSkewed"),
    }
)
_TRANSIENT_CODES = frozenset(
    {
        *("SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "OperationAborted"),
        *("ConditionalRequestConflict", "Throttling", "ThrottlingException", "BadDigest"),
    }
)
# The classes of exceptions that botocore, aiobotocore and aiohttp raise if a connection fails,
# stalls or ends early.
_CREDENTIAL_ERRORS = ("Credential", "Token", "SSO", "Unauthorized", "ProfileNotFound", "LoginError")


class S3:
    """Amazon S3 and stores with the same interface; see `Store`."""

    def __init__(self) -> None:
        try:
            from s3fs import S3FileSystem
        except ImportError as error:
            raise missing_extra("s3") from error
        self._files = S3FileSystem(
            skip_instance_cache=True,
            use_listings_cache=False,
            config_kwargs={
                "connect_timeout": CONNECT_SECONDS,
                "read_timeout": STALL_SECONDS,
                "retries": {"total_max_attempts": 1},
            },
        )
        self._files.retries = 1  # This package retries requests and reports failures.

    def stat(self, url: ObjectUrl) -> ObjectInfo:
        """Describe an object."""
        head = self._files.call_s3("head_object", Bucket=url.bucket, Key=url.key)
        return _info(url, head, head["ContentLength"], plain=_is_plain(head))

    def list_page(self, url: ObjectUrl, *, recursive: bool, token: str | None) -> Page:
        """List objects below `url`."""
        options = {} if recursive else {"Delimiter": "/"}
        if token is not None:
            options["ContinuationToken"] = token
        page = self._files.call_s3(
            "list_objects_v2", Bucket=url.bucket, Prefix=url.prefix, **options
        )
        bucket = ObjectUrl(url.scheme, url.bucket)
        return Page(
            [
                _info(bucket / item["Key"], item, item["Size"], plain=False)
                for item in page.get("Contents", [])
                if not item["Key"].endswith("/")
            ],
            [bucket / entry["Prefix"] for entry in page.get("CommonPrefixes", [])],
            page.get("NextContinuationToken"),
        )

    def read(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Read a range of bytes from an object."""
        from fsspec.asyn import sync

        async def read() -> bytes:
            answer = await self._files._call_s3(
                "get_object",
                Bucket=info.url.bucket,
                Key=info.url.key,
                Range=f"bytes={start}-{end - 1}",
                IfMatch=info.version,
            )
            async with answer["Body"] as body:
                content: bytes = await body.read()
            return content

        content: bytes = sync(self._files.loop, read)
        return content

    def write(self, url: ObjectUrl, content: bytes, condition: str | None) -> str:
        """Write an object in one request, and return its version."""
        options = {}
        if condition == ABSENT:
            options = {"IfNoneMatch": "*"}
        elif condition is not None:
            options = {"IfMatch": condition}
        answer = self._files.call_s3(
            "put_object", Bucket=url.bucket, Key=url.key, Body=content, **options
        )
        return str(answer["ETag"])

    def upload(self, url: ObjectUrl, file: Path, *, new: bool) -> None:
        """Write an object from a local file."""
        mode = "create" if new else "overwrite"
        self._files.put_file(str(file), f"{url.bucket}/{url.key}", mode=mode)

    def remove(self, url: ObjectUrl, version: str | None) -> None:
        """Remove an object if it has this version.

        Some stores do not implement this condition. The version is then looked up first, so an
        object that is replaced in the meantime is removed as well.
        """
        target = {"Bucket": url.bucket, "Key": url.key}
        if version is not None:
            try:
                self._files.call_s3("delete_object", **target, IfMatch=version)
                return
            except Exception as error:
                if not any(_code_of(cause) == "NotImplemented" for cause in _causes(error)):
                    raise
            if self.stat(url).version != version:
                raise ConflictError(url, "conflict")
        self._files.call_s3("delete_object", **target)

    def problem(self, error: BaseException) -> Problem | None:
        """Classify an error raised by s3fs, which keeps botocore's error as its cause."""
        if isinstance(error, ConflictError):
            return error.problem
        for cause in _causes(error):
            answer = getattr(cause, "response", None)
            if isinstance(answer, dict) and "Error" in answer:
                return _problem_of_answer(answer)
            module = type(cause).__module__.partition(".")[0]
            names = [kind.__name__ for kind in type(cause).__mro__]
            if module in ("botocore", "aiobotocore", "aiohttp"):
                if any(name.startswith(_CREDENTIAL_ERRORS) for name in names) or (
                    "NoCredentialsError" in names or "PartialCredentialsError" in names
                ):
                    return "credentials"
                if module == "aiohttp" or re.search(
                    "HTTPClientError|IncompleteRead|ResponseParser|ResponseStreaming",
                    " ".join(names),
                ):
                    return "transient"
            if isinstance(cause, TimeoutError):
                return "transient"
        return "missing" if isinstance(error, FileNotFoundError) else None


def _problem_of_answer(answer: Mapping[str, Any]) -> Problem | None:
    code = str(answer["Error"].get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return "bucket"
    if code in _CREDENTIAL_CODES or status == 401:
        return "credentials"
    if code in _TRANSIENT_CODES or status in TRANSIENT_STATUS:
        return "transient"
    if status == 412:
        return "conflict"
    if status == 403:
        return "denied"
    return "missing" if status == 404 else None


def _code_of(error: BaseException) -> str:
    answer = getattr(error, "response", None)
    return str(answer.get("Error", {}).get("Code", "")) if isinstance(answer, dict) else ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _is_plain(head: Mapping[str, Any]) -> bool:
    """Return whether the ETag of an object written in one part is its MD5 checksum."""
    return head.get("ServerSideEncryption", "AES256") == "AES256"


def _info(url: ObjectUrl, item: Mapping[str, Any], num_bytes: int, *, plain: bool) -> ObjectInfo:
    version = str(item["ETag"])
    digest = version.strip('"')
    return ObjectInfo(
        url,
        num_bytes=num_bytes,
        version=version,
        modified=float(int(item["LastModified"].timestamp())),  # HEAD returns whole seconds
        md5=digest if plain and re.fullmatch("[0-9a-f]{32}", digest) else None,
    )
