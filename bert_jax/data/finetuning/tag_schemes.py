"""How tags mark entities: IOB1, IOB2 and BIOES told apart, and all made IOB2.

IOB1 (Ramshaw and Marcus 1995): entities of I-, B- only where one directly follows another of its
type. IOB2 (Tjong Kim Sang and Veenstra 1999): every entity begins with B-. BIOES: entities of
several words end with E-, those of one word are S-.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Scheme = Literal["IOB1", "IOB2", "BIOES", "plain"]

_MARKED = re.compile(r"([BIES])-(.+)")


class _Mark(NamedTuple):
    prefix: str  # "" outside
    kind: str
    tag: str
    place: str


def recognise_scheme(
    tags: Sequence[Sequence[str]], places: Sequence[Sequence[str]] | None = None
) -> Scheme:
    """The scheme of the tags of sentences; "plain" if no tag has a prefix B-, I-, E- or S-.

    places: "file:line" of every tag, for messages. Tags that IOB1 and IOB2 alike would write so
    (there is no entity) are "plain".

    Raises:
        ValueError: some tags have a prefix and others are neither that nor "O", or entities are
            marked after different schemes; names file, line and value of each.
    """
    if not any(_MARKED.fullmatch(tag) for sentence in tags for tag in sentence):
        return "plain"
    sentences = list(_marked_sentences(tags, places))
    if any(mark.prefix in ("E", "S") for sentence in sentences for mark in sentence):
        _check_bioes(sentences)
        return "BIOES"
    not_iob1, not_iob2 = _first_beginning(sentences, "B"), _first_beginning(sentences, "I")
    if not_iob1 and not_iob2:
        raise ValueError(
            f"mixed tag schemes: {not_iob1.place}: {not_iob1.tag!r} begins an entity as in IOB2, "
            f"and {not_iob2.place}: {not_iob2.tag!r} begins one as in IOB1; expected one scheme in "
            "a file. Mend the file, or take tags as they are with learn_as='as_written'"
        )
    return "IOB2" if not_iob1 else "IOB1"


def to_iob2(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """The tags of a sentence in IOB2, whatever scheme they follow; plain tags stay."""
    if scheme in ("IOB2", "plain"):
        return list(tags)
    converted = []
    before = ""
    for tag in tags:
        prefix, _, kind = tag.partition("-")
        match prefix:
            case "S":
                converted.append(f"B-{kind}")
            case "E":
                converted.append(f"I-{kind}")
            case "I" if before not in (f"B-{kind}", f"I-{kind}"):
                converted.append(f"B-{kind}")
            case _:
                converted.append(tag)
        before = tag
    return converted


def _marked_sentences(
    tags: Sequence[Sequence[str]], places: Sequence[Sequence[str]] | None
) -> Iterator[list[_Mark]]:
    for number, sentence in enumerate(tags):
        marks = []
        for word, tag in enumerate(sentence):
            place = places[number][word] if places else f"sentence {number}, word {word}"
            match = _MARKED.fullmatch(tag)
            if match is None and tag != "O":
                raise ValueError(
                    f"{place}: tag {tag!r}; other tags have the prefixes of IOB1, IOB2 or BIOES: "
                    "expected 'O' or B-, I-, E- or S- before the type of entity. Mend the file, or "
                    "take tags as they are with learn_as='as_written'"
                )
            marks.append(_Mark(match[1] if match else "", match[2] if match else "", tag, place))
        yield marks


def _first_beginning(sentences: Sequence[Sequence[_Mark]], prefix: str) -> _Mark | None:
    """The first mark with this prefix that does not follow one of its own type."""
    for sentence in sentences:
        before = ("", "")
        for mark in sentence:
            if mark.prefix == prefix and not (before[0] and before[1] == mark.kind):
                return mark
            before = (mark.prefix, mark.kind)
    return None


def _check_bioes(sentences: Sequence[Sequence[_Mark]]) -> None:
    for sentence in sentences:
        unfinished: _Mark | None = None  # the B- or I- that the next word must go on from
        for mark in sentence:
            goes_on = mark.prefix in ("I", "E")
            if unfinished and not (goes_on and unfinished.kind == mark.kind):
                raise _not_bioes(unfinished, "nothing of its type goes on from it")
            if goes_on and not unfinished:
                raise _not_bioes(mark, "it goes on from nothing of its type")
            unfinished = mark if mark.prefix in ("B", "I") else None
        if unfinished:
            raise _not_bioes(unfinished, "nothing of its type goes on from it")


def _not_bioes(mark: _Mark, problem: str) -> ValueError:
    return ValueError(
        f"mixed tag schemes: the prefixes E- and S- say BIOES, but {mark.place}: {mark.tag!r}: "
        f"{problem}. Mend the file, or take tags as they are with learn_as='as_written'"
    )
