"""Compute scores for entities in tagged sequences, and for answers that are spans of a passage.

Entities are counted as in conlleval and seqeval. Answers are compared by the rules of SQuAD v1.1's
official evaluation script.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from bert_jax.tasks.sentence_scores import Counts

Scheme = Literal["IOB1", "IOB2", "BIOES", "BILOU", "BMES"]
PREFIXES: Mapping[Scheme, str] = {
    "IOB1": "BI",
    "IOB2": "BI",
    "BIOES": "BIES",
    "BILOU": "BILU",
    "BMES": "BMES",
}
# Maps the letters for "inside", "last" and "single" in other schemes to the letters in BIOES.
_IN_BIOES = {"M": "I", "L": "E", "U": "S"}
# The type of a tag that consists of only a prefix, as in seqeval.
NO_TYPE = "_"

Tags = Sequence[str]


def scheme_of(labels: Sequence[str]) -> Scheme | None:
    """Return the scheme that these labels follow, or None if they do not mark entities.

    If the prefixes occur in several schemes, all of these schemes yield the same entities. The
    result is IOB2 even for IOB1 (see `entities_of`), and BIOES for labels with B, E and S but
    without I or M.
    """
    parts = [label.partition("-") for label in labels if label != "O"]
    if any(bool(hyphen) != bool(kind) for _, hyphen, kind in parts):
        return None
    prefixes = {prefix for prefix, _, _ in parts}
    schemes: tuple[Scheme, ...] = ("IOB2", "BIOES", "BILOU", "BMES")
    return next((scheme for scheme in schemes if prefixes <= set(PREFIXES[scheme])), None)


class Entity(NamedTuple):
    """An entity that spans the tokens from `start` to `end` (inclusive) in a sequence."""

    type: str
    start: int
    end: int


def entities_of(tags: Tags, scheme: Scheme) -> list[Entity]:
    """Return the entities in a sequence, in order.

    For a sequence that violates its scheme, the result is the same as in conlleval. A token
    continues the previous entity if its prefix is I or E, its type is the same, and no E or S has
    ended that entity. Any other tag except O begins an entity. This rule also covers IOB1, in which
    I begins an entity and B only separates an entity from the previous one. Schemes therefore
    differ only in their prefixes.

    Args:
      tags: "O", only a prefix ("B"), or a prefix and a type ("B-PER").
      scheme: the scheme, which determines the prefixes (see `PREFIXES`). BILOU and BMES are BIOES
        with other letters: BILOU uses L and U for E and S, and BMES uses M for I.

    Raises:
      ValueError: a tag has a different form, or its prefix does not belong to the scheme.
    """
    entities: list[Entity] = []
    open_type: str | None = None
    for position, tag in enumerate(tags):
        prefix, kind = _parts(tag, scheme)
        if prefix in ("I", "E") and kind == open_type:
            entities[-1] = entities[-1]._replace(end=position)
        elif prefix != "O":
            entities.append(Entity(kind, position, position))
        open_type = kind if prefix in ("B", "I") else None
    return entities


def entity_counts(
    predicted: Sequence[Tags], gold: Sequence[Tags], scheme: Scheme
) -> dict[str, Counts]:
    """Return a dict from entity type to `Counts`, sorted by type.

    Args:
      predicted: the predicted tags for each sequence.
      gold: the gold tags for the same sequences.
      scheme: the tagging scheme.

    Raises:
      ValueError: a tag is invalid (see `entities_of`), or sequences differ in length.
    """
    num_predicted, num_gold, num_correct = Counter[str](), Counter[str](), Counter[str]()
    for predicted_tags, gold_tags in _paired(predicted, gold):
        entities = set(entities_of(predicted_tags, scheme))
        expected = set(entities_of(gold_tags, scheme))
        num_predicted.update(entity.type for entity in entities)
        num_gold.update(entity.type for entity in expected)
        num_correct.update(entity.type for entity in entities & expected)
    return {
        kind: Counts(num_predicted[kind], num_gold[kind], num_correct[kind])
        for kind in sorted(num_predicted.keys() | num_gold.keys())
    }


def entity_scores(
    predicted: Sequence[Tags], gold: Sequence[Tags], scheme: Scheme
) -> dict[str, float]:
    """Return precision, recall and F1 over all entity types (micro-averaged), as fractions.

    See `entity_counts` for the arguments and errors. For a single type, use `Counts.scores`.
    """
    counts = entity_counts(predicted, gold, scheme).values()
    return Counts(
        sum(row.predicted for row in counts),
        sum(row.gold for row in counts),
        sum(row.correct for row in counts),
    ).scores()


def tag_accuracy(predicted: Sequence[Tags], gold: Sequence[Tags]) -> float:
    """Return the fraction of tokens whose tag is correct.

    Raises:
      ValueError: sequences differ in length, or there are no tokens.
    """
    correct = total = 0
    for predicted_tags, gold_tags in _paired(predicted, gold):
        correct += sum(a == b for a, b in zip(predicted_tags, gold_tags, strict=True))
        total += len(gold_tags)
    if not total:
        raise ValueError("no tags to score: expected at least one token")
    return correct / total


def _parts(tag: str, scheme: Scheme) -> tuple[str, str]:
    if tag == "O":
        return "O", ""
    prefix, hyphen, kind = tag.partition("-")
    if len(prefix) != 1 or prefix not in PREFIXES[scheme] or bool(hyphen) != bool(kind):
        expected = ", ".join(f"{letter}-TYPE" for letter in PREFIXES[scheme])
        raise ValueError(f"tag {tag!r} is not valid in {scheme}: expected O, {expected}")
    return _IN_BIOES.get(prefix, prefix), kind or NO_TYPE


def _paired(predicted: Sequence[Tags], gold: Sequence[Tags]) -> Iterator[tuple[Tags, Tags]]:
    if len(predicted) != len(gold):
        raise ValueError(f"{len(predicted)} predicted sequences for {len(gold)} gold sequences")
    for number, (predicted_tags, gold_tags) in enumerate(zip(predicted, gold, strict=True)):
        if len(predicted_tags) != len(gold_tags):
            raise ValueError(
                f"sequence {number}: {len(predicted_tags)} predicted tags for {len(gold_tags)} "
                "gold tags"
            )
        yield predicted_tags, gold_tags


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized_answer(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation, articles or extra spaces."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def squad_scores(
    predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return `exact_match` and the word-level `f1` in percent, averaged over all questions.

    A question's score is the best score over its reference answers. A question without a prediction
    scores 0, and predictions for questions without references are ignored.

    Source: Rajpurkar et al. 2016, section 6.1.

    Args:
      predictions: maps each question id to the predicted answer.
      references: maps each question id to the reference answers.

    Raises:
      ValueError: there are no questions, or a question has no reference answer.
    """
    if not references:
        raise ValueError(
            "there are no questions to score. Provide reference answers for at least one question"
        )
    exact_match, f1 = 0, 0.0
    for question, answers in references.items():
        if not answers:
            raise ValueError(f"question {question} has no reference answer. Expected at least one")
        if question not in predictions:
            continue
        predicted = normalized_answer(predictions[question])
        expected = {normalized_answer(answer) for answer in answers}
        exact_match += predicted in expected
        # Add scores one by one, as in the official script: since Python 3.12, sum() rounds
        # differently.
        f1 += max(_f1(predicted.split(), answer.split()) for answer in expected)
    return {
        "exact_match": 100.0 * exact_match / len(references),
        "f1": 100.0 * f1 / len(references),
    }


def _f1(predicted: list[str], expected: list[str]) -> float:
    """Return the F1 of two bags of words (0 if both are empty, as in the official script)."""
    common = (Counter(predicted) & Counter(expected)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)
