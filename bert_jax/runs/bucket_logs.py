"""Store a growing log in a bucket as parts, since nothing can be appended to an object.

A part is named EPOCH.VERSION-NUMBER.jsonl. It contains complete lines, and the log is the
concatenation of its parts. When the log grows, its last part is replaced. Once this part has
`PART_BYTES`, a new part is begun. When a run resumes from a checkpoint, lines may be removed from
its log. The log is then written as a new version, and part 0 is written last. Readers use the
newest version that has a part 0, so they see either the old log or the new one.

Each process writes only versions with its own epoch (see `run_index`), so a process that has been
replaced cannot change the log of its successor.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable

from bert_jax.storage.errors import MissingObjectError
from bert_jax.storage.objects import list_objects, read_bytes, remove, write_bytes
from bert_jax.storage.store import ObjectInfo
from bert_jax.storage.urls import ObjectUrl

PART_BYTES = 256 << 10
_NAME = re.compile(r"(\d{4,})\.(\d{4,})-(\d{6,})\.jsonl")
_TRIES = 5

Version = tuple[int, int]  # the epoch of the process that wrote it, and a number


class LogParts:
    """The parts of one log, to which only this process writes.

    Args:
      url: the directory of the parts.
      infos: the objects in that directory.
      check: called before every write; raises an error if this process may no longer write.
    """

    def __init__(
        self, url: ObjectUrl, infos: Iterable[ObjectInfo], check: Callable[[], None]
    ) -> None:
        self._url, self._check = url, check
        found = _versions(info.url for info in infos)
        self._version = _newest(found)
        self._parts = [read_bytes(part) for part in found.get(self._version, {}).values()]
        used = list(found.get(self._version, {}).values())
        self._stale = [part for parts in found.values() for part in parts.values()]
        self._stale = [part for part in self._stale if part not in used]

    @property
    def content(self) -> bytes:
        """The log as it is in the bucket."""
        return b"".join(self._parts)

    def write(self, content: bytes, epoch: int) -> None:
        """Make the log in the bucket equal to the complete lines of `content`.

        Args:
          content: the log.
          epoch: the epoch of this process.

        Raises:
          StorageError: a part cannot be written.
        """
        content = content[: content.rfind(b"\n") + 1]
        if self._version[0] == epoch and content.startswith(self.content):
            self._append(content[len(self.content) :])
        elif self._parts or content:
            self._replace(content, epoch)
        self._remove_stale()

    def _remove_stale(self) -> None:
        while self._stale:
            remove(self._stale[-1], check=self._check)
            self._stale.pop()

    def _append(self, lines: bytes) -> None:
        grown = list(self._parts)
        changed = len(grown)
        if lines and grown and len(grown[-1]) < PART_BYTES:
            changed -= 1
            lines = grown.pop() + lines
        grown += _split(lines)
        for number in range(changed, len(grown)):
            self._write(self._version, number, grown[number])
            self._parts[number:] = [grown[number]]

    def _replace(self, content: bytes, epoch: int) -> None:
        parts = _split(content) or [b""]  # an empty log has one empty part
        former = range(len(self._parts))
        stale = [_part(self._url, self._version, number) for number in former]
        version = epoch, self._version[1] + 1 if self._version[0] == epoch else 0
        for number in reversed(range(len(parts))):
            self._write(version, number, parts[number])
        self._version, self._parts = version, parts
        self._stale += stale

    def _write(self, version: Version, number: int, content: bytes) -> None:
        write_bytes(_part(self._url, version, number), content, check=self._check)


def read_log(url: ObjectUrl) -> bytes:
    """Return the content of a log, given the directory of its parts.

    Raises:
      StorageError: a part cannot be read.
    """
    for tried in range(1, _TRIES + 1):
        found = _versions(info.url for info in list_objects(url))
        try:
            return b"".join(map(read_bytes, found.get(_newest(found), {}).values()))
        except MissingObjectError:  # A new version has replaced the part.
            if tried == _TRIES:
                raise
    raise AssertionError


def _split(content: bytes) -> list[bytes]:
    """Split lines into parts of at least `PART_BYTES`, except the last one."""
    parts = []
    while content:
        end = content.find(b"\n", PART_BYTES - 1) + 1 or len(content)
        parts.append(content[:end])
        content = content[end:]
    return parts


def _versions(urls: Iterable[ObjectUrl]) -> dict[Version, dict[int, ObjectUrl]]:
    """Return the parts of each version of a log, in ascending order."""
    found: dict[Version, dict[int, ObjectUrl]] = defaultdict(dict)
    for url in sorted(urls):
        if match := _NAME.fullmatch(url.name):
            found[int(match[1]), int(match[2])][int(match[3])] = url
    return {version: dict(sorted(parts.items())) for version, parts in sorted(found.items())}


def _newest(found: dict[Version, dict[int, ObjectUrl]]) -> Version:
    """Return the newest complete version; (0, 0) if there is none."""
    return max((version for version, parts in found.items() if 0 in parts), default=(0, 0))


def _part(url: ObjectUrl, version: Version, number: int) -> ObjectUrl:
    return url / f"{version[0]:04d}.{version[1]:04d}-{number:06d}.jsonl"
