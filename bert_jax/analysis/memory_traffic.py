"""Count the bytes of main memory that an instruction of a compiled program reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bert_jax.analysis.custom_calls import is_library_attention, is_library_product
from bert_jax.analysis.hlo import (
    Computations,
    Instruction,
    array_bytes,
    arrays,
    called_by,
)

# Operations that read only a part of their first operand. The part is as large as the result.
_READ_PART = ("dynamic-slice", "gather", "slice")

_WORKSPACES = ("s8", "u8")


def main_memory_bytes(
    line: Instruction, results: Mapping[str, str], computations: Computations
) -> int:
    """Return the number of bytes of main memory that one run of an instruction reads and writes.

    Operands and results in vector memory do not count. If an array is updated in place, or only
    slices of it are read, only the size of these slices counts.

    Args:
      line: the instruction.
      results: the shape of each result in the instruction's computation, with its layout.
      computations: the computations of the module, which contain those that fusions call.
    """
    operands = line.operands
    read = 0
    for number, operand in enumerate(operands):
        shape = arrays(results.get(operand, ""))
        if any(array.in_main_memory for array in shape):
            whole = sum(array.bytes for array in shape if array.in_main_memory)
            read += min(whole, _read(line, number, whole, computations))
    sizes = _written(line, results, computations)
    written = sum(
        size for array, size in zip(arrays(line.result), sizes, strict=True) if array.in_main_memory
    )
    return read + written


def copied_bytes(line: Instruction) -> int:
    """Return the number of bytes of main memory that a DMA copy reads and writes.

    The result of the instruction that starts the copy is a tuple of the two arrays involved and a
    flag. If only a slice of one array is copied, the tuple still contains the whole array.
    """
    ends = arrays(line.result)[:2]
    return min(end.bytes for end in ends) * sum(end.in_main_memory for end in ends)


def _read(line: Instruction, number: int, whole: int, computations: Computations) -> int:
    """Return how many bytes of the operand with this number an instruction reads."""
    if line.opcode == "fusion":
        called = called_by(line)[0]
        body = computations.get(called, ())
        parameter = next(
            (x for x in body if x.opcode == "parameter" and x.rest.startswith(f"{number})")), None
        )
        return whole if parameter is None else _used(parameter.name, body, whole, computations)
    if line.opcode in _READ_PART and number == 0:
        return array_bytes(line.result)
    if line.opcode == "dynamic-update-slice" and number == 0:
        return 0
    return whole


def _used(name: str, body: Sequence[Instruction], whole: int, computations: Computations) -> int:
    """Return how many of a value's `whole` bytes the instructions of a computation read."""
    total = 0
    for line in body:
        for number, operand in enumerate(line.operands):
            if operand == name and line.opcode == "bitcast":
                total += _used(line.name, body, whole, computations)
            elif operand == name and line.opcode != "tuple":
                total += _read(line, number, whole, computations)
    return min(total, whole)


def _written(
    line: Instruction, results: Mapping[str, str], computations: Computations
) -> Sequence[int]:
    """Return how many bytes of each array of its result an instruction writes."""
    if line.opcode == "dynamic-update-slice":
        return [array_bytes(results.get(line.operands[1], ""))]
    whole = [array.bytes for array in arrays(line.result)]
    if is_library_product(line) or is_library_attention(line):
        # The last result is not data, but the library's workspace.
        whole[-1] = 0 if arrays(line.result)[-1].dtype in _WORKSPACES else whole[-1]
    body = computations.get(called_by(line)[0], ()) if line.opcode == "fusion" else ()
    if not body:
        return whole
    by_name = {inner.name: inner for inner in body}
    inside = {inner.name: inner.result for inner in body}
    root = body[-1]
    ends = [by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    written = [_written(_origin(end, by_name), inside, computations) for end in ends]
    parts = [size for sizes in written for size in sizes]
    return parts if len(parts) == len(whole) else whole


def _origin(line: Instruction, by_name: Mapping[str, Instruction]) -> Instruction:
    """Return the instruction that computes a value, if `line` only renames it."""
    while line.opcode == "bitcast" and line.operands[0] in by_name:
        line = by_name[line.operands[0]]
    return line
