"""Use a pretrained model's heads: fill in masked words, and judge whether sentences follow."""

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

# A text with more masks is computed once for every 4 of them: of rows of 16 tokens of BERT-base,
# the vocabulary's scores at 4 places cost 7 % of the encoder.
_MASKS_AT_ONCE = 4


@dataclass(frozen=True)
class Guess:
    """A word-piece, as `Tokenizer.readable` has it, and how probable it is in a mask's place."""

    token: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """For every mask of a text, in order, the best guesses, the most probable first.

    truncated: whether the text's end was left out as too long; no mask was.
    """

    masks: tuple[tuple[Guess, ...], ...]
    truncated: bool


class FillMask(Predictor):
    """Guesses the words behind `[MASK]`, or what the model's vocabulary calls it (`mask`).

    >>> fill = FillMask("runs/mine")                                          # doctest: +SKIP
    >>> fill("Istanbul is a great [MASK] to visit").masks[0][0].token         # doctest: +SKIP
    'city'
    """

    heads = ("pretraining", "masked_lm")
    made_by = "`bert-jax pretrain`"

    @property
    def mask(self) -> str:
        """What stands for a word to be guessed."""
        return self.tokenizer.specials.mask

    @overload
    def __call__(self, text: str, top_k: int = 5) -> FilledText: ...
    @overload
    def __call__(self, text: list[str], top_k: int = 5) -> list[FilledText]: ...
    def __call__(self, text: str | list[str], top_k: int = 5) -> FilledText | list[FilledText]:
        """The `top_k` best guesses for every mask of a text, or of each of several.

        Raises:
          ValueError: `top_k` is out of range, or neither a string nor a list.
          UnusableText: a text has no mask, or one behind the model's last position.
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
            positions[number, : len(places)] = places + 1  # behind [CLS]
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
        """Why there is no mask to fill at the places of a text's masks; "" if there are."""
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
    # A vocabulary may be smaller than the model's padded table; its surplus rows are no words.
    values, token_ids = jax.lax.top_k(probabilities[..., :vocab_size], top_k)
    return {"probabilities": values, "token_ids": token_ids}


@dataclass(frozen=True)
class Following:
    """The probability that the second sentence follows the first, and whether one was cut."""

    probability: float
    truncated: bool


class NextSentence(Predictor):
    """Says how probable it is that one sentence follows another (Devlin et al. 2019, 3.1).

    >>> follows = NextSentence("runs/mine")                                   # doctest: +SKIP
    >>> follows("Istanbul is a great city to visit", "I was just there.")     # doctest: +SKIP
    Following(probability=0.98, truncated=False)
    """

    heads = ("pretraining", "next_sentence")
    made_by = "`bert-jax pretrain` with next-sentence pairs"

    @classmethod
    def check_origin(cls, work_dir: str | Path, origin: Mapping[str, str]) -> None:
        """ValueError if the model's pairs were in order or swapped: it tells nothing else."""
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
        """The probability for a pair, or for each first sentence with the second at its place.

        Pairs that are too long are cut, the longer sentence first.

        Raises:
          ValueError: lists of different lengths, a string and a list, or neither.
          UnusableText: no Unicode text.
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
