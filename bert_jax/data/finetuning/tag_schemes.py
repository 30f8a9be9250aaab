"""How tags mark entities: IOB1, IOB2 and BIOES told apart, and all made IOB2, or IOB1.

IOB1 (Ramshaw and Marcus 1995): entities of I-, B- only where one directly follows another of its
type. IOB2 (Tjong Kim Sang and Veenstra 1999): every entity begins with B-. BIOES: entities of
several words end with E-, those of one word are S-.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Literal, NamedTuple

Scheme = Literal["IOB1", "IOB2", "BIOES", "plain"]

_MARKED = re.compile(r"([BIES])-(.+)")


class _Mark(NamedTuple):
    prefix: str  # "" outside
    kind: str
    tag: str
    sentence: int
    word: int


class _Marks:
    """The marks of sentences, made anew whenever they are iterated over."""

    def __init__(self, tags: Sequence[Sequence[str]], places: Sequence[Sequence[str]] | None):
        self._tags, self._places = tags, places

    def __iter__(self) -> Iterator[list[_Mark]]:
        for number, sentence in enumerate(self._tags):
            yield [_Mark(*_parsed(tag), tag, number, word) for word, tag in enumerate(sentence)]

    def place(self, mark: _Mark) -> str:
        if self._places is None:
            return f"sentence {mark.sentence}, word {mark.word}"
        return self._places[mark.sentence][mark.word]


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
    sentences = _Marks(tags, places)
    for sentence in sentences:
        _check_marked(sentence, sentences)
    if any(mark.prefix in ("E", "S") for sentence in sentences for mark in sentence):
        _check_bioes(sentences)
        return "BIOES"
    not_iob1, not_iob2 = _first_beginning(sentences, "B"), _first_beginning(sentences, "I")
    if not_iob1 and not_iob2:
        raise ValueError(
            f"mixed tag schemes: {sentences.place(not_iob1)}: {not_iob1.tag!r} begins an entity as "
            f"in IOB2, and {sentences.place(not_iob2)}: {not_iob2.tag!r} begins one as in IOB1; "
            "expected one scheme in a file. Mend the file, or take tags as they are with "
            "learn_as='as_written'"
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


def to_iob1(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """The tags of a sentence in IOB1, whatever scheme they follow; plain tags stay."""
    if scheme in ("IOB1", "plain"):
        return list(tags)
    begun = to_iob2(tags, scheme)
    return [
        f"I-{tag[2:]}" if tag.startswith("B-") and before[2:] != tag[2:] else tag
        for before, tag in zip(["O", *begun], begun, strict=False)
    ]


@cache
def _parsed(tag: str) -> tuple[str, str]:
    match = _MARKED.fullmatch(tag)
    return (match[1], match[2]) if match else ("", "")


def _check_marked(sentence: Sequence[_Mark], sentences: _Marks) -> None:
    for mark in sentence:
        if not mark.prefix and mark.tag != "O":
            raise ValueError(
                f"{sentences.place(mark)}: tag {mark.tag!r}; other tags have the prefixes of IOB1, "
                "IOB2 or BIOES: expected 'O' or B-, I-, E- or S- before the type of entity. Mend "
                "the file, or take tags as they are with learn_as='as_written'"
            )


def _first_beginning(sentences: Iterable[Sequence[_Mark]], prefix: str) -> _Mark | None:
    """The first mark with this prefix that does not follow one of its own type."""
    for sentence in sentences:
        before = ("", "")
        for mark in sentence:
            if mark.prefix == prefix and not (before[0] and before[1] == mark.kind):
                return mark
            before = (mark.prefix, mark.kind)
    return None


def _check_bioes(sentences: _Marks) -> None:
    for sentence in sentences:
        unfinished: _Mark | None = None  # the B- or I- that the next word must go on from
        for mark in sentence:
            goes_on = mark.prefix in ("I", "E")
            if unfinished and not (goes_on and unfinished.kind == mark.kind):
                raise _not_bioes(sentences, unfinished, _NOTHING_AFTER)
            if goes_on and not unfinished:
                raise _not_bioes(sentences, mark, "it goes on from nothing of its type")
            unfinished = mark if mark.prefix in ("B", "I") else None
        if unfinished:
            raise _not_bioes(sentences, unfinished, _NOTHING_AFTER)


_NOTHING_AFTER = "nothing of its type goes on from it"


def _not_bioes(sentences: _Marks, mark: _Mark, problem: str) -> ValueError:
    return ValueError(
        f"mixed tag schemes: the prefixes E- and S- say BIOES, but {sentences.place(mark)}: "
        f"{mark.tag!r}: {problem}. Mend the file, or take tags as they are with "
        "learn_as='as_written'"
    )
