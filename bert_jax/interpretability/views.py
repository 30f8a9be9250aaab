"""Collect the content of a page besides attention, such as predictions and attributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, assert_never

import numpy as np

from bert_jax.inference.embed import cosine_similarity
from bert_jax.interpretability.attention import Attention
from bert_jax.interpretability.attributions import Attribution
from bert_jax.interpretability.layer_guesses import MaskGuesses
from bert_jax.interpretability.traced_text import FloatArray, TracedText
from bert_jax.labeled_data.tokenized_text import Text
from bert_jax.models.model import SPAN, ClassifierHead
from bert_jax.tasks.span_scores import entities_of, scheme_of

_MAX_WORDS = 4
_MAX_PAIRS = 4
_MIN_LETTERS = 4
_MAX_ANSWER_TOKENS = 30


class Occurrences(NamedTuple):
    """A word that occurs more than once in a text.

    Attributes:
      word: the repeated word.
      similarity: a dict from a description such as "1st and 2nd occurrence" to the cosine
        similarity of these two occurrences at each layer, [layers + 1].
    """

    word: str
    similarity: Mapping[str, FloatArray]


class AnswerScores(NamedTuple):
    """The answer, with the probabilities [tokens] that it starts and ends at each token."""

    start: FloatArray
    end: FloatArray
    text: str


class WordTag(NamedTuple):
    """A word, its tag, and the type of the entity that contains it (None outside entities)."""

    word: str
    tag: str
    entity: str | None


@dataclass(frozen=True)
class Views:
    """The content of a page besides attention; parts that do not apply are None or empty.

    Attributes:
      guesses: the most probable tokens for every mask, as predicted at every layer.
      occurrences: words that occur more than once.
      scores: the score of each label of a sequence classifier or a sentence-pair head.
      are_probabilities: whether `scores` are probabilities.
      attribution: how much each word contributes to a classifier's prediction.
      answer: the answer of a question-answering model, with its scores.
      tags: the tags that a tagger predicts.
      notes: sentences that explain which parts are left out and why.
    """

    guesses: Sequence[MaskGuesses] = ()
    occurrences: Sequence[Occurrences] = ()
    scores: Mapping[str, float] | None = None
    are_probabilities: bool = True
    attribution: Attribution | None = None
    answer: AnswerScores | None = None
    tags: Sequence[WordTag] | None = None
    notes: Sequence[str] = ()


def collect_views(
    attention: Attention, trace: TracedText, text: Text, second: Text | None
) -> Views:
    """Return all views of a traced text, such as the predictions of the model's head."""
    notes = []
    if trace.truncated:
        notes.append(f"The text was truncated to {attention.max_length} tokens.")
    views = Views(occurrences=repeated_words(trace), notes=notes)
    match attention.config.head_kind:
        case "encoder":
            notes.append("The model has no head, so the page shows only its attention and vectors.")
            return views
        case "pretraining" | "masked_lm" | "next_sentence":
            return _of_pretraining(attention, views, text, second)
        case "replaced_token":
            notes.append("The page does not show which tokens the model takes for replaced ones.")
            return views
        case ClassifierHead() as head:
            return _of_classifier(attention, head, views, trace, text, second)
        case _:
            assert_never(attention.config.head_kind)


def _of_pretraining(attention: Attention, views: Views, text: Text, second: Text | None) -> Views:
    """Add predictions for masked tokens and the scores of a sentence pair to the views."""
    notes = [*views.notes]
    guesses: Sequence[MaskGuesses] = ()
    if attention.config.head != "next_sentence":
        guesses = attention.guesses(text, second)
        if not guesses:
            mask = attention.tokenizer.specials.mask
            notes.append(
                f"To see what each layer would guess for a word, replace the word with {mask}."
            )
    scores = None
    if second is not None:
        logits = attention.head_outputs(text, second).get("next_sentence_logits")
        if logits is not None:
            names = attention.sentence_pair_names
            scores = dict(zip(names, _softmax(logits).tolist(), strict=True))
    return replace(views, guesses=guesses, scores=scores, notes=notes)


def _of_classifier(
    attention: Attention,
    head: ClassifierHead,
    views: Views,
    trace: TracedText,
    text: Text,
    second: Text | None,
) -> Views:
    match head.scored:
        case "choices":
            note = "The model compares choices, so it makes no prediction for a single text."
            return replace(views, notes=[*views.notes, note])
        case "sequence":
            logits = attention.head_outputs(text, second)["logits"]
            scores, are_probabilities = _label_scores(attention, logits)
            return replace(
                views,
                scores=scores,
                are_probabilities=are_probabilities,
                attribution=attention.attribute(text, second),
            )
        case "tokens":
            logits = attention.head_outputs(text, second)["logits"]
            if head != SPAN:
                return replace(views, tags=_tags(attention.config.labels, trace, logits))
            if second is None:
                note = "The model answers questions: give a passage as the second text."
                return replace(views, notes=[*views.notes, note])
            return replace(views, answer=_answer(trace, logits))
        case _:
            assert_never(head.scored)


def _label_scores(attention: Attention, logits: FloatArray) -> tuple[dict[str, float], bool]:
    """Return the score of each label, and whether the scores are probabilities."""
    problem = attention.config.problem
    match problem:
        case "single_label":
            scores = _softmax(logits)
        case "multi_label":
            scores = np.reciprocal(1 + np.exp(-logits))
        case "regression":
            scores = logits
        case _:
            assert_never(problem)
    return dict(zip(attention.config.labels, scores.tolist(), strict=True)), problem != "regression"


def _softmax(logits: FloatArray) -> FloatArray:
    exponentials: FloatArray = np.exp(logits - logits.max(axis=0))
    return exponentials / exponentials.sum(axis=0)


def _tags(labels: Sequence[str], trace: TracedText, logits: FloatArray) -> list[WordTag]:
    """Return the most probable tag of each word, predicted at its first token, as in training."""
    words = [word for word in trace.words if trace.is_text[word.start]]
    tags = [labels[int(logits[word.start].argmax())] for word in words]
    entities: list[str | None] = [None] * len(words)
    if (scheme := scheme_of(labels)) is not None:
        for entity in entities_of(tags, scheme):
            length = entity.end + 1 - entity.start
            entities[entity.start : entity.end + 1] = [entity.type] * length
    return [WordTag(w.text, tag, e) for w, tag, e in zip(words, tags, entities, strict=True)]


def _answer(trace: TracedText, logits: FloatArray) -> AnswerScores:
    """Return the start and end probabilities, and the best span in the second text."""
    start, end = _softmax(logits[:, 0]), _softmax(logits[:, 1])
    inside = trace.is_text & (trace.segment_ids == 1)
    joint = np.triu(np.outer(start * inside, end * inside))
    joint -= np.triu(joint, _MAX_ANSWER_TOKENS)
    first, last = np.unravel_index(int(joint.argmax()), joint.shape)
    assert trace.second is not None
    text = trace.second[int(trace.offsets[first, 0]) : int(trace.offsets[last, 1])]
    return AnswerScores(start, end, text)


def repeated_words(trace: TracedText) -> list[Occurrences]:
    """Return up to four repeated words, the longest first; short words are ignored."""
    places: dict[str, list[int]] = {}
    for index, word in enumerate(trace.words):
        is_content = len(word.text) >= _MIN_LETTERS or not word.text.isascii()
        if trace.is_text[word.start] and is_content and any(map(str.isalpha, word.text)):
            places.setdefault(word.text.lower(), []).append(index)
    repeated = [(word, indices) for word, indices in places.items() if len(indices) > 1]
    repeated.sort(key=lambda item: -len(item[0]))
    vectors = trace.word_vectors
    return [
        Occurrences(
            word,
            {
                f"{_ordinal(number)} and {_ordinal(number + 1)} occurrences": cosine_similarity(
                    vectors[:, first], vectors[:, second]
                )
                for number, (first, second) in enumerate(pairwise(indices[: _MAX_PAIRS + 1]), 1)
            },
        )
        for word, indices in repeated[:_MAX_WORDS]
    ]


def _ordinal(number: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(number, f"{number}th")
