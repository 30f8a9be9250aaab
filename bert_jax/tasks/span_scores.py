"""Score entities in tagged sequences, and answers that are spans of a passage.

Entities are counted as conlleval and seqeval count them, answers by the rules of SQuAD v1.1's
evaluation.
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
# Other letters for inside, last and single.
_IN_BIOES = {"M": "I", "L": "E", "U": "S"}
# The type of a tag that is a prefix alone, as in seqeval.
NO_TYPE = "_"

Tags = Sequence[str]


def scheme_of(labels: Sequence[str]) -> Scheme | None:
    """Return the scheme with these labels' prefixes, None if they do not mark entities.

    If several schemes have all of the prefixes, they read them in the same way: IOB1 as IOB2 (see
    `entities_of`), and B, E and S without I or M as BIOES.
    """
    parts = [label.partition("-") for label in labels if label != "O"]
    if any(bool(hyphen) != bool(kind) for _, hyphen, kind in parts):
        return None
    prefixes = {prefix for prefix, _, _ in parts}
    schemes: tuple[Scheme, ...] = ("IOB2", "BIOES", "BILOU", "BMES")
    return next((scheme for scheme in schemes if prefixes <= set(PREFIXES[scheme])), None)


class Entity(NamedTuple):
    """Tokens `start` to `end`, the latter included, of a sequence."""

    type: str
    start: int
    end: int


def entities_of(tags: Tags, scheme: Scheme) -> list[Entity]:
    """The entities of one sequence, in order.

    A sequence that breaks its scheme has the entities conlleval gives it: a token goes on with the
    entity before it if its prefix is I or E, its type that entity's, and the entity not ended by E
    or S; any other tag but O begins one. So IOB1, where I begins an entity and B only parts it from
    the one before, is read by the same rule as the rest, and schemes differ in their prefixes.

    Args:
      tags: "O", a prefix alone ("B"), or a prefix and a type ("B-PER").
      scheme: the scheme, which determines the prefixes (see `PREFIXES`). BILOU and BMES are read as
        BIOES with other letters: L and U for E and S, M for I.

    Raises:
      ValueError: a tag of another form or with a prefix that the scheme does not have.
    """
    entities: list[Entity] = []
    open_type: str | None = None
    for place, tag in enumerate(tags):
        prefix, kind = _parts(tag, scheme)
        if prefix in ("I", "E") and kind == open_type:
            entities[-1] = entities[-1]._replace(end=place)
        elif prefix != "O":
            entities.append(Entity(kind, place, place))
        open_type = kind if prefix in ("B", "I") else None
    return entities


def entity_counts(
    predicted: Sequence[Tags], gold: Sequence[Tags], scheme: Scheme
) -> dict[str, Counts]:
    """Counts of each type that occurs among predicted or gold entities, types in order.

    Args:
      predicted, gold: tags of the same sequences.

    Raises:
      ValueError: as `entities_of`, or sequences of different lengths.
    """
    of_predicted, of_gold, of_both = Counter[str](), Counter[str](), Counter[str]()
    for ours, theirs in _paired(predicted, gold):
        found, expected = set(entities_of(ours, scheme)), set(entities_of(theirs, scheme))
        of_predicted.update(entity.type for entity in found)
        of_gold.update(entity.type for entity in expected)
        of_both.update(entity.type for entity in found & expected)
    return {
        kind: Counts(of_predicted[kind], of_gold[kind], of_both[kind])
        for kind in sorted(of_predicted.keys() | of_gold.keys())
    }


def entity_scores(
    predicted: Sequence[Tags], gold: Sequence[Tags], scheme: Scheme
) -> dict[str, float]:
    """precision, recall and f1 over the entities of all types, as fractions (micro average).

    Arguments and errors as `entity_counts`, whose rows give the scores of each type.
    """
    counts = entity_counts(predicted, gold, scheme).values()
    return Counts(
        sum(row.predicted for row in counts),
        sum(row.gold for row in counts),
        sum(row.correct for row in counts),
    ).scores()


def tag_accuracy(predicted: Sequence[Tags], gold: Sequence[Tags]) -> float:
    """The fraction of tokens whose tag is right.

    Raises:
      ValueError: sequences of different lengths, or no token at all.
    """
    correct = total = 0
    for ours, theirs in _paired(predicted, gold):
        correct += sum(one == other for one, other in zip(ours, theirs, strict=True))
        total += len(theirs)
    if not total:
        raise ValueError("no tags to score: expected at least one token")
    return correct / total


def _parts(tag: str, scheme: Scheme) -> tuple[str, str]:
    if tag == "O":
        return "O", ""
    prefix, hyphen, kind = tag.partition("-")
    if len(prefix) != 1 or prefix not in PREFIXES[scheme] or bool(hyphen) != bool(kind):
        expected = ", ".join(f"{letter}-TYPE" for letter in PREFIXES[scheme])
        raise ValueError(f"tag {tag!r} is none of {scheme}: expected O, {expected}")
    return _IN_BIOES.get(prefix, prefix), kind or NO_TYPE


def _paired(predicted: Sequence[Tags], gold: Sequence[Tags]) -> Iterator[tuple[Tags, Tags]]:
    if len(predicted) != len(gold):
        raise ValueError(f"{len(predicted)} predicted sequences for {len(gold)} gold ones")
    for number, (ours, theirs) in enumerate(zip(predicted, gold, strict=True)):
        if len(ours) != len(theirs):
            raise ValueError(
                f"sequence {number}: {len(ours)} predicted tags for {len(theirs)} gold ones"
            )
        yield ours, theirs


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, words one space apart."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def squad_scores(
    predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Exact match and F1 of words in percent, `exact_match` and `f1`, the mean over questions.

    Both mappings are by question id. A question's score is its best over its reference answers;
    one without a prediction scores 0, and predictions for other questions do not count.
    ValueError if there are no questions, or one without a reference.
    Source: Rajpurkar et al. 2016, section 6.1.
    """
    if not references:
        raise ValueError("there are no questions to score; expected reference answers for some")
    exact_match, f1 = 0, 0.0
    for question, answers in references.items():
        if not answers:
            raise ValueError(f"question {question} has no reference answer; expected at least one")
        if question not in predictions:
            continue
        predicted = normalized_answer(predictions[question])
        expected = {normalized_answer(answer) for answer in answers}
        exact_match += predicted in expected
        # Added one by one: from Python 3.12 on sum() rounds otherwise than the official script.
        f1 += max(_f1(predicted.split(), answer.split()) for answer in expected)
    return {
        "exact_match": 100.0 * exact_match / len(references),
        "f1": 100.0 * f1 / len(references),
    }


def _f1(predicted: list[str], expected: list[str]) -> float:
    """Of two bags of words; 0 also where both are empty, as the official rules have it."""
    common = (Counter(predicted) & Counter(expected)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)
