"""Fill in masked words and score pairs of sentences with a pretrained model's heads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import overload

import jax
import numpy as np
from numpy.typing import NDArray

from bert_jax.inference.predictor import (
    Outputs,
    Predictor,
    Row,
    as_list,
    as_pairs,
    check_strings,
    is_integer,
    refuse,
    truncate_texts,
)
from bert_jax.labeled_data.features import Features, build_sequences
from bert_jax.models.layers import select_rows
from bert_jax.models.model import Model, infer
from bert_jax.models.pretraining_models import PretrainingModel
from bert_jax.runs.work_dir import PAIRS
from bert_jax.tasks.task import Batch

# The number of masks to fill in one run; a text with more masks takes several runs. For BERT-base
# and rows of 16 tokens, scoring the vocabulary at 4 positions costs 7% of the encoder's time.
_MASKS_AT_ONCE = 4


@dataclass(frozen=True)
class Guess:
    """A token that the model predicts for a mask.

    Attributes:
      token: the token, as formatted by `Tokenizer.readable`.
      probability: the token's probability at the mask.
    """

    token: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """The most probable tokens for each mask in a text.

    Attributes:
      masks: one tuple of guesses per mask, in text order, with the most probable guess first.
      truncated: whether the end of the text was cut off because the text was too long. Masks are
        never cut off.
    """

    masks: tuple[tuple[Guess, ...], ...]
    truncated: bool

    def lines(self, mask: str = "[MASK]") -> Iterator[str]:
        """Yield one line per mask that lists its guesses; `mask` is the mask token."""
        if self.truncated:
            yield "(the end was cut off: the sentence is too long for the model)"
        for number, guesses in enumerate(self.masks, start=1):
            prefix = f"{mask} {number}: " if len(self.masks) > 1 else ""
            yield prefix + "   ".join(f"{x.token} {x.probability:.1%}" for x in guesses)


class FillMask(Predictor):
    """Predicts the words hidden by `[MASK]`, or by the vocabulary's own mask token (see `mask`).

    >>> fill = FillMask("runs/mine")                                          # doctest: +SKIP
    >>> fill("Istanbul is a great [MASK] to visit").masks[0][0].token         # doctest: +SKIP
    'city'
    """

    heads = ("pretraining", "masked_lm")
    purpose = "fill masks"
    made_by = "`bj.pretrain`"

    @property
    def mask(self) -> str:
        """The token that marks a word to predict, such as "[MASK]"."""
        return self.tokenizer.specials.mask

    @overload
    def __call__(self, text: str, top_k: int = 5) -> FilledText: ...
    @overload
    def __call__(self, text: list[str], top_k: int = 5) -> list[FilledText]: ...
    def __call__(self, text: str | list[str], top_k: int = 5) -> FilledText | list[FilledText]:
        """Return the `top_k` most probable tokens for every mask in a text or in a list of texts.

        Args:
          text: a text or a list of texts.
          top_k: the number of tokens to return for each mask.

        Raises:
          ValueError: `top_k` is out of range, or `text` is neither a string nor a list.
          UnusableText: a text has no mask, or has one beyond the model's last position.
        """
        vocab_size = self.tokenizer.vocab_size
        if not is_integer(top_k) or not 1 <= top_k <= vocab_size:
            raise ValueError(
                f"top_k={top_k!r}: expected an integer from 1 to {vocab_size}, the vocabulary size"
            )
        filled = self._fill([text] if isinstance(text, str) else as_list(text), top_k)
        return filled[0] if isinstance(text, str) else filled

    def _fill(self, texts: Sequence[str], top_k: int) -> list[FilledText]:
        check_strings([[text] for text in texts])
        encoded = self.tokenizer.encode_batch(texts)
        masks = [np.flatnonzero(np.array(ids) == self.tokenizer.mask_id) for ids in encoded]
        problems = {
            index: reason
            for index, (text, ids, mask_indices) in enumerate(
                zip(texts, encoded, masks, strict=True)
            )
            if (reason := self._mask_problem(text, len(ids), mask_indices))
        }
        refuse(problems, len(texts))
        capacity = self.max_length - 2
        groups = [
            (index, mask_indices[first : first + _MASKS_AT_ONCE])
            for index, mask_indices in enumerate(masks)
            for first in range(0, len(mask_indices), _MASKS_AT_ONCE)
        ]
        sequences = build_sequences(
            self.tokenizer, [encoded[index][:capacity] for index, _ in groups], [None] * len(groups)
        )
        positions = np.zeros((len(groups), _MASKS_AT_ONCE), np.int32)
        for number, (_, mask_indices) in enumerate(groups):
            positions[number, : len(mask_indices)] = mask_indices + 1  # skip [CLS]
        program = partial(_top_tokens, vocab_size=self.tokenizer.vocab_size, top_k=top_k)
        rows = self._run(program, Features(sequences, {"masked_positions": positions}))
        guesses: list[list[tuple[Guess, ...]]] = [[] for _ in texts]
        for (index, mask_indices), row in zip(groups, rows, strict=True):
            guesses[index] += [self._guesses(row, number) for number in range(len(mask_indices))]
        return [
            FilledText(tuple(each), len(ids) > capacity)
            for each, ids in zip(guesses, encoded, strict=True)
        ]

    def _mask_problem(self, text: str, num_tokens: int, mask_indices: NDArray[np.int64]) -> str:
        """Return the reason why the masks at these tokens cannot be filled, or "" if they can."""
        start = text[:40]
        if not len(mask_indices):
            return (
                f"no {self.mask} in {start!r}. Replace each word to predict with {self.mask}: this "
                "model fills masks"
            )
        if mask_indices[-1] >= self.max_length - 2:
            return (
                f"{start!r}... has {num_tokens + 2} tokens, but the maximum is {self.max_length}, "
                f"and truncation would remove the {self.mask} at position {mask_indices[-1] + 1}. "
                "Shorten the text"
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
    # The token table may be padded with extra rows, which do not stand for any token.
    values, token_ids = jax.lax.top_k(probabilities[..., :vocab_size], top_k)
    return {"probabilities": values, "token_ids": token_ids}


@dataclass(frozen=True)
class Following:
    """A prediction about a pair of sentences.

    Attributes:
      probability: the probability that the second sentence follows the first.
      truncated: whether a sentence was truncated because the pair was too long.
    """

    probability: float
    truncated: bool


class NextSentence(Predictor):
    """Predicts whether one sentence follows another (Devlin et al. 2019, section 3.1).

    >>> follows = NextSentence("runs/mine")                                   # doctest: +SKIP
    >>> follows("Istanbul is a great city to visit", "I was just there.")     # doctest: +SKIP
    Following(probability=0.98, truncated=False)
    """

    heads = ("pretraining", "next_sentence")
    purpose = "predict whether one sentence follows another"
    made_by = "`bj.pretrain` with next-sentence pairs"

    @classmethod
    def check_origin(cls, work_dir: str | os.PathLike[str], origin: Mapping[str, str]) -> None:
        """Raise a ValueError if the model was trained to predict the order of two sentences."""
        if origin.get(PAIRS) == "sentence_order":
            raise ValueError(
                f"{work_dir}: the model was trained to predict whether two sentences are in order "
                "(sentence_pairs='sentence_order'), not whether one follows the other. Use a model "
                f"from {cls.made_by}"
            )

    @overload
    def __call__(self, first: str, second: str) -> Following: ...
    @overload
    def __call__(self, first: list[str], second: list[str]) -> list[Following]: ...
    def __call__(
        self, first: str | list[str], second: str | list[str]
    ) -> Following | list[Following]:
        """Predict whether `second` follows `first`, for one pair or for each pair in two lists.

        In pairs that are too long, the longer sentence is shortened first.

        Args:
          first: a sentence or a list of sentences.
          second: the second sentence, or a list with one second sentence for each first sentence.

        Raises:
          ValueError: the arguments are not two strings or two lists of the same length.
          UnusableText: a sentence is not a string or is not valid Unicode.
        """
        inputs = truncate_texts(self.tokenizer, as_pairs(first, second), self.max_length)
        rows = self._run(_is_next, inputs.features)
        results = [
            Following(float(row["probability"]), truncated)
            for row, truncated in zip(rows, inputs.truncated, strict=True)
        ]
        return results[0] if isinstance(first, str) else results


@jax.jit
def _is_next(model: Model, batch: Batch) -> Outputs:
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    return {"probability": jax.nn.softmax(outputs["next_sentence_logits"], axis=-1)[:, 0]}
