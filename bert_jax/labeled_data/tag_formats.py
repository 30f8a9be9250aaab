"""Read lines of tagged words, and recognize and convert tag schemes.

Formats: column files (CoNLL-2003, WNUT-17) and CoNLL-U. Schemes: IOB1, IOB2, BIOES, BILOU and
BMES.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from typing import Literal, NamedTuple

_DOCUMENT_MARK = "-DOCSTART-"
CONLLU_COLUMNS = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC".split()


class Word(NamedTuple):
    """A word, the cells of its line, and where that stands."""

    text: str
    cells: list[str]
    place: str
    line: str


Lines = Iterator[tuple[str, str]]  # a line without its end, and its place


class End(Enum):
    """What ends before the next word."""

    SENTENCE = auto()
    DOCUMENT = auto()


def cells_of(line: str) -> list[str]:
    """The columns of a line of a column file."""
    return line.split("\t") if "\t" in line else re.split(" +", line)


def column_events(lines: Lines, column: int, comment: str) -> Iterator[Word | End]:
    """The words and ends of a column file. ValueError names file and line of what has no word.

    column: of the words. comment: what lines begin with that are passed over, "" for none.
    """
    width = 0
    for whole, place in lines:
        line = whole.rstrip(" \t")
        cells = cells_of(line)
        if not line:
            yield End.SENTENCE
            continue
        if comment and line.startswith(comment):
            continue
        if _DOCUMENT_MARK in (cells[0], cells[column] if column < len(cells) else ""):
            yield End.DOCUMENT
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise ValueError(
                f"{place}: {line[:80]!r} has {len(cells)} columns, the lines before have {width}"
            )
        _check_word(cells, column, place)
        yield Word(cells[column], cells, place, line)


def conllu_events(lines: Lines) -> Iterator[Word | End]:
    """As `column_events`, of CoNLL-U."""
    for line, place in lines:
        if not line:
            yield End.SENTENCE
            continue
        if line.startswith("#"):
            if re.match(r"#\s*newdoc\b", line):
                yield End.DOCUMENT
            continue
        cells = line.split("\t")
        if len(cells) != len(CONLLU_COLUMNS):
            raise ValueError(
                f"{place}: {line[:80]!r} has {len(cells)} columns; expected the "
                f"{len(CONLLU_COLUMNS)} of CoNLL-U, between tabs"
            )
        if re.fullmatch(r"\d+", cells[0]):
            _check_word(cells, 1, place)
            yield Word(cells[1], cells, place, line)
        elif not re.fullmatch(r"\d+[-.]\d+", cells[0]):
            raise ValueError(f"{place}: ID {cells[0]!r}; expected a number, '1-2' or '1.1'")


def _check_word(cells: Sequence[str], column: int, place: str) -> None:
    if column >= len(cells) or not cells[column]:
        raise ValueError(
            f"{place}: the line has no word in column {column}, counted from 0; expected one"
        )


ClosedScheme = Literal["BIOES", "BILOU", "BMES"]
Scheme = Literal["IOB1", "IOB2", ClosedScheme, "plain"]


class _Letters(NamedTuple):
    """The prefixes, apart from B-, of a scheme that marks the ends of entities."""

    inside: str
    last: str
    single: str
    own: str  # prefixes that no other scheme has; for BIOES, that IOB1 and IOB2 do not have


_CLOSED: Mapping[ClosedScheme, _Letters] = {
    "BILOU": _Letters("I", "L", "U", own="LU"),
    "BMES": _Letters("M", "E", "S", own="M"),
    "BIOES": _Letters("I", "E", "S", own="ES"),  # last, since BMES has its letters too
}
_MARKED = re.compile(r"([BIESLUM])-(.+)")
# Prefixes that plain tags may also have: they mark entities only if all other tags have prefixes.
_RARE = frozenset("LUM")
_ADVICE = "Fix the file, or set tags.files.learn_as='as_written' to use the tags as they are"


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
    """Return the tag scheme of sentences, "plain" if their tags do not mark entities.

    Sentences without entities are "plain". B-, E- and S- without any I- or M- are BIOES.

    Args:
        tags: [sentences][words].
        places: "file:line" of every tag, for messages.

    Raises:
        ValueError: some tags have a prefix and others are neither that nor "O", or entities are
            marked in different schemes; names file, line and value of each.
    """
    sentences = _Marks(tags, places)
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
        if not first.keys().isdisjoint(letters.own):
            _check_closed(sentences, scheme, first)
            return scheme
    not_iob1, not_iob2 = _first_beginning(sentences, "B"), _first_beginning(sentences, "I")
    if not_iob1 and not_iob2:
        raise ValueError(
            f"mixed tag schemes: {sentences.place(not_iob1)}: {not_iob1.tag!r} begins an entity as "
            f"in IOB2, and {sentences.place(not_iob2)}: {not_iob2.tag!r} begins one as in IOB1; "
            f"expected one scheme per file. {_ADVICE}"
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
    """The tags of a sentence in IOB1, whatever scheme they follow; plain tags stay."""
    if scheme in ("IOB1", "plain"):
        return list(tags)
    begun = to_iob2(tags, scheme)
    return [
        f"I-{tag[2:]}" if tag.startswith("B-") and before[2:] != tag[2:] else tag
        for before, tag in zip(["O", *begun], begun, strict=False)
    ]


def to_closed(tags: Sequence[str], scheme: ClosedScheme) -> list[str]:
    """Convert the tags of a sentence to a scheme that marks the ends of entities.

    Args:
        tags: tags in IOB2; an I- that follows no entity of its type begins one, as in IOB1.
        scheme: the target scheme.
    """
    letters, begun = _CLOSED[scheme], to_iob2(tags, "IOB1")
    converted = []
    for tag, after in zip(begun, [*begun[1:], "O"], strict=True):
        prefix, _, kind = tag.partition("-")
        ends = after != f"I-{kind}"
        match prefix:
            case "B":
                converted.append(f"{letters.single if ends else 'B'}-{kind}")
            case "I":
                converted.append(f"{letters.last if ends else letters.inside}-{kind}")
            case _:
                converted.append(tag)
    return converted


@cache
def _parsed(tag: str) -> tuple[str, str]:
    match = _MARKED.fullmatch(tag)
    return (match[1], match[2]) if match else ("", "")


def _first_of_prefix(sentences: Iterable[Sequence[_Mark]]) -> dict[str, _Mark]:
    """Return the first mark with each prefix."""
    first: dict[str, _Mark] = {}
    for sentence in sentences:
        for mark in sentence:
            if mark.prefix:
                first.setdefault(mark.prefix, mark)
    return first


def _unmarked(sentences: _Marks, mark: _Mark) -> str:
    return (
        f"{sentences.place(mark)}: tag {mark.tag!r} does not fit the other tags, which have "
        "prefixes of IOB1, IOB2, BIOES, BILOU or BMES; expected 'O' or one of B-, I-, E-, S-, L-, "
        f"U-, M- and the entity's type. {_ADVICE}"
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


def _check_closed(sentences: _Marks, scheme: ClosedScheme, first: Mapping[str, _Mark]) -> None:
    """Refuse prefixes that the scheme does not have and entities that do not end as it requires.

    Args:
        sentences: the marks.
        scheme: the scheme to check against.
        first: the first mark with each prefix.
    """
    letters = _CLOSED[scheme]
    for prefix, mark in first.items():
        if prefix not in {"B", letters.inside, letters.last, letters.single}:
            raise _mixed(sentences, scheme, first, mark, f"{prefix}- is not a prefix of {scheme}")
    for sentence in sentences:
        unfinished: _Mark | None = None  # the B- or inside mark that the next word must continue
        for mark in sentence:
            continues = mark.prefix in (letters.inside, letters.last)
            if unfinished and not (continues and unfinished.kind == mark.kind):
                raise _mixed(sentences, scheme, first, unfinished, _NOTHING_AFTER)
            if continues and not unfinished:
                raise _mixed(sentences, scheme, first, mark, "it continues no entity of its type")
            unfinished = mark if mark.prefix in ("B", letters.inside) else None
        if unfinished:
            raise _mixed(sentences, scheme, first, unfinished, _NOTHING_AFTER)


_NOTHING_AFTER = "no tag of its type continues it"


def _mixed(
    sentences: _Marks, scheme: ClosedScheme, first: Mapping[str, _Mark], mark: _Mark, problem: str
) -> ValueError:
    own = [f"{letter}-" for letter in _CLOSED[scheme].own if letter in first]
    reason = f"the prefixes {' and '.join(own)} mean" if len(own) > 1 else f"{own[0]} means"
    return ValueError(
        f"mixed tag schemes: {reason} {scheme}, but {sentences.place(mark)}: {mark.tag!r}: "
        f"{problem}. {_ADVICE}"
    )
