"""Compute a compiled program's communication volume from its HLO text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from bert_jax.analysis.hlo import array_bytes, count_runs, parse_computations

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

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


def collectives(hlo: str, num_devices: int) -> dict[str, Traffic]:
    """Return the traffic for each kind of collective in a program, in the order of `KINDS`.

    A collective in a loop is counted once per iteration (see `count_runs`). If the TPU compiler
    splits a collective across several fusions to overlap it with matmuls, the collective appears in
    each fusion with the same channel number but is counted only once.

    Args:
      hlo: the text of a compiled, partitioned module, as returned by `compiled.as_text()`. Shapes
        in the text are per-device shapes.
      num_devices: the group size to use if the text does not specify groups.
    """
    computations, entry = parse_computations(hlo)
    by_kind: dict[str, dict[tuple[str, str], Traffic]] = {kind: {} for kind in KINDS}
    for name, runs in count_runs(computations, entry).items():
        results = {line.name: line for line in computations[name]}
        for line in computations[name]:
            kind = line.opcode.removesuffix("-done")
            if kind not in KINDS:
                continue
            # An asynchronous collective is a pair of instructions: the first one specifies the
            # groups, and the second one returns the result.
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


def between_slices(hlo: str, num_slices: int) -> Traffic:
    """Return a device's traffic between TPU slices, over the data-center network.

    The TPU compiler turns each collective across slices into collectives within each slice, which
    `collectives` counts, and a transfer that the hosts carry out. `bytes` is the size of the
    results of these transfers, and `sent` assumes the ring algorithm for sums.

    Args:
      hlo: the text of a compiled, partitioned module.
      num_slices: the number of slices.
    """
    computations, entry = parse_computations(hlo)
    total = Traffic(0, 0, 0)
    for name, runs in count_runs(computations, entry).items():
        starts = {line.name: line for line in computations[name]}
        for line in computations[name]:
            if line.opcode != "recv-done" or "xla_megascale_runtime" not in line.rest:
                continue
            size = array_bytes(line.result)
            start = starts[line.rest.split(")")[0].strip().lstrip("%")]
            sums = "_xla_megascale_reduce_operation" in start.rest
            sent = 2 * size * (num_slices - 1) // num_slices if sums else size
            total += Traffic(runs, runs * size, runs * sent)
    return total


def _traffic(kind: str, result: str, attributes: str, num_devices: int) -> Traffic:
    size = array_bytes(result)
    if kind == "collective-permute":
        return Traffic(1, size, size)
    group = group_size(attributes, num_devices)
    if kind == "reduce-scatter":
        size *= group
    passes = 2 if kind == "all-reduce" else 1
    return Traffic(1, size, passes * size * (group - 1) // group)


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
