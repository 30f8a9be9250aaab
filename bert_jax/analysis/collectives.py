"""The communication of a compiled program, read from its HLO text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

_ITEM_BYTES = {
    "pred": 1,
    "bf16": 2,
    **{f"{kind}{bits}": bits // 8 for kind in "suf" for bits in (8, 16, 32, 64) if bits >= 8},
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations|called_computations)="
    r"(\{[^}]*\}|%?[\w.-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\s*\{"n":\s*"(\d+)"')
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")


@dataclass(frozen=True)
class Traffic:
    """What one device does in one kind of collective, in one run of the program.

    count: how often. bytes: of the results, or of the operands of a reduce-scatter: the larger
    side. sent: bytes that leave the device by the ring algorithm, the least that any can do.
    """

    count: int
    bytes: int
    sent: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.count + other.count, self.bytes + other.bytes, self.sent + other.sent)


@dataclass(frozen=True)
class _Instruction:
    name: str
    result: str
    opcode: str
    rest: str


def collectives(hlo: str, num_devices: int) -> dict[str, Traffic]:
    """Traffic by kind, in the order of `KINDS`, of what `compiled.as_text()` gave.

    A loop counts as often as it runs: what the compiler noted, or the bound that its condition
    compares a counter with (loops made by `lax.scan` and by the compiler count from 0 by 1), or
    once. A collective that the TPU compiler spread over several fusions to overlap it with
    products appears in each of them under one channel number; it counts once.

    Args:
      hlo: one partitioned module; its shapes are those of one device.
      num_devices: taking part where the text names no groups.
    """
    computations, entry = _computations(hlo)
    found: dict[str, dict[tuple[str, str], Traffic]] = {kind: {} for kind in KINDS}
    for name, times in _times_run(computations, entry).items():
        results = {line.name: line for line in computations[name]}
        for line in computations[name]:
            kind = line.opcode.removesuffix("-done")
            if kind not in KINDS:
                continue
            # An asynchronous pair: groups stand at its start, the plain result at its end.
            start = line
            if line.opcode.endswith("-done"):
                start = results[line.rest.split(")")[0].strip().lstrip("%")]
            channel = _CHANNEL.search(start.rest)
            key = ("", channel.group(1)) if channel else (name, line.name)
            traffic = _traffic(kind, line.result, start.rest, num_devices)
            traffic = Traffic(times, times * traffic.bytes, times * traffic.sent)
            known = found[kind].get(key)
            if known is None or known.sent < traffic.sent:
                found[kind][key] = traffic
    return {
        kind: sum(traffic.values(), Traffic(0, 0, 0)) for kind, traffic in found.items() if traffic
    }


def _traffic(kind: str, result: str, attributes: str, num_devices: int) -> Traffic:
    size = array_bytes(result)
    if kind == "collective-permute":
        return Traffic(1, size, size)
    group = group_size(attributes, num_devices)
    if kind == "reduce-scatter":
        size *= group
    passes = 2 if kind == "all-reduce" else 1
    return Traffic(1, size, passes * size * (group - 1) // group)


def array_bytes(shape: str) -> int:
    """Bytes of an HLO shape such as `f32[16,64]{1,0}` or a tuple of them.

    Raises:
      ValueError: an element type this table does not know.
    """
    total = 0
    for dtype, dims in _ARRAY.findall(shape):
        if dtype not in _ITEM_BYTES:
            raise ValueError(f"the compiled program holds {dtype} arrays, whose size is not known")
        total += _ITEM_BYTES[dtype] * math.prod(int(dim) for dim in dims.split(",") if dim)
    return total


def group_size(attributes: str, num_devices: int) -> int:
    """Devices in each group of a collective, from any of the forms XLA writes them in.

    `{{0,1},{2,3}}`: listed. `[4,2]<=[8]`: 4 groups of 2. `mesh['a'=2,'b'=4] {'b'}`: along the
    named axes, `'b':(1)2` being a part of one.
    """
    listed = re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)
    if listed:
        return len(listed.group(1).split(","))
    counted = re.search(r"replica_groups=\[\d+,(\d+)\]<=", attributes)
    if counted:
        return int(counted.group(1))
    mesh = re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", attributes)
    if mesh:
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh.group(1)))
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh.group(2))
        return math.prod(int(part or sizes[axis]) for axis, part in axes)
    return num_devices


def _computations(hlo: str) -> tuple[dict[str, list[_Instruction]], str]:
    """The instructions of every computation by its name, and the name of the first to run."""
    computations: dict[str, list[_Instruction]] = {}
    entry, current = "", ""
    for text in hlo.splitlines():
        header = _COMPUTATION.match(text)
        if header:
            current = header.group(2)
            computations[current] = []
            entry = current if header.group(1) else entry
        elif text.startswith("}"):
            current = ""
        elif current:
            instruction = _INSTRUCTION.match(text)
            if instruction:
                computations[current].append(_Instruction(*instruction.groups()))
    assert entry, "the text of a compiled module has an ENTRY computation"
    return computations, entry


def _times_run(computations: dict[str, list[_Instruction]], entry: str) -> dict[str, int]:
    """How often each computation runs; the branches of a conditional all count."""
    times = dict.fromkeys(computations, 0)

    def visit(name: str, count: int) -> None:
        times[name] += count
        for line in computations[name]:
            # The end of an asynchronous call names the computation its start has run.
            if not line.opcode.endswith(("-done", "-update")):
                for called, trips in _calls(line, computations):
                    if called in computations:
                        visit(called, count * trips)

    visit(entry, 1)
    return times


def _calls(
    line: _Instruction, computations: dict[str, list[_Instruction]]
) -> Iterator[tuple[str, int]]:
    called = [
        name.strip().lstrip("%")
        for names in _CALLED.findall(line.rest)
        for name in names.strip("{}").split(",")
    ]
    trips = 1
    if line.opcode == "while":
        noted = _TRIPS.search(line.rest)
        bounds = [_loop_bound(computations.get(name, [])) for name in called]
        trips = int(noted.group(1)) if noted else max(bounds)
    for name in called:
        yield name, trips


def _loop_bound(condition: list[_Instruction]) -> int:
    """N of a condition that ends with "counter < N"; 1 for any other computation."""
    if not condition or condition[-1].opcode != "compare":
        return 1
    compare = condition[-1]
    constants = {line.name: line.rest for line in condition if line.opcode == "constant"}
    operands = compare.rest.split(")")[0].split(",")
    bound = constants.get(operands[-1].strip().lstrip("%"), "")
    digits = re.match(r"(\d+)\)", bound)
    return int(digits.group(1)) if digits and "direction=LT" in compare.rest else 1
