"""Find the arrays that a compiled step keeps from the forward pass for the backward pass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bert_jax.analysis.hlo import Instruction, arrays

_INDEX = re.compile(r"\bindex=(\d+)")

# One array of an instruction's result: the instruction's name and the array's number in the result.
_Part = tuple[str, int]


@dataclass
class _Lifetimes:
    """For each array, the number of the instruction that writes it, and of its last reader."""

    names: dict[str, list[_Part | None]] = field(default_factory=dict)
    bytes: dict[_Part, int] = field(default_factory=dict)
    written: dict[_Part, int] = field(default_factory=dict)
    read: dict[_Part, int] = field(default_factory=dict)

    def add(self, number: int, line: Instruction) -> None:
        """Record the arrays that the instruction with this number reads and writes."""
        operands = [self.names.get(operand, []) for operand in line.operands]
        match line.opcode:
            case "parameter" | "constant":
                self.names[line.name] = []
            case "bitcast":
                self.names[line.name] = operands[0] if operands else []
            case "tuple":
                self.names[line.name] = [
                    parts[0] if len(parts) == 1 else None for parts in operands
                ]
            case "get-tuple-element":
                index = _INDEX.search(line.rest)
                assert index is not None and operands
                self.names[line.name] = operands[0][int(index[1]) :][:1]
            case _:
                self._use(number, line, operands)

    def _use(self, number: int, line: Instruction, operands: Sequence[list[_Part | None]]) -> None:
        """Record an instruction that reads arrays and writes new ones."""
        self.read |= {part: number for parts in operands for part in parts if part is not None}
        results = arrays(line.result)
        self.names[line.name] = [(line.name, index) for index in range(len(results))]
        for index, array in enumerate(results):
            self.bytes[line.name, index] = array.bytes if array.in_main_memory else 0
            self.written[line.name, index] = number


def kept_bytes(lines: Sequence[Instruction], end: int, counts: Mapping[str, bool]) -> int:
    """Return the size of the arrays in main memory that are written before and read after `end`.

    Args:
      lines: the instructions of a computation, in the order in which they run.
      end: the number of the instruction at the end of the forward pass.
      counts: a dict from an instruction's name to whether its arrays are counted.
    """
    lifetimes = _Lifetimes()
    for number, line in enumerate(lines):
        lifetimes.add(number, line)
    return sum(
        size
        for part, size in lifetimes.bytes.items()
        if lifetimes.written[part] < end < lifetimes.read.get(part, -1) and counts[part[0]]
    )
