"""Inputs to compare two models on: random ones, and sentences with padding and two segments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.tokenizer import Tokenizer
from bert_jax.validation import check_seed

IntArray = NDArray[np.int32]

# Pairs of plain, foreign and odd text, of different lengths.
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
class Probe:
    """A batch: token_ids, segment_ids and attention_mask [batch, length] (1: token, 0: padding)."""

    name: str
    token_ids: IntArray
    segment_ids: IntArray
    attention_mask: IntArray

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int(self.attention_mask.sum())


def random_probe(
    vocab_size: int, num_segments: int, max_positions: int, seed: int, pad_id: int = 0
) -> Probe:
    """Rows of random tokens: the first fills every position (up to 512), the last is short.

    pad_id: of padding. It stands nowhere else: Hugging Face's RoBERTa counts positions by it.
    """
    check_seed(seed)
    rng = np.random.default_rng(seed)
    length = min(max_positions, MOST_POSITIONS)
    shape = (ROWS, length)
    lengths = rng.integers(1, length + 1, ROWS)
    lengths[0], lengths[-1] = length, max(1, length // 4)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    # A few switches a row, so that every segment stands at many positions.
    runs = np.cumsum(rng.random(shape) < 4 / length, axis=1)
    segments = (runs % max(num_segments, 1)) * mask
    token_ids = rng.integers(0, vocab_size - 1, shape)
    token_ids = np.where(mask == 1, token_ids + (token_ids >= pad_id), pad_id)
    return Probe("random", token_ids.astype(np.int32), segments.astype(np.int32), mask)


def sentence_probe(tokenizer: Tokenizer, num_segments: int, max_positions: int) -> Probe:
    """Every pair of `SENTENCES` as the tokenizer's model reads it, padded to the longest."""
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
    return Probe("sentences", token_ids, segment_ids, mask)
