"""Predicted tags in the files that the official scorers take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bert_jax.data.finetuning.tag_lines import CONLLU_COLUMNS, cells_of
from bert_jax.data.finetuning.tag_schemes import (
    Scheme,
    recognise_scheme,
    to_closed,
    to_iob1,
    to_iob2,
)
from bert_jax.data.finetuning.tags import TagFiles, TagSentences
from bert_jax.files import write_file


def write_tags(
    files: TagFiles, sentences: TagSentences, predicted: Sequence[Sequence[str]], file: Path
) -> None:
    """Write the lines that `sentences` were read from, with the predicted tags.

    In a column file the predicted tag follows the columns of its line, with the line's separator
    (tab or space), and a blank line ends every sentence: conlleval, CoNLL's scorer, reads the right
    tag and the predicted one from the last two columns. If `tag` is not the last column, the right
    tag is repeated before the predicted one. In CoNLL-U the predicted tag replaces the one in its
    column, as the Universal Dependencies scorer expects, and all other lines are unchanged.

    Predictions for a file in BILOU or BMES, which conlleval does not support, are written in the
    file's scheme. If the schemes of the file and of the predictions differ, the right tag is
    repeated in the predictions' scheme, so that conlleval can compare them. A file without entity
    tags gets the predictions unchanged.
    """
    lines, written = sentences.lines.copy(), []
    numbers = [
        [int(place.rpartition(":")[2]) - 1 for place in places] for places in sentences.places
    ]
    tags_in_file = _tags_in_file(files, lines, numbers)
    scheme = _scheme_of(tags_in_file) if files.learn_as != "as_written" else "plain"
    if scheme == "BILOU" or scheme == "BMES":
        predicted = [to_closed(tags, scheme) for tags in predicted]
    right = None if files.kind == "conllu" else _right_tags(files, tags_in_file, scheme)
    for sentence, (places, tags) in enumerate(zip(numbers, predicted, strict=True)):
        for word, (number, tag) in enumerate(zip(places, tags, strict=True)):
            if files.kind == "conllu":
                lines[number] = _in_its_column(lines[number], tag, files)
                continue
            line = lines[number].rstrip(" \t")
            behind = [right[sentence][word], tag] if right else [tag]
            written.append(("\t" if "\t" in line else " ").join([line, *behind]))
        written.append("")
    content = lines if files.kind == "conllu" else written
    write_file(file, "".join(f"{line}\n" for line in content))


class _TagsInFile(NamedTuple):
    tags: list[list[str]]  # [sentences][words]
    at_the_end: bool  # whether they are the last column of every line


def _tags_in_file(
    files: TagFiles, lines: Sequence[str], numbers: Sequence[Sequence[int]]
) -> _TagsInFile | None:
    """Return the tags in the file's tag column, None if a line lacks that column."""
    if files.kind == "conllu":
        column = CONLLU_COLUMNS.index(files.tag or "UPOS")
        rows = [[lines[number].split("\t") for number in sentence] for sentence in numbers]
    else:
        rows = [[cells_of(lines[n].rstrip(" \t")) for n in sentence] for sentence in numbers]
        widest = max(len(cells) for sentence in rows for cells in sentence)
        column = int(files.tag) if files.tag else max(1, widest - 1)
    widths = {len(cells) for sentence in rows for cells in sentence}
    if column >= min(widths) or (not files.tag and column == int(files.word or 0)):
        return None
    tags = [[cells[column] for cells in sentence] for sentence in rows]
    return _TagsInFile(tags, column == max(widths) - 1)


def _right_tags(
    files: TagFiles, in_file: _TagsInFile | None, scheme: Scheme
) -> list[list[str]] | None:
    """Return the right tags to repeat, None if lines already end with them or have none."""
    if in_file is None:
        return None
    kept = scheme in (files.learn_as, "plain", "BILOU", "BMES")
    if kept:
        return None if in_file.at_the_end else in_file.tags
    convert = to_iob1 if files.learn_as == "IOB1" else to_iob2
    return [convert(tags, scheme) for tags in in_file.tags]


def _scheme_of(in_file: _TagsInFile | None) -> Scheme:
    try:
        return recognise_scheme(in_file.tags) if in_file else "plain"
    except ValueError:  # a test file's tags are not checked
        return "plain"


def _in_its_column(line: str, tag: str, files: TagFiles) -> str:
    cells = line.split("\t")
    cells[CONLLU_COLUMNS.index(files.tag or "UPOS")] = tag
    return "\t".join(cells)
