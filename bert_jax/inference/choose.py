"""The one of several choices that goes best with a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast, overload

import jax
import numpy as np

from bert_jax.inference.batch_runner import Outputs
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.texts import UnusableText, cut_texts, listed, refuse
from bert_jax.models.inference import infer
from bert_jax.models.model import Model
from bert_jax.tasks.protocol import Batch


@dataclass(frozen=True)
class Choice:
    """What was chosen: its place from 0 on, its text and its probability.

    probabilities: of all choices, in their order. truncated: whether the context or a choice was
      cut as too long.
    """

    index: int
    text: str
    probability: float
    probabilities: tuple[float, ...]
    truncated: bool


class Choose(Predictor):
    """Tells which of several choices goes on from a context (Devlin et al. 2019, section 4.4).

    >>> choose = Choose("runs/swag")                                          # doctest: +SKIP
    >>> choose("She takes the ball.", ["She throws it.", "She drinks it."]).text  # doctest: +SKIP
    'She throws it.'
    """

    heads = ("multiple_choice",)
    made_by = "`bert-jax finetune`"

    @overload
    def __call__(self, context: str, choices: list[str]) -> Choice: ...
    @overload
    def __call__(self, context: list[str], choices: list[list[str]]) -> list[Choice]: ...
    def __call__(
        self, context: str | list[str], choices: list[str] | list[list[str]]
    ) -> Choice | list[Choice]:
        """The choice for a context, or for each of a list the one among the choices at its place.

        A choice is the whole second segment that the model reads: of SWAG what its endings go on
        from, and the ending. What is too long is cut as in training, the longer text first.

        Raises:
          ValueError: lists of different lengths, or neither a string nor a list.
          UnusableText: fewer than two choices, not strings, or no Unicode text.
        """
        if isinstance(context, str):
            return self._choose([context], [choices])[0]
        expected = "a context and its choices, or a list of contexts and one of lists of choices"
        contexts, lists = listed(context, expected), listed(choices, expected)
        if len(contexts) != len(lists):
            raise ValueError(f"{len(contexts)} contexts and {len(lists)} lists of choices")
        return self._choose(contexts, lists)

    def _choose(self, contexts: Sequence[str], choices: Sequence[object]) -> list[Choice]:
        none = (i for i, each in enumerate(choices) if not _are_choices(each))
        refuse(dict.fromkeys(none, "expected a list of two choices or more"), len(choices))
        checked = [list(cast(Sequence[str], each)) for each in choices]
        pairs = [
            (context, text)
            for context, each in zip(contexts, checked, strict=True)
            for text in each
        ]
        ends = list(accumulate(map(len, checked)))
        try:
            cut = cut_texts(self.tokenizer, pairs, self.max_length)
        except UnusableText as error:
            places = np.searchsorted(ends, list(error.reasons), side="right").tolist()
            # The first reason of a context is told, so it is put down last.
            told = reversed(list(zip(places, error.reasons.values(), strict=True)))
            raise UnusableText(dict(told), len(contexts)) from None
        scores = np.array([row["score"] for row in self._run(_score, cut.features)], np.float64)
        rows = [slice(end - len(texts), end) for texts, end in zip(checked, ends, strict=True)]
        return [
            _choice(texts, scores[own], any(cut.truncated[own]))
            for texts, own in zip(checked, rows, strict=True)
        ]


def _are_choices(given: object) -> bool:
    return isinstance(given, (list, tuple)) and len(given) >= 2


def _choice(texts: Sequence[str], scores: np.ndarray, truncated: bool) -> Choice:
    powers = np.exp(scores - scores.max())
    probabilities = (powers / powers.sum()).tolist()
    best = int(scores.argmax())
    return Choice(best, texts[best], probabilities[best], tuple(probabilities), truncated)


@jax.jit
def _score(model: Model, batch: Batch) -> Outputs:
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    return {"score": outputs["logits"][:, 0]}
