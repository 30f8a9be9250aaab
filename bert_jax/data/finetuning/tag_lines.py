"""Lines of tagged words: column files (CoNLL-2003, WNUT-17) and CoNLL-U.

Source: https://universaldependencies.org/format.html for CoNLL-U; Tjong Kim Sang and De Meulder
2003, section 2, for column files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

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
