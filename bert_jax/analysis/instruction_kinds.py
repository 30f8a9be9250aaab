"""Sort the instructions of a compiled train step by the kind of work they do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bert_jax.analysis.collectives import KINDS as COLLECTIVES
from bert_jax.analysis.custom_calls import (
    is_library_attention,
    is_library_product,
    is_pallas,
    target,
)
from bert_jax.analysis.hlo import Computations, Instruction, arrays, called_by
from bert_jax.analysis.source_lines import Frame

# Elementwise work includes norms, activations, dropout, residual connections, embeddings and bias
# gradients; the attention softmax includes its masks and dropout. Fused attention is one kernel for
# the products and the softmax.
KINDS = (
    *("dense products", "attention products", "attention softmax", "fused attention"),
    *("elementwise", "vocabulary and loss", "optimizer", "collectives", "copies"),
)
DMA_COPIES, PALLAS_KERNELS, SCALARS = "DMA copies", "Pallas kernels", "scalar operations"

_LAYERS, _ATTENTION, _VOCABULARY, _OPTIMIZER = "layers", "attention", "vocabulary", "optimizer"
# Patterns for the module and the function of a call, with the part of the step that the call
# belongs to. Calls of shared functions, such as dropout, match no row, and belong to the same part
# as their callers.
_PARTS: Sequence[tuple[str, str, str]] = (
    (r"layers", r"scores_of", _VOCABULARY),
    (r"layers", r"Dense\.", _LAYERS),
    (r"embeddings", r"Embeddings\.attend", _VOCABULARY),
    (r"embeddings|norms|activations|shared_input", r"", _LAYERS),
    (r"(\w+_)?attention|rotary|flash_\w+", r"", _ATTENTION),
    (r"encoder|transformer_layer", r"", _LAYERS),
    (r"heads|classifiers|pretraining_models|sentence_embedding", r"", _VOCABULARY),
)
# Patterns for the module and the function of a call that computes a layer of an encoder, or loops
# over layers.
_LAYER_CALLS = ((r"transformer_layer", r""), (r"encoder", r"Encoder\.(_layer_step|_scan)"))
# Modules with functions and layers that several parts of the step use.
_SHARED = frozenset({"activations", "dropout", "layers", "norms", "ops", "products", "task"})
_PRODUCTS = frozenset({"dot", "convolution"})
_GATHERS = frozenset({"gather", "scatter"})
_MOVES = frozenset(
    {
        *("bitcast", "bitcast-convert", "concatenate", "copy", "dynamic-slice"),
        *("dynamic-update-slice", "pad", "reshape", "slice", "transpose"),
    }
)
# Operations that take no time themselves, since they only name values or run other computations.
_FREE = frozenset(
    {
        *("after-all", "async-start", "bitcast", "call", "conditional", "constant"),
        *("get-tuple-element", "opt-barrier", "parameter", "partition-id", "replica-id", "tuple"),
        *("while",),
    }
)
_OPTIMIZER_FILES = (
    "bert_jax/training/averaging.py",
    "bert_jax/training/optimizer.py",
    "bert_jax/training/transformations.py",
)
_FREE_TARGETS = ("AllocateBuffer", "ConcatBitcast")


def is_product(part: Instruction) -> bool:
    """Return whether an instruction is a matrix multiplication."""
    return part.opcode in _PRODUCTS or is_library_product(part)


def is_free(line: Instruction) -> bool:
    """Return whether an instruction takes no time itself, such as one that only names a value."""
    if line.opcode == "custom-call":
        return target(line) in _FREE_TARGETS
    return line.opcode in _FREE or line.opcode.endswith(("-done", "-update"))


def is_dma(line: Instruction) -> bool:
    """Return whether an instruction starts a copy that runs while the device computes."""
    return line.opcode.endswith("-start") and line.opcode.removesuffix("-start") not in COLLECTIVES


def contents(line: Instruction, computations: Computations) -> list[Instruction]:
    """Return the instructions in a fusion, or only the instruction itself if it is not a fusion."""
    if line.opcode != "fusion":
        return [line]
    return [
        part
        for name in called_by(line)
        for inner in computations.get(name, ())
        if inner.opcode not in _FREE or inner.opcode == "bitcast"
        for part in contents(inner, computations)
    ]


def main_part(line: Instruction, parts: Sequence[Instruction]) -> Instruction:
    """Return the part of an instruction whose source line describes it best.

    If the instruction contains matrix multiplications, the result is the first one. Otherwise, the
    result is the instruction itself, unless its last part only moves data, for example into the
    arrays that a loop collects. In that case, the result is the last part that computes something.
    """
    product = next((part for part in parts if is_product(part)), None)
    if product is not None or not parts or parts[-1].opcode not in _MOVES:
        return product or line
    return next((part for part in reversed(parts) if part.opcode not in _MOVES), line)


def kind_of(parts: Sequence[Instruction], stack: Sequence[Frame]) -> str:
    """Return the kind of work that an instruction does, one of `KINDS`.

    Args:
      parts: the instructions that run as part of it.
      stack: the calls that created its matrix multiplication or, if it has none, its result. The
        innermost call comes first.
    """
    opcodes = {part.opcode.removesuffix("-start") for part in parts}
    part, multiplies = _part(stack), any(map(is_product, parts))
    if any(map(is_library_attention, parts)) or (part == _ATTENTION and any(map(is_pallas, parts))):
        return "fused attention"
    if not multiplies:
        if opcodes & set(COLLECTIVES):
            return "collectives"
        if opcodes <= _MOVES:
            return "copies"
    if part == _OPTIMIZER:
        return "optimizer"
    if part == _VOCABULARY:
        return "vocabulary and loss"
    if multiplies:
        return "attention products" if part == _ATTENTION else "dense products"
    return "attention softmax" if part == _ATTENTION else "elementwise"


def unestimated_kind(line: Instruction, parts: Sequence[Instruction]) -> str:
    """Return a plural noun for an instruction that the compiler does not estimate."""
    opcodes = {part.opcode for part in parts}
    if line.opcode == "custom-call":
        return PALLAS_KERNELS if is_pallas(line) else f"{target(line)} custom calls"
    if opcodes & _GATHERS:
        return "gathers and scatters"
    if "sort" in opcodes:
        return "sorts"
    if all(array.size == 1 for array in arrays(line.result)):
        return SCALARS
    return "copies" if opcodes <= _MOVES else "other operations"


def in_layer(stack: Sequence[Frame]) -> bool:
    """Return whether the calls that created an instruction include a layer of an encoder.

    Args:
      stack: the calls, with the innermost call first.
    """
    return any(
        re.fullmatch(module, frame.module) and re.match(function, frame.function)
        for frame in stack
        if frame.path.startswith("bert_jax/models/")
        for module, function in _LAYER_CALLS
    )


def caller(stack: Sequence[Frame]) -> Frame | None:
    """Return the innermost call of a function that only one part of the step uses, if any."""
    own = (frame for frame in stack if _part_of(frame) and frame.module not in _SHARED)
    return next(own, None)


def _part(stack: Sequence[Frame]) -> str:
    if any(_part_of(frame) == _OPTIMIZER for frame in stack):
        return _OPTIMIZER
    return next(filter(None, map(_part_of, stack)), _LAYERS)


def _part_of(frame: Frame) -> str | None:
    """Return the part of the step that a call belongs to; None for calls of shared functions."""
    if frame.package == "optax" or frame.path.startswith(_OPTIMIZER_FILES):
        return _OPTIMIZER
    if frame.path.startswith("bert_jax/tasks/"):
        return _VOCABULARY
    if not frame.path.startswith("bert_jax/models/"):
        return None
    return next(
        (
            part
            for module, function, part in _PARTS
            if re.fullmatch(module, frame.module) and re.match(function, frame.function)
        ),
        None,
    )
