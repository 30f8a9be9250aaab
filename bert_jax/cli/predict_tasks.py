"""What `predict` can do: which model does it, what it reads, and what its answers are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_jax.cli.predict_lines import Document, Fields
from bert_jax.inference.answer_question import AnswerQuestion
from bert_jax.inference.choose import Choose
from bert_jax.inference.classify import Classify
from bert_jax.inference.embed import Embed
from bert_jax.inference.fill_mask import FillMask
from bert_jax.inference.next_sentence import NextSentence
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.tag import Tag, TaggedText, check_words
from bert_jax.inference.texts import UnusableText, refuse
from bert_jax.inference.work_dir import read_sentence_embedding
from bert_jax.models.model import Head
from bert_jax.sentence_embedding import SentenceEmbedding

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


@dataclass(frozen=True)
class TaggedDocument:
    """The sentences of one document with their tags."""

    sentences: tuple[TaggedText, ...]


TASKS: Mapping[str, PredictTask] = {
    "fill-mask": PredictTask(FillMask, [("text",)], lambda model, texts, k: model(texts, k), 5),
    "next-sentence": PredictTask(
        NextSentence, [("first", "second")], lambda model, pairs, _: model(*_columns(pairs))
    ),
    "classify": PredictTask(
        Classify, [("text",), ("first", "second")], lambda model, texts, _: model(texts)
    ),
    "choose": PredictTask(
        Choose, [("context", "choices")], lambda model, pairs, _: model(*_columns(pairs))
    ),
    "tag": PredictTask(
        Tag, [("words",), ("sentences",), ("text",)], lambda model, values, _: _tag(model, values)
    ),
    "answer": PredictTask(
        AnswerQuestion,
        [("question", "context")],
        lambda model, pairs, k: model(*_columns(pairs), k),
        1,
    ),
    "embed": PredictTask(Embed, [("text",)], lambda model, texts, _: model.sentences(texts)),
}


def with_prompt(name: str, work_dir: Path, prompt_name: str) -> PredictTask:
    """Return the task with one of the prompts of the model in `work_dir` prepended to every text.

    Raises:
      ValueError: the model has no such prompt, or the task does not embed texts.
    """
    if name != "embed":
        raise ValueError(
            f"--prompt-name={prompt_name}: {name} does not take a prompt. Add --task embed, or "
            "leave the prompt out"
        )
    settings = read_sentence_embedding(work_dir) or SentenceEmbedding()
    prompt = settings.prompt_for(prompt_name, None)

    def predict(model: Embed, texts: list[Any], _: int) -> list[Any]:
        return model.sentences(texts, prompt=prompt)

    return replace(TASKS[name], predict=predict)


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


def _tag(model: Tag, values: list[Any]) -> list[Any]:
    """Texts are tagged together, each of the documents by itself."""
    texts = [index for index, value in enumerate(values) if not isinstance(value, Document)]
    documents = {i: value for i, value in enumerate(values) if isinstance(value, Document)}
    # All are looked at before the first is tagged.
    reasons = {}
    for index, document in documents.items():
        try:
            check_words(document.sentences)
        except UnusableText as error:
            reasons[index] = f"sentence {error.index}: {error.reason}"
    refuse(reasons, len(values))
    try:
        tagged = model([values[index] for index in texts])
    except UnusableText as error:
        told = {texts[index]: reason for index, reason in error.reasons.items()}
        raise UnusableText(told, len(values)) from None
    found: dict[int, Any] = dict(zip(texts, tagged, strict=True))
    for index, document in documents.items():
        found[index] = TaggedDocument(tuple(model.document(document.sentences)))
    return [found[index] for index in range(len(values))]


def _columns(pairs: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
