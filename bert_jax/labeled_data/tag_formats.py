"""Parse files of tagged words: column files (CoNLL-2003, WNUT-17) and CoNLL-U."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

_DOCUMENT_MARK = "-DOCSTART-"
CONLLU_COLUMNS = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC".split()


class Word(NamedTuple):
    """A word, the cells of its line, and the location ("file:line") and text of that line."""

    text: str
    cells: list[str]
    location: str
    line: str


Lines = Iterator[tuple[str, str]]  # each line, without its line ending, and its location


class End(Enum):
    """A marker, between two words, for the end of a sentence or document."""

    SENTENCE = auto()
    DOCUMENT = auto()


def cells_of(line: str) -> list[str]:
    """Split a line of a column file into cells."""
    return line.split("\t") if "\t" in line else re.split(" +", line)


def column_events(lines: Lines, column: int, comment: str) -> Iterator[Word | End]:
    """Yield the words, sentence ends and document ends in a column file.

    Args:
        lines: the lines of the file.
        column: the column that contains the words, from 0.
        comment: the prefix of lines to skip, or "" to skip none.

    Raises:
        ValueError: a line has no word, or has more or fewer columns than the lines before it. The
            message gives the file and line.
    """
    width = 0
    for line_with_spaces, location in lines:
        line = line_with_spaces.rstrip(" \t")
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
                f"{location}: {line[:80]!r} has {len(cells)} columns, but previous lines have "
                f"{width}"
            )
        _check_word(cells, column, location)
        yield Word(cells[column], cells, location, line)


def conllu_events(lines: Lines) -> Iterator[Word | End]:
    """Yield the words, sentence ends and document ends in a CoNLL-U file.

    Raises:
        ValueError: a line is malformed. The message gives the file and line.
    """
    for line, location in lines:
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
                f"{location}: {line[:80]!r} has {len(cells)} columns, but CoNLL-U has "
                f"{len(CONLLU_COLUMNS)} columns separated by tabs"
            )
        if re.fullmatch(r"\d+", cells[0]):
            _check_word(cells, 1, location)
            yield Word(cells[1], cells, location, line)
        elif not re.fullmatch(r"\d+[-.]\d+", cells[0]):
            raise ValueError(
                f"{location}: the ID {cells[0]!r} is neither a number nor of the "
                "form '1-2' or '1.1'"
            )


def _check_word(cells: Sequence[str], column: int, location: str) -> None:
    if column >= len(cells) or not cells[column]:
        raise ValueError(
            f"{location}: the line has no word in column {column} (columns are counted from 0)"
        )


def group_sentences(events: Iterator[Word | End]) -> Iterator[list[Word] | None]:
    """Yield sentences, and None wherever the file marks the beginning of a document."""
    sentence: list[Word] = []
    for event in events:
        if isinstance(event, Word):
            sentence.append(event)
            continue
        if sentence:
            yield sentence
            sentence = []
        if event is End.DOCUMENT:
            yield None
    if sentence:
        yield sentence
