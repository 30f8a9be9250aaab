"""Build inputs for comparing two models, and measure how much their outputs differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import check_seed

IntArray = NDArray[np.int32]

# Text pairs of different lengths, in several languages and scripts.
SENTENCES = (
    ("Istanbul is a great city to visit.", "I was just there."),
    ("The owl in the old oak heard the train long before anybody else did.", "It kept still."),
    ("Water boils at 100 °C at sea level, and at 71 °C on top of Mount Everest.", "Why?"),
    ("Der Zug fährt über die Brücke.", "El niño comió una manzana."),
    ("for i in range(10): print(i ** 2)", "What does this program print?"),
    ("東京は日本の首都です。", "Tokyo is the capital of Japan 🗼."),
    ("No.", "She had read the letter twice, folded it, put it back where it came from, and left."),
    ("An apple a day keeps the doctor away, they say; he ate two and still caught a cold.", ""),
)
ROWS = 4
MOST_POSITIONS = 512


@dataclass(frozen=True)
class ProbeInput:
    """A batch on which two models are compared.

    Attributes:
      name: the batch's name in messages.
      token_ids: token ids, [batch, length].
      segment_ids: segment ids, [batch, length].
      attention_mask: 1 for tokens and 0 for padding, [batch, length].
    """

    name: str
    token_ids: IntArray
    segment_ids: IntArray
    attention_mask: IntArray

    @property
    def tokens(self) -> int:
        """The number of tokens, not counting padding."""
        return int(self.attention_mask.sum())


def random_probe(
    vocab_size: int, num_segments: int, max_positions: int, seed: int, pad_id: int = 0
) -> ProbeInput:
    """Return a batch of random tokens whose rows have different lengths.

    The first row fills all positions (at most 512), and the last row is a quarter as long.

    Args:
      vocab_size: the exclusive upper bound on token ids.
      num_segments: the number of segment ids to use; 0 is treated as 1.
      max_positions: the number of positions that both models support.
      seed: the seed for the random numbers.
      pad_id: the padding id. It is never drawn as a token, because Hugging Face's RoBERTa computes
        positions from it.
    """
    check_seed(seed)
    rng = np.random.default_rng(seed)
    length = min(max_positions, MOST_POSITIONS)
    shape = (ROWS, length)
    lengths = rng.integers(1, length + 1, ROWS)
    lengths[0], lengths[-1] = length, max(1, length // 4)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    # Switch segments a few times per row, so that every segment occurs at many positions.
    runs = np.cumsum(rng.random(shape) < 4 / length, axis=1)
    segments = (runs % max(num_segments, 1)) * mask
    token_ids = rng.integers(0, vocab_size - 1, shape)
    token_ids = np.where(mask == 1, token_ids + (token_ids >= pad_id), pad_id)
    return ProbeInput("random", token_ids.astype(np.int32), segments.astype(np.int32), mask)


def sentence_probe(tokenizer: Tokenizer, num_segments: int, max_positions: int) -> ProbeInput:
    """Return all pairs in `SENTENCES` as one batch, tokenized and padded to the longest pair."""
    flat = [text for pair in SENTENCES for text in pair]
    encoded = tokenizer.encode_batch(flat, specials_as_text=True)
    rows = []
    for first, second in zip(encoded[::2], encoded[1::2], strict=True):
        ids = [tokenizer.cls_id, *first, tokenizer.sep_id]
        segments = [0] * len(ids)
        if second:
            ids += [tokenizer.sep_id] * (tokenizer.separators_between - 1)
            segments += [0] * (tokenizer.separators_between - 1)
            ids += [*second, tokenizer.sep_id]
            segments += [min(1, max(num_segments - 1, 0))] * (len(second) + 1)
        rows.append((ids[:max_positions], segments[:max_positions]))
    length = max(len(ids) for ids, _ in rows)
    token_ids = np.full((len(rows), length), tokenizer.pad_id, np.int32)
    segment_ids = np.zeros_like(token_ids)
    mask = np.zeros_like(token_ids)
    for row, (ids, segments) in enumerate(rows):
        token_ids[row, : len(ids)] = ids
        segment_ids[row, : len(ids)] = segments
        mask[row, : len(ids)] = 1
    return ProbeInput("sentences", token_ids, segment_ids, mask)


Outputs = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Sizes:
    """Exclusive upper bounds on the token ids, segment ids and positions that a model accepts."""

    vocab_size: int
    num_segments: int
    max_positions: int


class ComparableModel(Protocol):
    """A model from any framework whose outputs can be compared.

    Attributes:
      title: a description of the model for messages.
      sizes: the limits on the model's inputs, or None if its file does not record them.
      labels: the names of the model's scores, or () if the model has no scores or does not record
        their names.
    """

    title: str
    sizes: Sizes | None
    labels: tuple[str, ...]

    def outputs(self, probe: ProbeInput) -> Outputs:
        """Return float32 outputs, keyed by the names that `bert_jax.models.model.infer` uses."""
        ...


@dataclass(frozen=True)
class Difference:
    """How much two models differ in one output.

    Both numbers are infinite if the shapes differ or an output contains non-finite values.

    Attributes:
      largest: the largest absolute difference.
      relative: `largest` divided by the root mean square of the second model's values.
    """

    largest: float
    relative: float


def differences(first: Outputs, second: Outputs, probe: ProbeInput) -> dict[str, Difference]:
    """Return the difference in each output that both models have, ignoring padding.

    Outputs are listed in the order in which a model computes them.
    """
    return {
        name: _difference(name, first[name], second[name], probe)
        for name in sorted(first.keys() & second.keys(), key=_order)
    }


def unequal(first: Outputs, second: Outputs, probe: ProbeInput) -> list[str]:
    """Return the names of the shared outputs that are not bitwise equal, ignoring padding.

    0.0 and -0.0 count as unequal, and so do outputs with different shapes.
    """
    return [
        name
        for name in sorted(first.keys() & second.keys(), key=_order)
        if not _same_bits(*_compared(name, first[name], second[name], probe))
    ]


def misshapen(first: Outputs, second: Outputs) -> list[str]:
    """Return one line for each shared output that has different shapes in the two models."""
    return [
        f"{name} is {list(first[name].shape)} in A and {list(second[name].shape)} in B"
        for name in sorted(first.keys() & second.keys(), key=_order)
        if first[name].shape != second[name].shape
    ]


def unpaired_outputs(first: Mapping[str, object], second: Mapping[str, object]) -> list[str]:
    """Return the names of the outputs that only one of the two models has."""
    return sorted(first.keys() ^ second.keys(), key=_order)


def _difference(
    name: str, first: NDArray[np.float32], second: NDArray[np.float32], probe: ProbeInput
) -> Difference:
    if first.shape != second.shape:
        return Difference(np.inf, np.inf)
    first, second = _compared(name, first, second, probe)
    first, second = first.astype(np.float64), second.astype(np.float64)
    largest = float(np.max(np.abs(first - second)))
    size = float(np.sqrt(np.mean(np.square(second))))
    if not (np.isfinite(largest) and np.isfinite(size)):
        return Difference(np.inf, np.inf)
    if largest == 0.0:
        return Difference(0.0, 0.0)
    return Difference(largest, largest / size if size else np.inf)


def _compared(
    name: str, first: NDArray[np.float32], second: NDArray[np.float32], probe: ProbeInput
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Drop the padding from two outputs with a length axis; return other outputs unchanged."""
    has_length = first.ndim == 3 or name == "replaced_token_logits"  # [batch, length, ...]
    if first.shape != second.shape or not has_length:
        return first, second
    real = probe.attention_mask.astype(bool)
    return first[real], second[real]


def _same_bits(first: NDArray[np.float32], second: NDArray[np.float32]) -> bool:
    one, other = (np.ascontiguousarray(values, np.float32) for values in (first, second))
    return np.array_equal(one.view(np.uint32), other.view(np.uint32))


def _order(name: str) -> tuple[int, int]:
    """Return a sort key that puts embeddings first, then layers by number, then heads."""
    number = re.fullmatch(r"hidden_(\d+)", name)
    if number:
        return 0, int(number.group(1))
    return 1, list(_TITLES).index(name)


_TITLES = {
    "hidden_0": "embeddings",
    "hidden": "last layer",
    "pooled": "pooled output",
    "token_logits": "masked-LM logits",
    "next_sentence_logits": "sentence-pair logits",
    "replaced_token_logits": "replaced-token logits",
    "logits": "logits",
}


def title(name: str) -> str:
    """Return a readable name for an output, such as "last layer"."""
    return _TITLES.get(name) or f"layer {name.removeprefix('hidden_')}"


def difference_table(by_probe: Mapping[str, Mapping[str, Difference]]) -> list[str]:
    """Return the lines of a table with one row per output and two columns per probe.

    Args:
      by_probe: the differences, keyed by probe name and then by output name.
    """
    lines = [f"{'':22}" + "".join(f"{name:>26}" for name in by_probe)]
    lines.append(f"{'':22}" + f"{'largest':>14}{'relative':>12}" * len(by_probe))
    for name in next(iter(by_probe.values())):
        cells = [
            f"{rows[name].largest:14.2e}{rows[name].relative:12.2e}" for rows in by_probe.values()
        ]
        lines.append(f"{title(name):22}" + "".join(cells))
    return lines
