"""Use a pretrained model's heads: fill in masked words, and score pairs of sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import overload

import jax
import numpy as np
from numpy.typing import NDArray

from bert_jax.inference.predictor import (
    Outputs,
    Predictor,
    Row,
    check_strings,
    cut_texts,
    is_whole,
    listed,
    pairs_of,
    refuse,
)
from bert_jax.labeled_data.features import Features, build_sequences
from bert_jax.models.heads import PretrainingModel
from bert_jax.models.layers import select_rows
from bert_jax.models.model import Model, infer
from bert_jax.runs.work_dir import PAIRS
from bert_jax.tasks.task import Batch

# A text with more masks is run once for every 4 of them. For BERT-base and rows of 16 tokens, the
# vocabulary's scores at 4 positions cost 7 % of the encoder's time.
_MASKS_AT_ONCE = 4


@dataclass(frozen=True)
class Guess:
    """A token in the form of `Tokenizer.readable`, and its probability at a mask."""

    token: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """The best guesses for every mask of a text, in order, the most probable guess first.

    truncated: whether the end of the text was cut off because it was too long. A mask is never cut
      off.
    """

    masks: tuple[tuple[Guess, ...], ...]
    truncated: bool


class FillMask(Predictor):
    """Predicts the words behind `[MASK]`, or behind the vocabulary's own name for it (`mask`).

    >>> fill = FillMask("runs/mine")                                          # doctest: +SKIP
    >>> fill("Istanbul is a great [MASK] to visit").masks[0][0].token         # doctest: +SKIP
    'city'
    """

    heads = ("pretraining", "masked_lm")
    made_by = "`bert-jax pretrain`"

    @property
    def mask(self) -> str:
        """The token that marks a word to predict, such as "[MASK]"."""
        return self.tokenizer.specials.mask

    @overload
    def __call__(self, text: str, top_k: int = 5) -> FilledText: ...
    @overload
    def __call__(self, text: list[str], top_k: int = 5) -> list[FilledText]: ...
    def __call__(self, text: str | list[str], top_k: int = 5) -> FilledText | list[FilledText]:
        """Return the `top_k` best guesses for every mask of a text, or of each text in a list.

        Raises:
          ValueError: `top_k` is out of range, or `text` is neither a string nor a list.
          UnusableText: a text has no mask, or has one beyond the model's last position.
        """
        most = self.tokenizer.vocab_size
        if not is_whole(top_k) or not 1 <= top_k <= most:
            raise ValueError(
                f"top_k is {top_k!r}; expected 1 up to the vocabulary's {most}, a whole number"
            )
        filled = self._fill([text] if isinstance(text, str) else listed(text), top_k)
        return filled[0] if isinstance(text, str) else filled

    def _fill(self, texts: Sequence[str], top_k: int) -> list[FilledText]:
        check_strings([[text] for text in texts])
        encoded = self.tokenizer.encode_batch(texts)
        masks = [np.flatnonzero(np.array(ids) == self.tokenizer.mask_id) for ids in encoded]
        lacking = {
            index: reason
            for index, (text, ids, places) in enumerate(zip(texts, encoded, masks, strict=True))
            if (reason := self._lacks(text, len(ids), places))
        }
        refuse(lacking, len(texts))
        capacity = self.max_length - 2
        groups = [
            (index, places[first : first + _MASKS_AT_ONCE])
            for index, places in enumerate(masks)
            for first in range(0, len(places), _MASKS_AT_ONCE)
        ]
        sequences = build_sequences(
            self.tokenizer, [encoded[index][:capacity] for index, _ in groups], [None] * len(groups)
        )
        positions = np.zeros((len(groups), _MASKS_AT_ONCE), np.int32)
        for number, (_, places) in enumerate(groups):
            positions[number, : len(places)] = places + 1  # after [CLS]
        program = partial(_top_tokens, vocab_size=self.tokenizer.vocab_size, top_k=top_k)
        rows = self._run(program, Features(sequences, {"masked_positions": positions}))
        guesses: list[list[tuple[Guess, ...]]] = [[] for _ in texts]
        for (index, places), row in zip(groups, rows, strict=True):
            guesses[index] += [self._guesses(row, number) for number in range(len(places))]
        return [
            FilledText(tuple(each), len(ids) > capacity)
            for each, ids in zip(guesses, encoded, strict=True)
        ]

    def _lacks(self, text: str, num_tokens: int, places: NDArray[np.int64]) -> str:
        """Return why the masks at `places` cannot be filled; "" if they can."""
        start = text[:40]
        if not len(places):
            return f"no {self.mask} in {start!r}: put one where a word is to be guessed"
        if places[-1] >= self.max_length - 2:
            return (
                f"{start!r}... takes {num_tokens + 2} positions of {self.max_length}, and would "
                f"lose the {self.mask} at {places[-1] + 1}: shorten it"
            )
        return ""

    def _guesses(self, row: Row, number: int) -> tuple[Guess, ...]:
        return tuple(
            Guess(self.tokenizer.readable(token_id), probability)
            for token_id, probability in zip(
                row["token_ids"][number].tolist(),
                row["probabilities"][number].tolist(),
                strict=True,
            )
        )


@partial(jax.jit, static_argnames=("vocab_size", "top_k"))
def _top_tokens(model: PretrainingModel, batch: Batch, *, vocab_size: int, top_k: int) -> Outputs:
    hidden = model.encoder(
        batch["token_ids"], batch["segment_ids"], None, batch["attention_mask"], packed=False
    ).hidden
    at_masks = select_rows(hidden, batch["masked_positions"])
    probabilities = jax.nn.softmax(model.masked_lm(at_masks, model.encoder.embeddings), axis=-1)
    # A model's padded table may be larger than the vocabulary; its additional rows are not words.
    values, token_ids = jax.lax.top_k(probabilities[..., :vocab_size], top_k)
    return {"probabilities": values, "token_ids": token_ids}


@dataclass(frozen=True)
class Following:
    """The probability that the second sentence follows the first, and whether one was truncated."""

    probability: float
    truncated: bool


class NextSentence(Predictor):
    """Predicts whether one sentence follows another (Devlin et al. 2019, section 3.1).

    >>> follows = NextSentence("runs/mine")                                   # doctest: +SKIP
    >>> follows("Istanbul is a great city to visit", "I was just there.")     # doctest: +SKIP
    Following(probability=0.98, truncated=False)
    """

    heads = ("pretraining", "next_sentence")
    made_by = "`bert-jax pretrain` with next-sentence pairs"

    @classmethod
    def check_origin(cls, work_dir: str | Path, origin: Mapping[str, str]) -> None:
        """Raise ValueError if the model was trained to predict the order of sentences instead."""
        if origin.get(PAIRS) == "sentence_order":
            raise ValueError(
                f"{work_dir}: its model learned whether two sentences are in order "
                "(sentence_pairs='sentence_order') and not whether one follows another; expected "
                f"one made by {cls.made_by}"
            )

    @overload
    def __call__(self, first: str, second: str) -> Following: ...
    @overload
    def __call__(self, first: list[str], second: list[str]) -> list[Following]: ...
    def __call__(
        self, first: str | list[str], second: str | list[str]
    ) -> Following | list[Following]:
        """Return the probability for a pair, or for each pair of corresponding sentences.

        Pairs that are too long are truncated, the longer sentence first.

        Raises:
          ValueError: the arguments are not two strings or two lists of the same length.
          UnusableText: a sentence is not a string or not valid Unicode.
        """
        cut = cut_texts(self.tokenizer, pairs_of(first, second), self.max_length)
        rows = self._run(_is_next, cut.features)
        found = [
            Following(float(row["probability"]), truncated)
            for row, truncated in zip(rows, cut.truncated, strict=True)
        ]
        return found[0] if isinstance(first, str) else found


@jax.jit
def _is_next(model: Model, batch: Batch) -> Outputs:
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    return {"probability": jax.nn.softmax(outputs["next_sentence_logits"], axis=-1)[:, 0]}
