"""Reject URLs where only local paths are supported; `bert_jax.storage` handles supported URLs."""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from bert_jax.conversion import values_of

# The types of config fields that contain paths; `check_config_paths` checks these fields. A
# PathOrUrl may also be the URL of an object in a bucket.
LocalPath = Annotated[str, "local path"]
PathOrUrl = Annotated[str, "path or URL"]

# The schemes of the object stores that `bert_jax.storage` can access.
Scheme = Literal["gs", "s3"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)

# The short names of the small models that come with a checkout; see `small_model`.
SMALL_MODELS = ("mini-bert", "mini-albert", "mini-sentiment", "mini-ner", "mini-qa")

# A dict from the path of each local copy of an object to the object's URL; see `shown`.
COPIES: dict[str, str] = {}

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Path turns gs://x into gs:/x. In this form, recognize only well-known schemes, since a directory
# may be named "notes:".
_COLLAPSED = re.compile(
    r"(gs|gcs|s3|s3a|s3n|r2|az|abfss?|wasbs?|adl|oss|cos|swift|dbfs|hdfs|webhdfs|https?|ftp|sftp"
    r"|ssh|file|hf|memory):/(?!/)",
    re.IGNORECASE,
)


def check_local(path: str | os.PathLike[str], name: str = "") -> None:
    """Reject a path with a scheme, which Python would treat as a relative path.

    Args:
      path: the path that the user specified. "tfds:NAME" is accepted, since it has no "//".
      name: the option or config key that contains the path, or "" if there is none.

    Raises:
      ValueError: the path begins with `scheme://`.
    """
    text = path if isinstance(path, str) else _COLLAPSED.sub(r"\1://", os.fspath(path), count=1)
    match = _URL.match(text)
    if match is None:
        return
    scheme = match[1].lower()
    setting = f"{name}={text}" if name else text
    here = " here" if scheme in SCHEMES else ""
    raise ValueError(f"{setting}: {scheme}:// is not supported{here}. {_alternative(text, scheme)}")


def check_path(path: str | os.PathLike[str], name: str = "") -> None:
    """Check a path that may also be the URL of an object in a bucket; see `check_local`."""
    if not is_url(path):
        check_local(path, name)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Return whether a path begins with the scheme of a supported object store."""
    text = os.fspath(path)
    if not isinstance(path, str):  # `Path` turns "gs://bucket" into "gs:/bucket".
        text = _COLLAPSED.sub(r"\1://", text, count=1)
    return text.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def shown(text: str | os.PathLike[str]) -> str:
    """Return a message or path in which URLs of objects replace the paths of local copies."""
    shown = os.fspath(text)
    for copy, url in COPIES.items():
        shown = shown.replace(copy, url)
    return shown


@contextmanager
def naming_urls() -> Iterator[None]:
    """Replace the paths of local copies with the objects' URLs in errors raised in the block.

    This context manager is also a decorator for functions of the Python API. Errors about a local
    disk that cannot be written are left unchanged.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        is_text = len(error.args) == 1 and isinstance(error.args[0], str)
        if is_text and (isinstance(error, ValueError) or type(error) is OSError):
            error.args = (shown(error.args[0]),)
        raise


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path after checking it with `check_local`."""
    check_local(path)
    return Path(path)


def cache_directory() -> Path:
    """Return `~/.cache/bert_jax`, the directory for files that bert_jax can re-create."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "bert_jax"


def _alternative(text: str, scheme: str) -> str:
    """Return a sentence that suggests what to use instead of a path with a scheme."""
    rest = text.partition("://")[2]
    if scheme == "file":
        return f"Omit the scheme: {'/' + rest.partition('/')[2]}."
    if scheme == "hf" or rest.startswith(("huggingface.co/", "hf.co/")):
        return "Specify a model on the Hugging Face Hub as OWNER/NAME."
    if scheme in ("http", "https", "ftp"):
        return "Download the file and specify its local path."
    return (
        "Use a path on a local disk or a mounted file system; to mount a bucket, use gcsfuse, "
        "Mountpoint for Amazon S3 or rclone."
    )


def check_config_paths(config: Any, prefix: str = "") -> None:
    """Reject a config if a path in any of its fields has a scheme that is not supported there.

    Args:
      config: the config, a dataclass; its sections are checked as well.
      prefix: a prefix for keys in error messages, with a trailing dot.

    Raises:
      ValueError: a path begins with `scheme://`. The message contains the dotted key.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for name, value in values_of(config).items():
        key = f"{prefix}{name}"
        if dataclasses.is_dataclass(value):
            check_config_paths(value, f"{key}.")
        elif isinstance(value, Mapping):
            for part, section in value.items():
                if dataclasses.is_dataclass(section):
                    check_config_paths(section, f"{key}.{part}.")
        elif isinstance(value, str | tuple) and is_path(hints[name]):
            check = check_local if _includes(hints[name], LocalPath) else check_path
            for path in value if isinstance(value, tuple) else (value,):
                if isinstance(path, str):
                    check(path, key)


def is_path(hint: Any) -> bool:
    """Return whether a hint from `get_type_hints(include_extras=True)` includes a path type."""
    return _includes(hint, LocalPath) or _includes(hint, PathOrUrl)


def _includes(hint: Any, kind: Any) -> bool:
    return hint == kind or kind in typing.get_args(hint)


def make_directory(path: str | os.PathLike[str]) -> Path:
    """Create a directory and any missing parents, and return its path.

    Raises:
      ValueError: the path begins with `scheme://`.
    """
    directory = local_path(path)
    directory.mkdir(parents=True, exist_ok=True)
    return directory
