"""What `predict` can do: which model does it, what it reads, and what its answers are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bert_jax.cli.predict_lines import Fields
from bert_jax.inference.answer_question import AnswerQuestion
from bert_jax.inference.classify import Classify
from bert_jax.inference.embed import Embed
from bert_jax.inference.fill_mask import FillMask
from bert_jax.inference.next_sentence import NextSentence
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.tag import Tag
from bert_jax.models.model import Head

# Of a predictor, the values of some lines, and how many alternatives to give: a result a line.
Predict = Callable[[Any, list[Any], int], list[Any]]


@dataclass(frozen=True)
class PredictTask:
    """One thing to do with lines.

    top_k: how many alternatives it gives by default; None if it gives none.
    """

    predictor: type[Predictor]
    fields: Fields
    predict: Predict
    top_k: int | None = None


TASKS: Mapping[str, PredictTask] = {
    "fill-mask": PredictTask(FillMask, [("text",)], lambda model, texts, k: model(texts, k), 5),
    "next-sentence": PredictTask(
        NextSentence, [("first", "second")], lambda model, pairs, _: model(*_columns(pairs))
    ),
    "classify": PredictTask(
        Classify, [("text",), ("first", "second")], lambda model, texts, _: model(texts)
    ),
    "tag": PredictTask(Tag, [("text",), ("words",)], lambda model, texts, _: model(texts)),
    "answer": PredictTask(
        AnswerQuestion,
        [("question", "context")],
        lambda model, pairs, k: model(*_columns(pairs), k),
        1,
    ),
    "embed": PredictTask(Embed, [("text",)], lambda model, texts, _: model.sentences(texts)),
}


def default_task(head: Head) -> str:
    """What a model is for by its head.

    Raises:
      ValueError: nothing of this; its encoder still embeds.
    """
    if head == "encoder":
        return "embed"
    for name, task in TASKS.items():
        if name != "embed" and head in task.predictor.heads:
            return name
    raise ValueError(
        f"a model with the head {head!r} has no task of its own here; --task embed gives the "
        "vectors of its encoder"
    )


def _columns(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
