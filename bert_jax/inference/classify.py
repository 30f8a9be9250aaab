"""The class of a text or of a pair of them, or the number it is rated by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import overload

import jax

from bert_jax.inference.batch_runner import Outputs
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.texts import Text, cut_texts, listed, refuse
from bert_jax.models.inference import infer
from bert_jax.models.model import Model, Problem
from bert_jax.tasks.protocol import Batch

Texts = list[str] | list[tuple[str, str]] | list[Text]


@dataclass(frozen=True)
class Classification:
    """What a text is.

    label, probability: the most probable label. None of a regression, and where any label may hold
      and none is more probable than 0.5.
    labels: all that hold: `label`, and where any may, each above 0.5, in the model's order.
    scores: of every label its probability: softmax where one is true, sigmoid where any may be;
      of a regression the numbers themselves. A model fine-tuned with one score for two labels gives
      both; out of another format such a model comes without the name of its negative.
    truncated: whether the text was cut as too long.
    """

    label: str | None
    probability: float | None
    scores: Mapping[str, float]
    truncated: bool
    labels: tuple[str, ...]


class Classify(Predictor):
    """Tells the class of texts.

    >>> classify = Classify("runs/sst2")                                      # doctest: +SKIP
    >>> classify("A delightful film.").label                                  # doctest: +SKIP
    'positive'
    >>> classify([("It rains.", "It is wet."), ("It rains.", "It is dry.")])  # doctest: +SKIP
    """

    heads = ("classification",)
    made_by = "`bert-jax finetune`"

    @overload
    def __call__(self, text: Text) -> Classification: ...
    @overload
    def __call__(self, text: Texts) -> list[Classification]: ...
    def __call__(self, text: Text | Texts) -> Classification | list[Classification]:
        """The class of a text or a pair `(first, second)`, or of each in a list.

        What is too long is cut as in training: a text at its end, of a pair the longer one first.

        Raises:
          ValueError: not a string, a tuple or a list.
          UnusableText: not a string or a tuple of two, no Unicode text, or a pair where the
            model was fine-tuned on single texts, and the other way round.
        """
        if isinstance(text, (str, tuple)):
            return self._classify([text])[0]
        return self._classify(listed(text, "a string, a pair (first, second) or a list of them"))

    def _classify(self, texts: Sequence[Text]) -> list[Classification]:
        self._check_pairs(texts)
        cut = cut_texts(self.tokenizer, texts, self.max_length)
        rows = self._run(partial(_scores, problem=self.config.problem), cut.features)
        return [
            self._result(row["scores"].tolist(), truncated)
            for row, truncated in zip(rows, cut.truncated, strict=True)
        ]

    def _check_pairs(self, texts: Sequence[Text]) -> None:
        pairs = None if self.usage is None else self.usage.pairs
        if pairs is None:
            return
        given, learned = "a pair", "single texts"
        if pairs:
            given, learned = "a single text", "pairs: (first, second)"
        reason = f"{given}, but the model learned {learned}"
        others = (i for i, text in enumerate(texts) if isinstance(text, str if pairs else tuple))
        refuse(dict.fromkeys(others, reason), len(texts))

    def _result(self, values: Sequence[float], truncated: bool) -> Classification:
        scores = dict(zip(self.config.labels, values, strict=True))
        if self.config.problem == "regression":
            return Classification(None, None, scores, truncated, ())
        negative = self.usage.negative if self.usage is not None else ""
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
