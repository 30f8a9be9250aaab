"""Turn files and printed lines into plain values, and compare them with recorded values."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file

if TYPE_CHECKING:
    from .frozen_runs import Case

# Fields in log entries that differ from run to run.
_SPEEDS = {"tokens_per_second", "stall", "seconds", "compiling", "utilisation"}
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_MASKS = (
    (re.compile(rf"{_NUMBER}[kMG]?(?= (?:tok|tokens|MB)/s)"), "#"),
    (re.compile(r"(?<=ETA ).*"), "#"),
    (re.compile(r"(?<=  )[^ ]+( [^ ]+)?(?= per epoch  )"), "#"),
    (re.compile(r" \(\d+ of them from the cache\)"), ""),
    (re.compile(rf"\b{_NUMBER}(?= s\b)"), "#"),
    (re.compile(rf"(?<=at most ){_NUMBER}(?= MiB)"), "#"),
)
_ACCOUNT = re.compile(r"goodput  |speed  | +\d+\.\d%  +[\d.smhd ]+  [a-z ,]+\([a-z_]+\)$")
_DECIMAL = re.compile(r"-?\d[\d,]*\.\d+(?:e[+-]?\d+)?%?")
# Tolerances for machines that round differently. With SSE 4.2 instead of AVX-512, all logged values
# and predictions stayed within RELATIVE, and parameter norms within 3.0e-4.
RELATIVE, ABSOLUTE = 2e-4, 1e-6
PARAMETERS = 1e-3
# These biases cancel out in a softmax, so their gradients are nothing but rounding errors, which
# Adam amplifies.
_WITHOUT_GRADIENT = re.compile(
    r"attention\.self\.key\.bias$|/qa_outputs\.bias$|exported/choices/.*/classifier\.bias$"
)
# The two biases in qa_outputs.bias shift all logits of the same name by the same amount.
_SHIFTED = ("start_logit", "end_logit")
# A checkpoint's data files have random names, and their number varies.
_RANDOM_NAME = re.compile(r"(?<=/d/)[0-9a-f]{32}\b")


def normalized_lines(text: str, root: Path) -> list[str]:
    """Return printed lines without speeds, times and the root directory's name.

    The lines that account for a run's time are removed, since which of them appear depends on the
    speed of the machine. The hint that the processor supports bfloat16 is removed, since not every
    processor does.
    """
    lines = []
    for line in text.replace(str(root), "ROOT").splitlines():
        if line.startswith("hint ") or _ACCOUNT.match(line):
            continue
        for pattern, mask in _MASKS:
            line = pattern.sub(mask, line)
        lines.append(line)
    return lines


def collect(case: Case, place: Path) -> dict[str, Any]:
    """Return the values to record for the files that a case's commands wrote."""

    def matching(patterns: Sequence[str]) -> Iterator[tuple[str, Path]]:
        for pattern in patterns:
            paths = sorted(place.glob(pattern))
            assert paths, f"no file matches {pattern}"
            yield from ((path.relative_to(place).as_posix(), path) for path in paths)

    return {
        "texts": {name: _content(path, place) for name, path in matching(case.texts)},
        "sha256": {name: _sha256(path.read_bytes()) for name, path in matching(case.hashes)},
        "files": {name: _files(path) for name, path in matching(case.listed)},
        "parameters": {name: _parameters(path) for name, path in matching(case.weights)},
    }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content(path: Path, place: Path) -> Any:
    text = path.read_text(encoding="utf-8").replace(str(place.parent), "ROOT")
    if path.suffix == ".json":
        return _without_origin(json.loads(text))
    if path.suffix == ".jsonl":
        entries = [json.loads(line) for line in text.splitlines()]
        return [{k: v for k, v in entry.items() if k not in _SPEEDS} for entry in entries]
    return text.splitlines()


def _without_origin(content: Any) -> Any:
    """Remove dates, hardware and versions from a file's content."""
    left_out = {"date", "hardware", "versions", "libraries", "transformers_version", "seconds"}
    if isinstance(content, dict):
        return {k: _without_origin(v) for k, v in content.items() if k not in left_out}
    if isinstance(content, list):
        return [_without_origin(value) for value in content]
    return content


def _files(directory: Path) -> list[str]:
    names = (
        path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()
    )
    return sorted({_RANDOM_NAME.sub("#", name) for name in names})


def _parameters(path: Path) -> dict[str, Any]:
    return {
        name: {
            "shape": list(x.shape),
            "dtype": str(x.dtype),
            "sha256": _sha256(np.ascontiguousarray(x).tobytes()),
            "sum": float(x.astype(np.float64).sum()),
            "norm": float(np.linalg.norm(x.astype(np.float64))),
        }
        for name, x in sorted(load_file(path).items())
    }


def differences(recorded: Any, measured: Any, *, exact: bool, where: str = "") -> Iterator[str]:
    """Describe each difference between two values, together with its location.

    exact: whether floats and parameter checksums must be equal. If not, floats may differ by
    RELATIVE, and the sums and norms of parameters by PARAMETERS. Parameter checksums are then not
    compared, nor are decimal numbers and whitespace in printed lines. Span logits of the same name
    may all differ by the same amount.
    """
    if not exact and not where:
        for name in _SHIFTED:
            shifts = [old - new for old, new in _pairs(name, recorded, measured)]
            if shifts:
                measured = _shifted(name, measured, sum(shifts) / len(shifts))
    if isinstance(recorded, dict) and isinstance(measured, dict):
        for name in sorted(recorded.keys() ^ measured.keys()):
            yield f"{where}/{name}: {'missing' if name in recorded else 'not recorded'}"
        if not exact and {"norm", "sum", "sha256"} <= recorded.keys():
            yield from _of_parameter(recorded, measured, where)
            return
        for name in sorted(recorded.keys() & measured.keys()):
            pair = recorded[name], measured[name]
            if name == "lines" and not exact:
                pair = _without_decimals(pair[0]), _without_decimals(pair[1])
            yield from differences(*pair, exact=exact, where=f"{where}/{name}")
    elif isinstance(recorded, list) and isinstance(measured, list):
        if len(recorded) != len(measured):
            yield f"{where}: {len(recorded)} entries recorded, {len(measured)} measured"
        for number, pair in enumerate(zip(recorded, measured, strict=False)):
            yield from differences(*pair, exact=exact, where=f"{where}[{number}]")
    elif not _equal(recorded, measured, exact=exact):
        yield f"{where}: recorded {recorded!r}, measured {measured!r}"


def _pairs(name: str, recorded: Any, measured: Any) -> Iterator[tuple[float, float]]:
    """Yield the numbers of this name in two values of the same structure."""
    if isinstance(recorded, dict) and isinstance(measured, dict):
        for key in recorded.keys() & measured.keys():
            if key == name:
                yield recorded[key], measured[key]
            else:
                yield from _pairs(name, recorded[key], measured[key])
    elif isinstance(recorded, list) and isinstance(measured, list):
        for pair in zip(recorded, measured, strict=False):
            yield from _pairs(name, *pair)


def _shifted(name: str, value: Any, shift: float) -> Any:
    """Return a copy of a value with `shift` added to all numbers of this name."""
    if isinstance(value, dict):
        return {
            key: inner + shift if key == name else _shifted(name, inner, shift)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_shifted(name, inner, shift) for inner in value]
    return value


def _equal(recorded: Any, measured: Any, *, exact: bool) -> bool:
    if type(recorded) is float and type(measured) is float and not exact:
        return math.isclose(recorded, measured, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(recorded) is type(measured) and recorded == measured


def _of_parameter(recorded: Any, measured: Any, where: str) -> Iterator[str]:
    for name in ("shape", "dtype"):
        if recorded[name] != measured[name]:
            yield f"{where}/{name}: recorded {recorded[name]}, measured {measured[name]}"
    if _WITHOUT_GRADIENT.search(where):
        return
    size = math.prod(recorded["shape"])
    # Positive and negative values may cancel out in a sum, but the errors in its terms do not.
    for name, scale in (("norm", 1.0), ("sum", math.sqrt(size))):
        difference = abs(recorded[name] - measured[name])
        if difference > PARAMETERS * scale * recorded["norm"] + ABSOLUTE:
            yield f"{where}/{name}: recorded {recorded[name]}, measured {measured[name]}"


def _without_decimals(lines: list[str]) -> list[str]:
    return _DECIMAL.sub("#", " ".join(lines)).split()


def with_new_texts(recorded: Any, measured: Any, where: str = "") -> Any:
    """Return the recorded values, but with the texts replaced by the measured ones.

    Recorded numbers are kept, so that texts and numbers need not be recorded on the same machine.

    Raises:
      ValueError: numbers or checksums differ by more than is allowed between machines.
    """
    if isinstance(recorded, dict) and isinstance(measured, dict):
        if {"norm", "sum", "sha256"} <= recorded.keys() or where.endswith("/sha256"):
            _check_equal(recorded, measured, where)
            return recorded
        return {
            name: with_new_texts(recorded[name], value, f"{where}/{name}")
            if name in recorded
            else value
            for name, value in measured.items()
        }
    if isinstance(recorded, list) and isinstance(measured, list):
        if all(isinstance(value, str) for value in (*recorded, *measured)):
            return _with_new_lines(recorded, measured)
        if len(recorded) != len(measured):
            return measured
        pairs = enumerate(zip(recorded, measured, strict=True))
        return [with_new_texts(*pair, f"{where}[{number}]") for number, pair in pairs]
    if isinstance(recorded, str) and isinstance(measured, str):
        return measured
    _check_equal(recorded, measured, where)
    return recorded


def _check_equal(recorded: Any, measured: Any, where: str) -> None:
    problems = list(differences(recorded, measured, exact=False, where=where))
    if problems:
        raise ValueError("\n".join(["Not only texts have changed:", *problems]))


def _with_new_lines(recorded: list[str], measured: list[str]) -> list[str]:
    """Return the measured lines, but keep recorded ones that differ only in decimals and spacing.

    If a line differs only in its indentation, the measured line is returned.
    """
    keys = [
        ["".join(_DECIMAL.sub("#", x).split()) for x in lines] for lines in (recorded, measured)
    ]
    lines = list(measured)
    for block in SequenceMatcher(None, *keys, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            line = recorded[block.a + offset]
            if line.lstrip() != lines[block.b + offset].lstrip():
                lines[block.b + offset] = line
    return lines


def fingerprint() -> dict[str, Any]:
    """Return the hardware and versions that determine the last bits of a computation."""
    file = Path("/proc/cpuinfo")
    fields = dict.fromkeys(("model name", "flags"), platform.processor())
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in fields:
            fields[name] = value
    return {
        "processor": fields["model name"],
        "flags": _sha256(" ".join(sorted(fields["flags"].split())).encode()),
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{name: version(name) for name in ("jax", "jaxlib", "flax", "optax")},
    }
