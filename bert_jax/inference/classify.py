"""Classify or rate texts and pairs of texts, and choose among continuations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import assert_never, cast, overload

import jax
import numpy as np

from bert_jax.inference.predictor import (
    Outputs,
    Predictor,
    Text,
    UnusableText,
    as_list,
    refuse,
    truncate_texts,
)
from bert_jax.models.model import Model, Problem, infer
from bert_jax.tasks.task import Batch

Texts = list[str] | list[tuple[str, str]] | list[Text]


@dataclass(frozen=True)
class Classification:
    """The labels or numbers that a model predicts for a text.

    Attributes:
      label: the most probable label; None for regression, and for a multi-label model if no label
        has a probability above 0.5.
      probability: the probability of `label`, or None if there is no label.
      labels: the predicted labels. This is only `label` or, for a multi-label model, every label
        with a probability above 0.5, in the model's order.
      scores: the probability of each label or, for regression, the predicted numbers. The
        probabilities come from a softmax if exactly one label applies, and from a sigmoid if any
        number may apply. A binary classifier with a single score yields the probabilities of both
        labels. If it was imported from another format, the negative label has no name and is left
        out.
      truncated: whether the text was truncated because it was too long.
    """

    label: str | None
    probability: float | None
    scores: Mapping[str, float]
    truncated: bool
    labels: tuple[str, ...]


class Classify(Predictor):
    """Classifies or rates texts and pairs of texts.

    >>> classify = Classify("runs/sst2")                                      # doctest: +SKIP
    >>> classify("A delightful film.").label                                  # doctest: +SKIP
    'positive'
    >>> classify([("It rains.", "It is wet."), ("It rains.", "It is dry.")])  # doctest: +SKIP
    """

    heads = ("classification",)
    purpose = "classify texts"
    made_by = "`bj.finetune`"

    @overload
    def __call__(self, text: Text) -> Classification: ...
    @overload
    def __call__(self, text: Texts) -> list[Classification]: ...
    def __call__(self, text: Text | Texts) -> Classification | list[Classification]:
        """Classify a text, a pair `(first, second)`, or each item in a list of texts or pairs.

        Inputs that are too long are truncated as in training: a single text is cut off at the end,
        and in a pair, the longer text is shortened first.

        Args:
          text: a text, a pair of texts, or a list of either.

        Raises:
          ValueError: the argument is not a string, a tuple or a list.
          UnusableText: an input is not a string or a pair, is not valid Unicode, or is a pair even
            though the model was fine-tuned on single texts (or vice versa).
        """
        if isinstance(text, (str, tuple)):
            return self._classify([text])[0]
        return self._classify(as_list(text, "a string, a pair (first, second) or a list of them"))

    def _classify(self, texts: Sequence[Text]) -> list[Classification]:
        self._check_pairs(texts)
        inputs = truncate_texts(self.tokenizer, texts, self.max_length)
        rows = self._run(partial(_scores, problem=self.config.problem), inputs.features)
        return [
            self._result(row["scores"].tolist(), truncated)
            for row, truncated in zip(rows, inputs.truncated, strict=True)
        ]

    def _check_pairs(self, texts: Sequence[Text]) -> None:
        pairs = None if self.defaults is None else self.defaults.pairs
        if pairs is None:
            return
        reason = "this is a pair, but the model was trained on single texts"
        if pairs:
            reason = "this is a single text, but the model was trained on pairs: (first, second)"
        wrong = (i for i, text in enumerate(texts) if isinstance(text, str if pairs else tuple))
        refuse(dict.fromkeys(wrong, reason), len(texts))

    def _result(self, values: Sequence[float], truncated: bool) -> Classification:
        scores = dict(zip(self.config.labels, values, strict=True))
        match self.config.problem:
            case "regression":
                return Classification(None, None, scores, truncated, ())
            case "single_label" | "multi_label":
                return self._from_scores(scores, values, truncated)
            case _:
                assert_never(self.config.problem)

    def _from_scores(
        self, scores: dict[str, float], values: Sequence[float], truncated: bool
    ) -> Classification:
        """Convert scores to a classification."""
        negative = self.defaults.negative if self.defaults is not None else ""
        if negative:
            (positive,) = values
            scores = {negative: 1 - positive} | scores
        best = max(scores, key=scores.__getitem__)
        labels: tuple[str, ...] = (best,)
        if self.config.problem == "multi_label" and not negative:
            labels = tuple(name for name, score in scores.items() if score > 0.5)
        if not labels:
            return Classification(None, None, scores, truncated, ())
        return Classification(best, scores[best], scores, truncated, labels)


@partial(jax.jit, static_argnames="problem")
def _scores(model: Model, batch: Batch, *, problem: Problem) -> Outputs:
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    match problem:
        case "single_label":
            return {"scores": jax.nn.softmax(outputs["logits"], axis=-1)}
        case "multi_label":
            return {"scores": jax.nn.sigmoid(outputs["logits"])}
        case "regression":
            return {"scores": outputs["logits"]}


@dataclass(frozen=True)
class Choice:
    """The most probable choice.

    Attributes:
      index: the choice's index.
      text: the choice's text.
      probability: the choice's probability.
      probabilities: all choices' probabilities, in the given order.
      truncated: whether the context or a choice was truncated because it was too long.
    """

    index: int
    text: str
    probability: float
    probabilities: tuple[float, ...]
    truncated: bool


class Choose(Predictor):
    """Chooses the best continuation of a context (Devlin et al. 2019, section 4.4).

    >>> choose = Choose("runs/swag")                                          # doctest: +SKIP
    >>> choose("She takes the ball.", ["She throws it.", "She drinks it."]).text  # doctest: +SKIP
    'She throws it.'
    """

    heads = ("multiple_choice",)
    purpose = "choose between continuations"
    made_by = "`bj.finetune`"

    @overload
    def __call__(self, context: str, choices: list[str]) -> Choice: ...
    @overload
    def __call__(self, context: list[str], choices: list[list[str]]) -> list[Choice]: ...
    def __call__(
        self, context: str | list[str], choices: list[str] | list[list[str]]
    ) -> Choice | list[Choice]:
        """Choose a continuation for one context, or for each context in a list.

        Each choice is the whole second segment that the model reads. For SWAG, a choice is the
        given beginning of the second sentence followed by an ending. Pairs that are too long are
        truncated as in training: the longer text is shortened first.

        Args:
          context: a context or a list of contexts.
          choices: the choices, or a list that contains one list of choices per context.

        Raises:
          ValueError: the lists differ in length, or an argument is neither a string nor a list.
          UnusableText: there are fewer than two choices, or a text is not a string or is not valid
            Unicode.
        """
        if isinstance(context, str):
            return self._choose([context], [choices])[0]
        expected = "a context and its choices, or a list of contexts and a list of lists of choices"
        contexts, lists = as_list(context, expected), as_list(choices, expected)
        if len(contexts) != len(lists):
            raise ValueError(
                f"got {len(contexts)} contexts and {len(lists)} lists of choices. Specify one list "
                "of choices per context"
            )
        return self._choose(contexts, lists)

    def _choose(self, contexts: Sequence[str], choices: Sequence[object]) -> list[Choice]:
        wrong = (i for i, each in enumerate(choices) if not _are_choices(each))
        refuse(dict.fromkeys(wrong, "expected a list of two or more choices"), len(choices))
        checked = [list(cast(Sequence[str], each)) for each in choices]
        pairs = [
            (context, text)
            for context, each in zip(contexts, checked, strict=True)
            for text in each
        ]
        ends = list(accumulate(map(len, checked)))
        try:
            inputs = truncate_texts(self.tokenizer, pairs, self.max_length)
        except UnusableText as error:
            places = np.searchsorted(ends, list(error.reasons), side="right").tolist()
            # The dict keeps the last reason for each context. Reverse the order, so that this is
            # the reason for the first unusable choice.
            reasons = reversed(list(zip(places, error.reasons.values(), strict=True)))
            raise UnusableText(dict(reasons), len(contexts)) from None
        scores = np.array([row["score"] for row in self._run(_score, inputs.features)], np.float64)
        rows = [slice(end - len(texts), end) for texts, end in zip(checked, ends, strict=True)]
        return [
            _choice(texts, scores[part], any(inputs.truncated[part]))
            for texts, part in zip(checked, rows, strict=True)
        ]


def _are_choices(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) >= 2


def _choice(texts: Sequence[str], scores: np.ndarray, truncated: bool) -> Choice:
    powers = np.exp(scores - scores.max())
    probabilities = (powers / powers.sum()).tolist()
    best = int(scores.argmax())
    return Choice(best, texts[best], probabilities[best], tuple(probabilities), truncated)


@jax.jit
def _score(model: Model, batch: Batch) -> Outputs:
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    return {"score": outputs["logits"][:, 0]}
