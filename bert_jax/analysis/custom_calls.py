"""Count the work of the library kernels and Pallas kernels that a compiled program calls."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from bert_jax.analysis.hlo import Instruction, arrays

_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# Pallas compiles a kernel with Mosaic for TPUs, and with Triton or Mosaic GPU for GPUs.
_PALLAS = re.compile(r"tpu_custom_call|__gpu\$xla\.gpu\.triton|mosaic_gpu\w*")
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions": ?\[([^\]]*)\]')
_SCORES = re.compile(r'"intermediate_tensor_shape": ?\{.*?"dimensions": ?\[([^\]]*)\]')
_COST = re.compile(
    r'"cost_estimate":\{"flops":"(\d+)","transcendentals":"\d+","bytes_accessed":"(\d+)"'
)
_OP_NAME = re.compile(r'op_name="([^"]*)"')
# The part that JAX adds to the path of an operation that the backward pass recomputes. It comes
# after the parts for `jax.checkpoint` and the transformations around it.
_RECOMPUTED = "rematted_computation"
# The number of matrix multiplications in attention that have the scores or their gradient as an
# operand or a result. The forward pass has two, and the backward pass, which recomputes the scores,
# has five.
FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5


@dataclass(frozen=True)
class Work:
    """The work of one run of a kernel.

    Attributes:
      flops: the number of floating-point operations in matrix multiplications.
      bytes: the number of bytes of main memory that the kernel reads and writes; None if unknown.
    """

    flops: int
    bytes: int | None = None


def target(line: Instruction) -> str:
    """Return the name of the kernel that an instruction calls, or "" for other instructions."""
    match = _TARGET.search(line.rest) if line.opcode == "custom-call" else None
    return match[1] if match else ""


def is_library_product(line: Instruction) -> bool:
    """Return whether an instruction is a matrix multiplication by cuBLAS."""
    return target(line).startswith("__cublas")


def is_library_attention(line: Instruction) -> bool:
    """Return whether an instruction is cuDNN's fused attention, or its backward pass."""
    return target(line).startswith("__cudnn$fmha")


def is_pallas(line: Instruction) -> bool:
    """Return whether an instruction is a Pallas kernel."""
    return _PALLAS.fullmatch(target(line)) is not None


def is_backward(line: Instruction) -> bool:
    """Return whether a kernel computes gradients.

    With rematerialization, the backward pass also repeats kernels of the forward pass. They do not
    compute gradients, and can be recognized by a mark that JAX adds to the path in their names.
    """
    match = _OP_NAME.search(line.rest)
    path = match[1].rpartition(_RECOMPUTED)[2] if match else ""
    return "Backward" in target(line) or "transpose(" in path


def product_work(line: Instruction, results: Mapping[str, str]) -> Work:
    """Count the FLOPs of a matrix multiplication by cuBLAS.

    Args:
      line: the instruction.
      results: the shape of each result in the instruction's computation.
    """
    contracted = _CONTRACTED.search(line.rest)
    assert contracted is not None, f"{line.name} must specify which dims it contracts"
    left = arrays(results[line.operands[0]])[0]
    size = math.prod(left.dims[dim] for dim in _numbers(contracted[1]))
    return Work(2 * arrays(line.result)[0].size * size)


def attention_work(line: Instruction, results: Mapping[str, str]) -> tuple[Work, int]:
    """Return the FLOPs of cuDNN's fused attention, and the number of tokens it attends to.

    Args:
      line: the instruction.
      results: the shape of each result in the instruction's computation.
    """
    scores = _SCORES.search(line.rest)
    assert scores is not None, f"{line.name} must contain the shape of the scores"
    dims = _numbers(scores[1])
    head_dim = arrays(results[line.operands[0]])[0].dims[-1]
    products = BACKWARD_PRODUCTS if is_backward(line) else FORWARD_PRODUCTS
    return Work(products * 2 * math.prod(dims) * head_dim), dims[-1]


def pallas_work(line: Instruction, costs: Mapping[str, Work]) -> Work | None:
    """Return the work of one run of a Pallas kernel; None if it is unknown.

    Args:
      line: the instruction.
      costs: the work of the program's kernels, keyed by the kernel's name (see `pallas_costs`). It
        is used for instructions that do not contain the cost estimate of their `pallas_call`, that
        is, on all devices except TPUs.
    """
    stated = _COST.search(line.rest)
    if stated:
        return Work(int(stated[1]), int(stated[2]))
    match = _OP_NAME.search(line.rest)
    return costs.get(_kernel_name(match[1])) if match else None


def _kernel_name(op_name: str) -> str:
    """Return the `name` of a Pallas call from a path such as "jit(step)/jvp()/NAME/pallas_call".

    If no other function encloses the call, JAX puts the name inside the transformations, as in
    "jit(step)/transpose(jvp(NAME))/pallas_call".
    """
    *_, name, last = ["", *op_name.split("/")]
    return name.rpartition("(")[2].rstrip(")") if last == "pallas_call" else ""


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
