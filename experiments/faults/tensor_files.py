"""Generate safetensors files: invalid ones, and valid ones with an unusual header or tensors."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from cases import Expectation
from damage import not_a_file_of_its_kind, truncations

Made = tuple[str, bytes, Expectation]


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Split a safetensors file into its header and the bytes of its tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: dict[str, Any] | bytes, body: bytes) -> bytes:
    """Join a header and the bytes of tensors into a safetensors file."""
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(content)) + content + body


def header_cases(data: bytes, rng: random.Random) -> Iterator[Made]:
    """Yield files with changed headers."""
    header, body = split(data)
    names = sorted(name for name in header if name != "__metadata__")
    yield "as it is", data, "accepted"
    yield "entries reversed", joined(dict(reversed(header.items())), body), "accepted"
    metadata = header | {"__metadata__": {"format": "pt", "by": "somebody"}}
    yield "other metadata", joined(metadata, body), "accepted"
    for name, content in [*not_a_file_of_its_kind(rng), *truncations(data, rng, 8)]:
        yield name, content, "refused"
    for length in (0, 1, 2**31, 2**40, 2**63, 2**64 - 1, len(data), 10**8 + 1):
        yield f"header of {length} bytes", struct.pack("<Q", length) + data[8:], "refused"
    for text in (b"[]", b"null", b"{", b"\xff" * 16, b'{"a": 1}', b"[" * 100_000):
        yield f"header {text[:10]!r}", joined(text, body), "refused"
    yield "bytes behind", data + bytes(64), "refused"
    for _ in range(4):
        name = rng.choice(names)
        entry = header[name]
        begin, end = entry["data_offsets"]
        for what, offsets in (
            ("beyond the end", [begin, len(body) + 4]),
            ("reversed", [end, begin]),
            ("negative", [-4, end]),
            ("overlapping", [max(0, begin - 4), end - 4]),
            ("huge", [0, 2**62]),
            ("three", [begin, end, end]),
            ("text", ["0", "4"]),
        ):
            wrong = header | {name: entry | {"data_offsets": offsets}}
            yield f"{name} offsets {what}", joined(wrong, body), "refused"
    for dtype in ("I64", "BOOL", "U8", "F7", "F64", "BF16", 3, None):
        name = rng.choice(names)
        wrong = header | {name: header[name] | {"dtype": dtype}}
        yield f"{name} dtype {dtype}", joined(wrong, body), "refused"
    for shape in ([-1], [2**40, 2**40], [0], ["16"], 16, None, [1.5]):
        name = rng.choice(names)
        wrong = header | {name: header[name] | {"shape": shape}}
        yield f"{name} shape {shape}", joined(wrong, body), "refused"
    name = rng.choice(names)
    renamed = {(f"{key}.x" if key == name else key): value for key, value in header.items()}
    yield f"{name} renamed", joined(renamed, body), "refused"


def tensor_cases(data: bytes, rng: random.Random) -> Iterator[Made]:
    """Yield files with changed tensors."""
    from safetensors.numpy import load, save

    tensors = load(data)
    names = sorted(tensors)
    doubled = {name: x.astype(np.float64) for name, x in tensors.items()}
    yield "in float64", save(doubled), "accepted"
    for _ in range(2):
        name = rng.choice(names)
        yield f"{name} lacking", save({k: v for k, v in tensors.items() if k != name}), "refused"
        yield f"{name} transposed", save(tensors | {name: _reshaped(tensors[name])}), "refused"
        for value in (np.nan, np.inf, -np.inf):
            broken = tensors[name].copy()
            broken.flat[rng.randrange(broken.size)] = value
            yield f"{name} holds {value}", save(tensors | {name: broken}), "refused"
        for dtype in (np.int32, np.bool_, np.uint8):
            yield (
                f"{name} {dtype.__name__}",
                save(tensors | {name: np.ones(tensors[name].shape, dtype)}),
                "refused",
            )
    yield "one more", save(tensors | {"bert.extra.weight": np.zeros((2, 2), np.float32)}), "refused"
    yield "nothing", save({}), "refused"
    too_large = tensors[names[0]].astype(np.float64)
    too_large.flat[0] = 1e300
    yield "beyond float32", save(tensors | {names[0]: too_large}), "refused"


def _reshaped(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.append(values.reshape(-1), values.flat[0]))
