"""Store a growing log in a bucket as parts, since nothing can be appended to an object.

A part is named GENERATION-NUMBER.jsonl. It contains complete lines, and the log is the
concatenation of its parts. When the log grows, its last part is replaced. Once this part has
`PART_BYTES`, a new part is begun. When a run resumes from a checkpoint, lines may be removed from
its log. The log is then written as a new generation, and part 0 is written last. Readers use the
newest generation that has a part 0, so they see either the old log or the new one.
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
_NAME = re.compile(r"(\d{4,})-(\d{6,})\.jsonl")
_TRIES = 5


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
        found = _generations(info.url for info in infos)
        self._generation = _newest(found)
        self._parts = [read_bytes(part) for part in found.get(self._generation, {}).values()]
        used = list(found.get(self._generation, {}).values())
        self._stale = [part for parts in found.values() for part in parts.values()]
        self._stale = [part for part in self._stale if part not in used]

    @property
    def content(self) -> bytes:
        """The log as it is in the bucket."""
        return b"".join(self._parts)

    def write(self, content: bytes) -> None:
        """Make the log in the bucket equal to the complete lines of `content`.

        Raises:
          StorageError: a part cannot be written.
        """
        content = content[: content.rfind(b"\n") + 1]
        former = self.content
        self._remove_stale()  # Stale parts are removed before new ones use the same names.
        if content.startswith(former):
            self._append(content[len(former) :])
        else:
            self._replace(content)
        self._remove_stale()

    def _remove_stale(self) -> None:
        while self._stale:
            self._check()
            remove(self._stale[-1])
            self._stale.pop()

    def _append(self, lines: bytes) -> None:
        grown = list(self._parts)
        changed = len(grown)
        if lines and grown and len(grown[-1]) < PART_BYTES:
            changed -= 1
            lines = grown.pop() + lines
        grown += _split(lines)
        for number in range(changed, len(grown)):
            self._write(self._generation, number, grown[number])
            self._parts[number:] = [grown[number]]

    def _replace(self, content: bytes) -> None:
        parts = _split(content)
        former = range(len(self._parts))
        stale = [_part(self._url, self._generation, number) for number in former]
        for number in reversed(range(len(parts))):
            self._write(self._generation + 1, number, parts[number])
        if not parts:  # An empty log has one empty part.
            self._write(self._generation + 1, 0, b"")
        self._generation, self._parts = self._generation + 1, parts or [b""]
        self._stale += stale

    def _write(self, generation: int, number: int, content: bytes) -> None:
        self._check()
        write_bytes(_part(self._url, generation, number), content)


def read_log(url: ObjectUrl) -> bytes:
    """Return the content of a log, given the directory of its parts.

    Raises:
      StorageError: a part cannot be read.
    """
    for tried in range(1, _TRIES + 1):
        found = _generations(info.url for info in list_objects(url))
        try:
            return b"".join(map(read_bytes, found.get(_newest(found), {}).values()))
        except MissingObjectError:  # A new generation has replaced the part.
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


def _generations(urls: Iterable[ObjectUrl]) -> dict[int, dict[int, ObjectUrl]]:
    """Return the parts of each generation of a log, in ascending order."""
    found: dict[int, dict[int, ObjectUrl]] = defaultdict(dict)
    for url in sorted(urls):
        if match := _NAME.fullmatch(url.name):
            found[int(match[1])][int(match[2])] = url
    return {number: dict(sorted(parts.items())) for number, parts in sorted(found.items())}


def _newest(found: dict[int, dict[int, ObjectUrl]]) -> int:
    """Return the newest complete generation; 0 if there is none."""
    return max((number for number, parts in found.items() if 0 in parts), default=0)


def _part(url: ObjectUrl, generation: int, number: int) -> ObjectUrl:
    return url / f"{generation:04d}-{number:06d}.jsonl"
