"""A program run over any number of sequences, in batches of few shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from bert_jax.data.finetuning.batches import (
    TOKENS_IN_A_CACHE,
    FeatureBatches,
    InOrder,
    rows_by_length,
)
from bert_jax.data.finetuning.features import Features
from bert_jax.machine_memory import format_bytes, memory_bytes

_SHORTEST_ROW = 16
# Rows of batches with few sequences: one text asked for, or a few windows of one passage.
_FEW_ROWS = (1, 8)
_BYTES_OF_A_TOKEN = 3 * 4  # id, segment and mask entry, as int32

Outputs = Mapping[str, jax.Array]
Row = dict[str, NDArray[Any]]


class Program(Protocol):
    """A jitted function of a model and a batch; its outputs, by name, are [rows, ...]."""

    def __call__(self, model: Any, batch: Any) -> Outputs: ...


def row_lengths(max_length: int) -> tuple[int, ...]:
    """The lengths rows are padded to: powers of two from 16 on, and `max_length`."""
    lengths = []
    length = _SHORTEST_ROW
    while length < max_length:
        lengths.append(length)
        length *= 2
    return (*lengths, max_length)


class BatchRunner:
    """Runs programs of one model over sequences, sorted by length.

    Rows have one of the lengths of `row_lengths`, and a batch has 1, 8 or `batch_size` rows, the
    same in all of a call but for long rows on a CPU, of which fewer are faster: whatever it is
    given, one call compiles no more shapes than there are lengths, 6 for a model of 512 positions
    and 7 for one of 1,024.
    """

    def __init__(self, model: Any, max_length: int, batch_size: int):
        self._model = model
        self._row_lengths = row_lengths(max_length)
        self._batch_size = batch_size
        self.shapes: set[tuple[int, int]] = set()

    def __call__(self, program: Program, features: Features) -> list[Row]:
        """What the program gives for each example, in their order.

        Raises:
          ValueError: an output is not finite.
        """
        rows: list[Row] = [{} for _ in range(len(features))]
        for examples, outputs in self._run(program, features):
            for number, example in enumerate(examples[examples >= 0].tolist()):
                rows[example] = {name: array[number] for name, array in outputs.items()}
        return rows

    def _run(self, program: Program, features: Features) -> Iterator[tuple[NDArray[np.int64], Row]]:
        """Yields batches of examples and their outputs; the next one is under way meanwhile."""
        if not len(features):
            return
        on_cpu = jax.default_backend() == "cpu"
        tokens = TOKENS_IN_A_CACHE // features.sequences_per_example if on_cpu else None
        sizes = rows_by_length(self._row_lengths, self._rows_for(len(features)), tokens)
        self._check_fits(sizes[0])
        plan = InOrder(features.lengths, self._row_lengths, sizes)
        batches = FeatureBatches(features, plan)
        pending: tuple[NDArray[np.int64], Outputs] | None = None
        for step in range(len(batches)):
            batch = batches[step]
            rows, length = batch["token_ids"].shape
            self.shapes.add((rows, length))
            outputs = program(self._model, batch)
            if pending is not None:
                yield _fetched(*pending)
            pending = plan.place(step).examples, outputs
        assert pending is not None
        yield _fetched(*pending)

    def _check_fits(self, rows: int) -> None:
        """Raise ValueError if not even a batch of the shortest rows fits into memory."""
        needed, memory = rows * self._row_lengths[0] * _BYTES_OF_A_TOKEN, memory_bytes()
        if needed > memory:
            raise ValueError(
                f"batch_size={self._batch_size}: a batch takes at least {format_bytes(needed)}, "
                f"but this machine has {format_bytes(memory)}. Use a smaller batch"
            )

    def _rows_for(self, count: int) -> int:
        few = [rows for rows in _FEW_ROWS if count <= rows < self._batch_size]
        return few[0] if few else self._batch_size


def _fetched(examples: NDArray[np.int64], outputs: Outputs) -> tuple[NDArray[np.int64], Row]:
    arrays = jax.device_get(dict(outputs))
    for name, array in arrays.items():
        if not np.isfinite(array[examples >= 0]).all():
            raise ValueError(
                f"the model's {name} are not all finite numbers. Look whether its training diverged"
            )
    return examples, arrays
