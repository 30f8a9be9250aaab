"""Introduce faults into bytes, JSON values and lines; the random generator determines them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:"
    + b"4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
WEB_PAGE = b"<!DOCTYPE html><html><head><title>404</title></head><body>Not found</body></html>\n"
# Values of various types that can replace a JSON value.
ODD_VALUES = (None, True, [], {}, "", "abc", -1, 0, 1.5, 10**30, [1, 2], {"a": 1})


def flip_bit(path: Path, rng: random.Random) -> int:
    """Flip a random bit in a file; return the offset of its byte."""
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return place


def not_a_file_of_its_kind(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield file contents that are invalid in every format, each with a name."""
    yield "empty", b""
    yield "zeros", bytes(4096)
    yield "random bytes", rng.randbytes(2048)
    yield "web page", WEB_PAGE
    yield "LFS pointer", LFS_POINTER
    yield "zip", b"PK\x03\x04" + rng.randbytes(512)


def truncations(data: bytes, rng: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Yield truncated copies of the bytes."""
    for _ in range(count):
        length = rng.randrange(1, len(data) - 1)
        yield f"cut to {length} bytes", data[:length]


def deep_json(depth: int = 100_000) -> bytes:
    """Return JSON arrays that are nested too deeply for any recursive parser."""
    return b"[" * depth + b"]" * depth


def not_json(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield damaged versions of a JSON object, and JSON that is not an object."""
    yield from not_a_file_of_its_kind(rng)
    yield from truncations(data.rstrip(b"}\n "), rng, 4)
    yield "an array", b"[1, 2, 3]"
    yield "a string", b'"text"'
    yield "null", b"null"
    yield "nested deeply", deep_json()
    yield "a number of 5,000 digits", b'{"a": ' + b"9" * 5000 + b"}"
    yield "two objects", data + data
    yield "a trailing comma", data.rstrip().removesuffix(b"}") + b",}"
    yield "Latin-1", data.replace(b"{", b'{"\xe9": 1, ', 1)
    yield "UTF-16", data.decode().encode("utf-16")


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of nested JSON with one value replaced."""
    copied = copy.deepcopy(value)
    inside = copied
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = new
    return copied


def without(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a copy of nested JSON without one key."""
    copied = copy.deepcopy(value)
    inside = copied
    for key in path[:-1]:
        inside = inside[key]
    del inside[path[-1]]
    return copied


def same_json(value: Any) -> Iterator[tuple[str, bytes]]:
    """Yield different serializations of the same JSON object."""
    yield "without spaces", json.dumps(value, separators=(",", ":")).encode()
    yield "indented", json.dumps(value, indent=4).encode() + b"\n\n"
    yield "with CRLF", json.dumps(value, indent=1).replace("\n", "\r\n").encode()
    yield "keys reversed", json.dumps(dict(reversed(value.items()))).encode()
    yield "escaped", json.dumps(value, ensure_ascii=True).encode()
