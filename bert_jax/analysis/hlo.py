"""Parse the HLO text of a compiled program: its computations, loops and array sizes."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_ITEM_BYTES = {
    "token": 0,  # A token contains no data. It only orders operations.
    "pred": 1,
    "bf16": 2,
    **{f"{kind}{bits}": bits // 8 for kind in "suf" for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("f8e4m3", "f8e4m3fn", "f8e5m2"), 1),
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*(?:e\d+m\d+[a-z]*)?)\[([\d,]*)\](?:\{([^}]*)\})?")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations|called_computations)="
    r"(\{[^}]*\}|%?[\w.-]+)"
)
_OPERAND = re.compile(r"%([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\s*\{"n":\s*"(\d+)"')
# Operations that call a computation whose instructions the device runs one by one.
_SCHEDULING = ("while", "conditional", "call", "async-start")


@dataclass(frozen=True)
class Instruction:
    """An instruction of a compiled program.

    Attributes:
      name: the name, which is unique within the computation.
      result: the shape of the result, or a tuple of shapes in parentheses, with layouts.
      opcode: the operation, such as "fusion".
      rest: the text after the opcode and its opening parenthesis: the operands and attributes.
    """

    name: str
    result: str
    opcode: str
    rest: str

    @property
    def operands(self) -> list[str]:
        """The names of the operands."""
        return _OPERAND.findall(self.rest.split(")")[0])


# A program's computations: a dict from each name to the instructions, in execution order.
Computations = Mapping[str, Sequence[Instruction]]


@dataclass(frozen=True)
class Array:
    """An array in the shape of a result; `str()` returns a string such as "f32[16,64]".

    Attributes:
      dtype: the element type in HLO's notation, such as "bf16".
      dims: the size of each dim.
      in_main_memory: whether the array is in the device's main memory, rather than in its vector or
        scalar memory.
    """

    dtype: str
    dims: tuple[int, ...]
    in_main_memory: bool

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """The size in bytes.

        Raises:
          ValueError: the element type is unknown.
        """
        if self.dtype not in _ITEM_BYTES:
            raise ValueError(
                f"the compiled program has {self.dtype} arrays, whose item size is unknown"
            )
        return _ITEM_BYTES[self.dtype] * self.size

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def arrays(shape: str) -> list[Array]:
    """Parse an HLO shape such as `f32[16,64]{1,0}` or a tuple of shapes."""
    return [
        # For arrays outside main memory, the TPU compiler adds the memory's number to the layout,
        # as in `S(1)`.
        Array(dtype, tuple(int(dim) for dim in dims.split(",") if dim), "S(" not in layout)
        for dtype, dims, layout in _ARRAY.findall(shape)
    ]


def array_bytes(shape: str) -> int:
    """Return the size in bytes of an HLO shape such as `f32[16,64]{1,0}` or of a tuple of shapes.

    Raises:
      ValueError: the element type is unknown.
    """
    return sum(array.bytes for array in arrays(shape))


def parse_computations(hlo: str) -> tuple[Computations, str]:
    """Return the computations of a compiled module and the name of the entry computation.

    Args:
      hlo: the text of a compiled module, as returned by `compiled.as_text()`.
    """
    computations: dict[str, list[Instruction]] = {}
    entry, current = "", ""
    for text in hlo.splitlines():
        header = _COMPUTATION.match(text)
        if header:
            current = header.group(2)
            computations[current] = []
            entry = current if header.group(1) else entry
        elif re.match(r"\}(?!\})", text):
            current = ""
        elif current:
            instruction = _INSTRUCTION.match(text)
            lines = computations[current]
            if instruction:
                lines.append(Instruction(*instruction.groups()))
            elif lines:
                # The attributes of a Pallas kernel contain line breaks.
                lines[-1] = dataclasses.replace(lines[-1], rest=f"{lines[-1].rest}\n{text}")
    assert entry, "the text of a compiled module must have an ENTRY computation"
    return computations, entry


def count_runs(
    computations: Computations, entry: str, *, only_scheduled: bool = False
) -> dict[str, int]:
    """Return how many times each computation runs, counting every branch of a conditional.

    The compiler annotates most loops with the number of their iterations. Without an annotation,
    this number is the bound in the loop's condition, since loop counters from `lax.scan` and the
    compiler start at 0 and increase by 1. A loop without a known bound counts as one iteration.

    Args:
      computations: the computations of a module.
      entry: the name of the entry computation.
      only_scheduled: whether to follow only loops, branches and calls, but not fusions. The device
        runs the instructions in a loop, branch or call one by one, and a fusion as a whole.
    """
    runs = dict.fromkeys(computations, 0)

    def visit(name: str, count: int) -> None:
        runs[name] += count
        for line in computations[name]:
            # Skip the end of an asynchronous call, which refers to the same computation as its
            # start.
            if line.opcode.endswith(("-done", "-update")):
                continue
            if only_scheduled and line.opcode not in _SCHEDULING:
                continue
            for called, trips in _calls(line, computations):
                if called in computations:
                    visit(called, count * trips)

    visit(entry, 1)
    return runs


def called_by(line: Instruction) -> list[str]:
    """Return the names of the computations that an instruction calls."""
    return [
        name.strip().lstrip("%")
        for names in _CALLED.findall(line.rest)
        for name in names.strip("{}").split(",")
    ]


def _calls(line: Instruction, computations: Computations) -> Iterator[tuple[str, int]]:
    """Yield each computation that an instruction calls, with the number of calls."""
    called = called_by(line)
    trips = 1
    if line.opcode == "while":
        trip_count = _TRIPS.search(line.rest)
        bounds = [_loop_bound(computations.get(name, [])) for name in called]
        trips = int(trip_count.group(1)) if trip_count else max(bounds)
    for name in called:
        yield name, trips


def _loop_bound(condition: Sequence[Instruction]) -> int:
    """Return N if the condition ends with "counter < N", or 1 for any other computation."""
    if not condition or condition[-1].opcode != "compare":
        return 1
    compare = condition[-1]
    constants = {line.name: line.rest for line in condition if line.opcode == "constant"}
    operands = compare.rest.split(")")[0].split(",")
    bound = constants.get(operands[-1].strip().lstrip("%"), "")
    digits = re.match(r"(\d+)\)", bound)
    return int(digits.group(1)) if digits and "direction=LT" in compare.rest else 1
