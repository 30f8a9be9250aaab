"""Run a model on any number of texts: check, truncate and batch them, and compute the outputs.

`Predictor` is the base class for everything that runs a trained model on text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from bert_jax.inference.uses import unsuitable
from bert_jax.labeled_data.feature_batches import (
    TOKENS_IN_A_CACHE,
    FeatureBatches,
    InOrder,
    rows_by_length,
)
from bert_jax.labeled_data.features import Features, build_sequences, truncate_pair
from bert_jax.local_paths import naming_urls
from bert_jax.models.options import DTypeName
from bert_jax.processes import format_bytes, memory_bytes
from bert_jax.runs.checkpoints import load_model
from bert_jax.runs.model_location import local_model
from bert_jax.runs.work_dir import (
    InferenceDefaults,
    read_generator,
    read_inference_defaults,
    read_model,
)
from bert_jax.tokenizers.tokenizer import Tokenizer

Text = str | tuple[str, str]


class UnusableText(ValueError):
    """An error that reports which texts cannot be used and why.

    Attributes:
      reasons: a dict from the index of each unusable text to the reason.
      index: the index of the first unusable text, which the message describes.
      reason: the reason why the first unusable text cannot be used.
    """

    def __init__(self, reasons: Mapping[int, str], count: int):
        self.reasons = dict(sorted(reasons.items()))
        self.index, self.reason = next(iter(self.reasons.items()))
        message = self.reason if count == 1 else f"text {self.index} of {count}: {self.reason}"
        super().__init__(message)


def refuse(reasons: Mapping[int, str], count: int) -> None:
    """Raise `UnusableText` if at least one of `count` texts is unusable.

    The dict `reasons` maps the index of each unusable text to the reason.
    """
    if reasons:
        raise UnusableText(reasons, count)


class TruncatedTexts(NamedTuple):
    """Tokenized texts, and whether each one was truncated."""

    features: Features
    truncated: list[bool]


def as_list(values: Any, expected: str = "a string or a list of strings") -> list[Any]:
    """Return the items of an array or of any sequence as a list.

    Other iterables are rejected, since iterating over a dict yields its keys, and iterating over
    bytes yields numbers.

    Raises:
      ValueError: the value has a different type; the message names the `expected` type.
    """
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray, memoryview)):
        return list(values)
    items = values.tolist() if hasattr(values, "tolist") else None  # NumPy arrays, pandas columns
    if not isinstance(items, list):
        raise ValueError(f"expected {expected}, got a value of type {type(values).__name__}")
    return items


def as_pairs(first: str | list[str], second: str | list[str]) -> list[tuple[str, str]]:
    """Return a list of pairs, given two strings or two lists of strings.

    Raises:
      ValueError: the arguments are not two strings or two lists of the same length.
    """
    if isinstance(first, str) and isinstance(second, str):
        return [(first, second)]
    expected = "two strings, or two lists of the same length"
    if isinstance(first, str) or isinstance(second, str):
        raise ValueError(f"expected {expected}, got one string")
    firsts, seconds = as_list(first, expected), as_list(second, expected)
    if len(firsts) != len(seconds):
        raise ValueError(f"expected {expected}, got lists of {len(firsts)} and {len(seconds)}")
    return list(zip(firsts, seconds, strict=True))


def is_integer(number: object) -> bool:
    """Return whether a number has one of Python's or NumPy's integer types."""
    return isinstance(number, Integral)


def check_strings(texts: Sequence[Sequence[object]]) -> None:
    """Raise `UnusableText` if any part of a text is not a string or is not valid Unicode."""
    refuse(_string_problems(texts), len(texts))


def _string_problems(texts: Sequence[Sequence[object]]) -> dict[int, str]:
    problems = {
        index: next(filter(None, map(_string_problem, parts)), "")
        for index, parts in enumerate(texts)
    }
    return {index: problem for index, problem in problems.items() if problem}


def _string_problem(part: object) -> str:
    """Return the reason why `part` is not a valid Unicode string, or "" if it is valid."""
    if not isinstance(part, str):
        return f"expected a string, got a value of type {type(part).__name__}"
    try:
        part.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"a lone surrogate at character {error.start} is not valid Unicode"
    return ""


def truncate_texts(tokenizer: Tokenizer, texts: Sequence[Text], max_length: int) -> TruncatedTexts:
    """Encode texts as `[CLS] text [SEP]` and pairs as `[CLS] first [SEP] second [SEP]`.

    Sequences have at most `max_length` tokens: a single text is cut off at the end, and in a pair,
    the longer text is shortened first. The ids are the same as those from Hugging Face's
    `BertTokenizerFast(first, second, truncation=True, max_length=max_length)`.

    Raises:
      UnusableText: an item is not a string or a pair of strings, or is not valid Unicode.
    """
    wrong_types = {
        index: "expected a string or a tuple (first, second), got a value of type "
        f"{type(text).__name__}"
        for index, text in enumerate(texts)
        if not isinstance(text, (str, tuple))
    }
    wrong_sizes = {
        index: f"expected a tuple (first, second), got a tuple of length {len(text)}"
        for index, text in enumerate(texts)
        if isinstance(text, tuple) and len(text) != 2
    }
    wrong_strings = _string_problems(
        [text if isinstance(text, tuple) else (text,) for text in texts]
    )
    refuse(wrong_sizes | wrong_strings | wrong_types, len(texts))
    pairs = [text if isinstance(text, tuple) else (text, None) for text in texts]
    flat = [part for pair in pairs for part in pair if part is not None]
    encoded = iter(tokenizer.encode_batch(flat))
    firsts: list[Sequence[int]] = []
    seconds: list[Sequence[int] | None] = []
    truncated = []
    for pair in pairs:
        first: Sequence[int] = next(encoded)
        second: Sequence[int] | None = None if pair[1] is None else next(encoded)
        whole = len(first) + len(second or ())
        if second is None:
            first = first[: max_length - 2]
        else:
            first, second = truncate_pair(first, second, max_length - tokenizer.specials_of_pair)
        firsts.append(first)
        seconds.append(second)
        truncated.append(len(first) + len(second or ()) < whole)
    return TruncatedTexts(Features(build_sequences(tokenizer, firsts, seconds)), truncated)


_SHORTEST_ROW = 16
# Batch sizes for small numbers of sequences, such as a single text or one passage's windows.
_FEW_ROWS = (1, 8)
# Each token has an id, a segment id and a mask, all int32.
_BYTES_OF_A_TOKEN = 3 * 4

Outputs = Mapping[str, jax.Array]
Row = dict[str, NDArray[Any]]


class Program(Protocol):
    """A jitted function that takes a model and a batch."""

    def __call__(self, model: Any, batch: Any) -> Outputs:
        """Return a dict of arrays [rows, ...], keyed by output name."""


def row_lengths(max_length: int) -> tuple[int, ...]:
    """Return the lengths to which rows are padded: powers of two (at least 16) and `max_length`."""
    lengths = []
    length = _SHORTEST_ROW
    while length < max_length:
        lengths.append(length)
        length *= 2
    return (*lengths, max_length)


class BatchRunner:
    """Runs programs that apply a model to sequences, in batches of similar length.

    Each row has one of the lengths in `row_lengths`, and a batch has 1, 8 or `batch_size` rows. All
    batches in a call have the same number of rows, except for batches of long rows on a CPU, which
    run faster with fewer rows. A call therefore compiles at most one shape per length: 6 shapes for
    a model with 512 positions, 7 for a model with 1,024.
    """

    def __init__(self, model: Any, max_length: int, batch_size: int):
        self._model = model
        self._row_lengths = row_lengths(max_length)
        self._batch_size = batch_size
        self.shapes: set[tuple[int, int]] = set()

    def __call__(self, program: Program, features: Features) -> list[Row]:
        """Return the program's outputs for each example, in the examples' order.

        Raises:
          ValueError: an output is not finite.
        """
        rows: list[Row] = [{} for _ in range(len(features))]
        for examples, outputs in self._run(program, features):
            for number, example in enumerate(examples[examples >= 0].tolist()):
                rows[example] = {name: array[number] for name, array in outputs.items()}
        return rows

    def _run(self, program: Program, features: Features) -> Iterator[tuple[NDArray[np.int64], Row]]:
        """Yield each batch's examples and outputs while the next batch is being computed."""
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
                yield _fetch(*pending)
            pending = plan.planned_batch(step).examples, outputs
        assert pending is not None
        yield _fetch(*pending)

    def _check_fits(self, rows: int) -> None:
        """Raise a ValueError if even a batch of the shortest rows does not fit in memory."""
        needed, memory = rows * self._row_lengths[0] * _BYTES_OF_A_TOKEN, memory_bytes()
        if needed > memory:
            raise ValueError(
                f"batch_size={self._batch_size}: a batch takes at least {format_bytes(needed)}, "
                f"but this machine has {format_bytes(memory)}. Use a smaller batch"
            )

    def _rows_for(self, count: int) -> int:
        few = [rows for rows in _FEW_ROWS if count <= rows < self._batch_size]
        return few[0] if few else self._batch_size


def _fetch(examples: NDArray[np.int64], outputs: Outputs) -> tuple[NDArray[np.int64], Row]:
    arrays = jax.device_get(dict(outputs))
    for name, array in arrays.items():
        if not np.isfinite(array[examples >= 0]).all():
            raise ValueError(
                f"the model's {name} are not all finite. Check whether its training diverged"
            )
    return examples, arrays


class Predictor:
    """A trained model that runs on text, using this process's first device.

    Attributes:
      heads: the heads that the class can use; None for any head.
      purpose: the purpose of the class, such as "classify texts", for the error message about a
        model with another head.
      made_by: the function or command that creates a suitable model.
      fallback_defaults: the settings for models whose work directory does not contain any.
    """

    heads: ClassVar[tuple[str, ...] | None]
    purpose: ClassVar[str] = ""
    made_by: ClassVar[str]
    fallback_defaults: ClassVar[InferenceDefaults | None] = None

    @naming_urls()
    def __init__(
        self,
        work_dir: str | os.PathLike[str],
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        dtype: DTypeName = "auto",
        step: int | None = None,
    ):
        """Load the best checkpoint in a work directory, or the newest if none is marked best.

        Args:
          work_dir: the work directory of a run or of `bert-jax import`. A fine-tuned model reads
            texts in the same way as during training.
          batch_size: the maximum number of sequences to compute at once.
          max_length: the maximum number of tokens in a sequence, including special tokens. Defaults
            to the maximum in the fine-tuning run; other models use all their positions (for
            questions, at most 384).
          dtype: the dtype to compute in. "auto" means bfloat16 on accelerators that support it,
            else float32. On a CPU, "bfloat16" is faster if the processor has instructions for
            bfloat16 multiplication (AMX or AVX-512).
          step: the step of the checkpoint; if None, the best or newest one.

        Raises:
          ValueError: there is no such model, it has an unsuitable head, or a number is out of
            range.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: expected 1 or more")
        work_dir = local_model(work_dir)
        config, origin = read_model(work_dir)
        head, positions = config.head, config.encoder.max_positions
        self._has_generator = read_generator(work_dir) is not None
        if self.heads is not None and head not in self.heads:
            purpose = self.purpose or f"have the head {' or '.join(map(repr, self.heads))}"
            fits = self._has_generator and "masked_lm" in self.heads
            raise ValueError(
                unsuitable(work_dir, config, origin, purpose, self.made_by, generator=fits)
            )
        self.check_origin(work_dir, origin)
        self.origin = origin
        trained = load_model(os.fspath(work_dir), dtype, step)
        self.config = trained.config
        self.tokenizer = trained.tokenizer
        self.model = trained.model
        # Each text has at least one token.
        shortest = self.tokenizer.specials_of_pair + 2
        if max_length is not None and not shortest <= max_length <= positions:
            raise ValueError(
                f"max_length={max_length}: expected {shortest} to {positions}, the model's number "
                "of positions"
            )
        self.defaults = read_inference_defaults(work_dir) or self.fallback_defaults
        default_length = (
            positions if self.defaults is None else min(self.defaults.max_length, positions)
        )
        if max_length is None and default_length < shortest:
            raise ValueError(
                f"{work_dir}: model.json is damaged: its usage has max_length={default_length}; "
                f"expected {shortest} or more. Restore model.json from a copy, or set max_length"
            )
        self.max_length = max_length or default_length
        self._runner = BatchRunner(trained.model, self.max_length, batch_size)

    @classmethod
    def check_origin(cls, work_dir: str | os.PathLike[str], origin: Mapping[str, str]) -> None:
        """Raise a ValueError if the model's head was trained for a different purpose."""

    @property
    def num_shapes(self) -> int:
        """The number of batch shapes used so far. Each shape was compiled once."""
        return len(self._runner.shapes)

    def _run(self, program: Program, features: Features) -> list[Row]:
        return self._runner(program, features)
