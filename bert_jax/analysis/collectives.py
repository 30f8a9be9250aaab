"""Compute a compiled program's communication volume from its HLO text."""

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
    """One device's traffic from one kind of collective during a single run of a program.

    Attributes:
      count: the number of collectives.
      bytes: the total size in bytes of the collectives' results or, for reduce-scatter, of the
        operands.
      sent: the number of bytes that the device sends with the ring algorithm, which is optimal.
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
    """Return the traffic for each kind of collective in a program, in the order of `KINDS`.

    A collective in a loop is counted once per iteration. The number of iterations is the trip count
    that the compiler annotates. Without an annotation, it is the bound in the loop's condition
    (loop counters from `lax.scan` and the compiler start at 0 and increase by 1) or, if no bound is
    found, 1. If the TPU compiler splits a collective across several fusions to overlap it with
    matmuls, the collective appears in each fusion with the same channel number, but is counted
    once.

    Args:
      hlo: the text of a compiled, partitioned module, as returned by `compiled.as_text()`. Shapes
        in the text are per-device shapes.
      num_devices: the group size to use if the text does not specify groups.
    """
    computations, entry = _parse_computations(hlo)
    by_kind: dict[str, dict[tuple[str, str], Traffic]] = {kind: {} for kind in KINDS}
    for name, runs in _count_runs(computations, entry).items():
        results = {line.name: line for line in computations[name]}
        for line in computations[name]:
            kind = line.opcode.removesuffix("-done")
            if kind not in KINDS:
                continue
            # An asynchronous collective is a pair of instructions: the start specifies the groups,
            # and the end has the result.
            start = line
            if line.opcode.endswith("-done"):
                start = results[line.rest.split(")")[0].strip().lstrip("%")]
            channel = _CHANNEL.search(start.rest)
            key = ("", channel.group(1)) if channel else (name, line.name)
            traffic = _traffic(kind, line.result, start.rest, num_devices)
            traffic = Traffic(runs, runs * traffic.bytes, runs * traffic.sent)
            previous = by_kind[kind].get(key)
            if previous is None or previous.sent < traffic.sent:
                by_kind[kind][key] = traffic
    return {
        kind: sum(traffic.values(), Traffic(0, 0, 0))
        for kind, traffic in by_kind.items()
        if traffic
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
    """Return the size in bytes of an HLO shape such as `f32[16,64]{1,0}` or of a tuple of shapes.

    Raises:
      ValueError: the element type is unknown.
    """
    total = 0
    for dtype, dims in _ARRAY.findall(shape):
        if dtype not in _ITEM_BYTES:
            raise ValueError(f"the compiled program has {dtype} arrays, whose item size is unknown")
        total += _ITEM_BYTES[dtype] * math.prod(int(dim) for dim in dims.split(",") if dim)
    return total


def group_size(attributes: str, num_devices: int) -> int:
    """Return the number of devices in each group of a collective.

    XLA uses several notations: `{{0,1},{2,3}}` lists the groups, `[4,2]<=[8]` means 4 groups of 2,
    and `mesh['a'=2,'b'=4] {'b'}` means groups along the given axes, where `'b':(1)2` refers to part
    of an axis.

    Args:
      attributes: the collective's attributes in the HLO text.
      num_devices: the group size to return if the text does not specify groups.
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


def _parse_computations(hlo: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Return a dict from computation name to instructions, and the entry computation's name."""
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
    assert entry, "the text of a compiled module must have an ENTRY computation"
    return computations, entry


def _count_runs(computations: dict[str, list[_Instruction]], entry: str) -> dict[str, int]:
    """Return how many times each computation runs, counting every branch of a conditional."""
    runs = dict.fromkeys(computations, 0)

    def visit(name: str, count: int) -> None:
        runs[name] += count
        for line in computations[name]:
            # Skip the end of an asynchronous call, which refers to the same computation as its
            # start.
            if not line.opcode.endswith(("-done", "-update")):
                for called, trips in _calls(line, computations):
                    if called in computations:
                        visit(called, count * trips)

    visit(entry, 1)
    return runs


def _calls(
    line: _Instruction, computations: dict[str, list[_Instruction]]
) -> Iterator[tuple[str, int]]:
    """Yield each computation that an instruction calls, with the number of calls."""
    called = [
        name.strip().lstrip("%")
        for names in _CALLED.findall(line.rest)
        for name in names.strip("{}").split(",")
    ]
    trips = 1
    if line.opcode == "while":
        trip_count = _TRIPS.search(line.rest)
        bounds = [_loop_bound(computations.get(name, [])) for name in called]
        trips = int(trip_count.group(1)) if trip_count else max(bounds)
    for name in called:
        yield name, trips


def _loop_bound(condition: list[_Instruction]) -> int:
    """Return N if the condition ends with "counter < N", or 1 for any other computation."""
    if not condition or condition[-1].opcode != "compare":
        return 1
    compare = condition[-1]
    constants = {line.name: line.rest for line in condition if line.opcode == "constant"}
    operands = compare.rest.split(")")[0].split(",")
    bound = constants.get(operands[-1].strip().lstrip("%"), "")
    digits = re.match(r"(\d+)\)", bound)
    return int(digits.group(1)) if digits and "direction=LT" in compare.rest else 1
