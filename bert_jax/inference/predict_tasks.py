"""Define the tasks that `predict` performs: which predictor to run on which fields of a line.

This module defines the tasks for pretrained models and for the built-in kinds of fine-tuning tasks.
For the full list, see `bert_jax.finetuning.registry.predict_tasks`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_jax.inference.answer_question import AnswerQuestion
from bert_jax.inference.classify import Choose, Classify
from bert_jax.inference.embed import Embed
from bert_jax.inference.fill_mask import FillMask, NextSentence
from bert_jax.inference.input_lines import Document, Fields
from bert_jax.inference.predictor import Predictor, UnusableText, refuse
from bert_jax.inference.tag import Tag, TaggedText, check_words
from bert_jax.models.sentence_embedding import SentenceEmbedding
from bert_jax.runs.work_dir import read_sentence_embedding

# A function that takes a predictor, the values from one or more lines and the number of
# alternatives, and returns one result per line.
Predict = Callable[[Any, list[Any], int], list[Any]]


@dataclass(frozen=True)
class PredictTask:
    """A task that `predict` performs on every input line.

    Attributes:
      name: the task's name on the command line.
      predictor: the predictor class that loads and runs the model.
      fields: sets of field names; a line must have all the fields in one of the sets.
      predict: a function that computes the results for one or more lines.
      list_fields: the fields that contain an array of strings; all other fields contain a string.
      top_k: the default number of alternatives; None if the task returns no alternatives.
      results: a description of the fields in a result, for help texts; "" to omit the task
        from them.
    """

    name: str
    predictor: type[Predictor]
    fields: Fields
    predict: Predict
    list_fields: frozenset[str] = frozenset()
    top_k: int | None = None
    results: str = ""


def result_lines(tasks: Iterable[PredictTask]) -> Iterator[str]:
    """Yield lines that list the fields in the results of each task."""
    described = {task.name: task.results for task in tasks if task.results}
    width = max(map(len, described), default=0)
    for name, results in described.items():
        first, following = f"  {name:{width}}  ", " " * (width + 4)
        yield from textwrap.wrap(
            results, 100, initial_indent=first, subsequent_indent=following, break_on_hyphens=False
        )


@dataclass(frozen=True)
class TaggedDocument:
    """The tagged sentences in one document."""

    sentences: tuple[TaggedText, ...]


def _tag(model: Tag, values: list[Any]) -> list[Any]:
    """Tag each document separately, and all texts that are not documents in a single call."""
    texts = [index for index, value in enumerate(values) if not isinstance(value, Document)]
    documents = {i: value for i, value in enumerate(values) if isinstance(value, Document)}
    # Check all documents before tagging any text.
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
        reasons = {texts[index]: reason for index, reason in error.reasons.items()}
        raise UnusableText(reasons, len(values)) from None
    results: dict[int, Any] = dict(zip(texts, tagged, strict=True))
    for index, document in documents.items():
        results[index] = TaggedDocument(tuple(model.document(document.sentences)))
    return [results[index] for index in range(len(values))]


def _columns(pairs: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


EMBED = PredictTask(
    "embed",
    Embed,
    [("text",)],
    lambda model, texts, _: model.sentences(texts),
    results="vector (a sentence-transformers model's own embedding, otherwise the mean), cls and "
    "mean (computed from the last layer over the whole text), truncated",
)
PRETRAINED = (
    PredictTask(
        "fill-mask",
        FillMask,
        [("text",)],
        lambda model, texts, k: model(texts, k),
        top_k=5,
        results="masks (the guesses for each mask: token, probability), truncated",
    ),
    PredictTask(
        "next-sentence",
        NextSentence,
        [("first", "second")],
        lambda model, pairs, _: model(*_columns(pairs)),
        results="probability, truncated",
    ),
)
CLASSIFY = PredictTask(
    "classify",
    Classify,
    [("text",), ("first", "second")],
    lambda model, texts, _: model(texts),
    results="label, probability, scores (a score for each label, or the number that a regression "
    "model predicts), truncated, labels (all with a probability above 0.5)",
)
CHOOSE = PredictTask(
    "choose",
    Choose,
    [("context", "choices")],
    lambda model, pairs, _: model(*_columns(pairs)),
    list_fields=frozenset({"choices"}),
    results="index, text, probability, probabilities, truncated",
)
TAG = PredictTask(
    "tag",
    Tag,
    [("words",), ("sentences",), ("text",)],
    lambda model, values, _: _tag(model, values),
    list_fields=frozenset({"words"}),
    results="words (text, start, end, tag, probability), entities (type, text, start, end; null if "
    "the tags do not mark entities); for a document, sentences with these fields",
)
ANSWER = PredictTask(
    "answer",
    AnswerQuestion,
    [("question", "context")],
    lambda model, pairs, k: model(*_columns(pairs), k),
    top_k=1,
    results="text, start, end, probability, candidates (with these four), question_truncated",
)


def default_task(head: str, tasks: Mapping[str, PredictTask]) -> PredictTask:
    """Return the task that uses a model's head.

    Raises:
      ValueError: no task uses the head. (The model's encoder can still embed texts.)
    """
    if head == "encoder":
        return EMBED
    for task in tasks.values():
        if task.predictor.heads is not None and head in task.predictor.heads:
            return task
    raise ValueError(
        f"no `predict` task uses the {head!r} head. Add --task embed to get vectors from the "
        "encoder"
    )


def with_prompt(task: PredictTask, work_dir: Path, prompt_name: str) -> PredictTask:
    """Return a task that prepends one of the model's prompts to every text.

    Raises:
      ValueError: the model has no such prompt, or the task does not embed texts.
    """
    if task is not EMBED:
        raise ValueError(
            f"--prompt-name={prompt_name}: {task.name} does not take a prompt. Add --task embed, "
            "or remove the prompt"
        )
    settings = read_sentence_embedding(work_dir) or SentenceEmbedding()
    prompt = settings.prompt_for(prompt_name, None)

    def predict(model: Embed, texts: list[Any], _: int) -> list[Any]:
        return model.sentences(texts, prompt=prompt)

    return replace(task, predict=predict)
