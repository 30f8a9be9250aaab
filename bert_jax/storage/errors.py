"""Describe the errors of object stores in one sentence each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, assert_never

from bert_jax.local_paths import Scheme
from bert_jax.storage.urls import ObjectUrl

# The ways in which a request can fail. Requests with a "transient" problem are retried.
Problem = Literal["missing", "bucket", "denied", "credentials", "conflict", "transient"]

_LOG_IN = {
    "gs": (
        "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to "
        "the key file of a service account"
    ),
    "s3": (
        "Run `aws configure`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and "
        "AWS_SESSION_TOKEN for temporary credentials)"
    ),
}
_EXTRAS = {"gs": ("gcs", "gcsfs"), "s3": ("s3", "s3fs")}
_REQUIRED = {
    "gs": "storage.objects.get, list, create and delete (the role Storage Object User)",
    "s3": "s3:GetObject, ListBucket, PutObject and DeleteObject",
}


class StorageError(OSError):
    """An error for a request that an object store rejected or did not respond to.

    Attributes:
      url: the object.
      problem: what went wrong, or None if the cause is unknown.
      explanation: the message without the URL.
    """

    def __init__(self, url: ObjectUrl, problem: Problem | None, detail: str = ""):
        super().__init__(f"{url}: {explain(url, problem, detail)}")
        self.url, self.problem, self._detail = url, problem, detail
        self.explanation = explain(url, problem, detail)

    def __reduce__(self) -> tuple[type, tuple[ObjectUrl, Problem | None, str]]:
        # This method lets worker processes send the error to their parent.
        return type(self), (self.url, self.problem, self._detail)


class MissingObjectError(StorageError, FileNotFoundError):
    """An error for an object that does not exist in its bucket."""


class ConflictError(StorageError):
    """An error for a conditional write whose condition does not hold."""


def storage_error(url: ObjectUrl, problem: Problem | None, detail: str = "") -> StorageError:
    """Return the error for a problem."""
    if problem == "missing":
        return MissingObjectError(url, problem, detail)
    if problem == "conflict":
        return ConflictError(url, problem, detail)
    return StorageError(url, problem, detail)


def explain(url: ObjectUrl, problem: Problem | None, detail: str = "") -> str:
    """Return a sentence that describes a problem, and another sentence that explains the fix."""
    match problem:
        case "missing":
            return "there is no such object in the bucket"
        case "bucket":
            return (
                f"the bucket {url.bucket!r} does not exist. Correct its name, or create the bucket"
            )
        case "denied":
            return (
                "the store denies access. The account needs the permissions "
                f"{_REQUIRED[url.scheme]}{_in_brackets(detail)}"
            )
        case "credentials":
            return (
                f"there are no valid credentials for this store. {_LOG_IN[url.scheme]}"
                f"{_in_brackets(detail)}"
            )
        case "conflict":
            return "another process wrote this object at the same time"
        case "transient":
            return f"the store does not respond{_in_brackets(detail)}. Run the same command again"
        case None:
            return f"the store rejected the request{_in_brackets(detail)}"
        case _:
            assert_never(problem)


@contextmanager
def naming_store_errors(name: str, url: ObjectUrl) -> Iterator[None]:
    """Turn errors about a bucket, or access to it, into ValueErrors that name an option.

    Args:
      name: the option or config key that contains the URL, or "" if there is none.
      url: the URL.
    """
    try:
        yield
    except StorageError as error:
        if error.problem not in ("bucket", "denied", "credentials"):
            raise
        raise ValueError(f"{located(url, name)}: {error.explanation}.") from error


@contextmanager
def naming_url(copy: Path, url: ObjectUrl) -> Iterator[None]:
    """If a `with` block raises a ValueError about a local copy, make the message name the URL."""
    try:
        yield
    except ValueError as error:
        if str(copy) not in str(error):
            raise
        raise ValueError(str(error).replace(str(copy), str(url))) from error


def missing_extra(scheme: Scheme, setting: str = "") -> ValueError:
    """Return the error for a library that is not installed."""
    extra, library = _EXTRAS[scheme]
    prefix = f"{setting}: " if setting else ""
    return ValueError(
        f"{prefix}reading and writing {scheme}:// requires {library}, which is not installed. "
        f"Install it: pip install 'bert_jax[{extra}]'"
    )


def _in_brackets(detail: str) -> str:
    text = " ".join(detail.split())[:200].rstrip(".")
    return f" ({text})" if text else ""


def located(path: str | os.PathLike[str], name: str) -> str:
    """Return "name=path" for an error message, or just the path if there is no name."""
    return f"{name}={os.fspath(path)}" if name else os.fspath(path)
