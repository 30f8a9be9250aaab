"""Whether one sentence follows another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import jax

from bert_jax.inference.batch_runner import Outputs
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.texts import cut_texts, pairs_of
from bert_jax.inference.work_dir import PAIRS
from bert_jax.models.inference import infer
from bert_jax.models.model import Model
from bert_jax.tasks.protocol import Batch


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
