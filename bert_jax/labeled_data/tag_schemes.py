"""Recognize and convert tag schemes: IOB1, IOB2, BIOES, BILOU and BMES."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

ClosedScheme = Literal["BIOES", "BILOU", "BMES"]
Scheme = Literal["IOB1", "IOB2", ClosedScheme, "plain"]


class _Letters(NamedTuple):
    """The prefixes other than B- in a scheme that marks where entities end."""

    inside: str
    last: str
    single: str
    # The prefixes that identify the scheme. No two schemes share them, except for BMES and BIOES.
    distinctive: str


_CLOSED: Mapping[ClosedScheme, _Letters] = {
    "BILOU": _Letters("I", "L", "U", distinctive="LU"),
    "BMES": _Letters("M", "E", "S", distinctive="M"),
    # BIOES is checked last, since BMES uses E and S too.
    "BIOES": _Letters("I", "E", "S", distinctive="ES"),
}
_MARKED = re.compile(r"([BIESLUM])-(.+)")
# Prefixes that plain tags may also have. They mark entities only if all tags except "O" have a
# prefix.
_RARE = frozenset("LUM")
_ADVICE = "Fix the file, or set tags.files.learn_as='as_written' to use the tags as they are"


class _Mark(NamedTuple):
    # The prefix is "" for a tag without one.
    prefix: str
    kind: str
    tag: str
    sentence: int
    word: int


class _Marks:
    """The marks in all sentences, which are recomputed on each iteration rather than stored."""

    def __init__(self, tags: Sequence[Sequence[str]], locations: Sequence[Sequence[str]] | None):
        self._tags, self._places = tags, locations

    def __iter__(self) -> Iterator[list[_Mark]]:
        for number, sentence in enumerate(self._tags):
            yield [
                _Mark(*_split_prefix(tag), tag, number, word) for word, tag in enumerate(sentence)
            ]

    def location(self, mark: _Mark) -> str:
        if self._places is None:
            return f"sentence {mark.sentence}, word {mark.word}"
        return self._places[mark.sentence][mark.word]


def recognize_scheme(
    tags: Sequence[Sequence[str]], locations: Sequence[Sequence[str]] | None = None
) -> Scheme:
    """Recognize the tag scheme that sentences use, or "plain" if their tags do not mark entities.

    Sentences without entities are "plain". Sentences with B-, E- and S- but neither I- nor M- count
    as BIOES.

    Args:
        tags: [sentences][words] the tags.
        locations: [sentences][words] "file:line", for messages.

    Raises:
        ValueError: only some of the tags other than "O" have prefixes, or entities are marked in
            different schemes. The message gives the file, line and value of each conflicting tag.
    """
    sentences = _Marks(tags, locations)
    first = _first_of_prefix(sentences)
    if not first:
        return "plain"
    for sentence in sentences:
        for mark in sentence:
            if not mark.prefix and mark.tag != "O":
                if _RARE.issuperset(first):
                    return "plain"
                raise ValueError(_unmarked(sentences, mark))
    for scheme, letters in _CLOSED.items():
        if not first.keys().isdisjoint(letters.distinctive):
            _check_closed(sentences, scheme, first)
            return scheme
    not_iob1, not_iob2 = _first_beginning(sentences, "B"), _first_beginning(sentences, "I")
    if not_iob1 and not_iob2:
        raise ValueError(
            f"mixed tag schemes: {sentences.location(not_iob1)}: {not_iob1.tag!r} begins an entity "
            f"as in IOB2, but {sentences.location(not_iob2)}: {not_iob2.tag!r} begins one as in "
            f"IOB1. Each file must use a single scheme. {_ADVICE}"
        )
    return "IOB2" if not_iob1 else "IOB1"


def to_iob2(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Convert a sentence's tags to IOB2, leaving plain tags as they are.

    Args:
        tags: the tags to convert.
        scheme: the scheme of these tags.
    """
    if scheme in ("IOB2", "plain"):
        return list(tags)
    converted = []
    before = ""
    for tag in tags:
        prefix, _, kind = tag.partition("-")
        match prefix:
            case "S" | "U":
                converted.append(f"B-{kind}")
            case "E" | "L" | "M":
                converted.append(f"I-{kind}")
            case "I" if before not in (f"B-{kind}", f"I-{kind}"):
                converted.append(f"B-{kind}")
            case _:
                converted.append(tag)
        before = tag
    return converted


def to_iob1(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Convert a sentence's tags to IOB1, leaving plain tags as they are.

    Args:
        tags: the tags to convert.
        scheme: the scheme of these tags.
    """
    if scheme in ("IOB1", "plain"):
        return list(tags)
    iob2 = to_iob2(tags, scheme)
    return [
        f"I-{tag[2:]}" if tag.startswith("B-") and previous[2:] != tag[2:] else tag
        for previous, tag in zip(["O", *iob2], iob2, strict=False)
    ]


def to_closed(tags: Sequence[str], scheme: ClosedScheme) -> list[str]:
    """Convert a sentence's tags to a scheme that marks where entities end.

    Args:
        tags: the tags in IOB2 or IOB1. An I- that does not follow an entity of its type begins a
            new entity.
        scheme: the target scheme.
    """
    letters, iob2 = _CLOSED[scheme], to_iob2(tags, "IOB1")
    converted = []
    for tag, following in zip(iob2, [*iob2[1:], "O"], strict=True):
        prefix, _, kind = tag.partition("-")
        ends = following != f"I-{kind}"
        match prefix:
            case "B":
                converted.append(f"{letters.single if ends else 'B'}-{kind}")
            case "I":
                converted.append(f"{letters.last if ends else letters.inside}-{kind}")
            case _:
                converted.append(tag)
    return converted


@cache
def _split_prefix(tag: str) -> tuple[str, str]:
    match = _MARKED.fullmatch(tag)
    return (match[1], match[2]) if match else ("", "")


def _first_of_prefix(sentences: Iterable[Sequence[_Mark]]) -> dict[str, _Mark]:
    """Find the first mark with each prefix."""
    first: dict[str, _Mark] = {}
    for sentence in sentences:
        for mark in sentence:
            if mark.prefix:
                first.setdefault(mark.prefix, mark)
    return first


def _unmarked(sentences: _Marks, mark: _Mark) -> str:
    return (
        f"{sentences.location(mark)}: tag {mark.tag!r} has no prefix of IOB1, IOB2, BIOES, BILOU "
        "or BMES, but other tags do. Each tag must be 'O', or a prefix (B-, I-, E-, S-, L-, U- or "
        f"M-) followed by an entity type. {_ADVICE}"
    )


def _first_beginning(sentences: Iterable[Sequence[_Mark]], prefix: str) -> _Mark | None:
    """Return the first mark with `prefix` that does not follow a mark of the same entity type."""
    for sentence in sentences:
        previous = ("", "")
        for mark in sentence:
            if mark.prefix == prefix and not (previous[0] and previous[1] == mark.kind):
                return mark
            previous = (mark.prefix, mark.kind)
    return None


def _check_closed(sentences: _Marks, scheme: ClosedScheme, first: Mapping[str, _Mark]) -> None:
    """Raise ValueError for a prefix that is not in the scheme, or an entity without a valid end.

    Args:
        sentences: the marks in all sentences.
        scheme: the scheme to check against.
        first: the first mark that has each prefix.
    """
    letters = _CLOSED[scheme]
    for prefix, mark in first.items():
        if prefix not in {"B", letters.inside, letters.last, letters.single}:
            raise _mixed(sentences, scheme, first, mark, f"{prefix}- is not a prefix of {scheme}")
    for sentence in sentences:
        # The previous mark if it is a B- or inside mark, whose entity the next word must continue.
        unfinished: _Mark | None = None
        for mark in sentence:
            continues = mark.prefix in (letters.inside, letters.last)
            if unfinished and not (continues and unfinished.kind == mark.kind):
                raise _mixed(sentences, scheme, first, unfinished, _NOT_CONTINUED)
            if continues and not unfinished:
                raise _mixed(sentences, scheme, first, mark, "no entity of its type precedes it")
            unfinished = mark if mark.prefix in ("B", letters.inside) else None
        if unfinished:
            raise _mixed(sentences, scheme, first, unfinished, _NOT_CONTINUED)


_NOT_CONTINUED = "no tag of its type follows it"


def _mixed(
    sentences: _Marks, scheme: ClosedScheme, first: Mapping[str, _Mark], mark: _Mark, problem: str
) -> ValueError:
    prefixes = [f"{letter}-" for letter in _CLOSED[scheme].distinctive if letter in first]
    verb = "imply" if len(prefixes) > 1 else "implies"
    return ValueError(
        f"mixed tag schemes: {' and '.join(prefixes)} {verb} {scheme}, but in "
        f"{sentences.location(mark)}, {mark.tag!r} is invalid: {problem}. {_ADVICE}"
    )
