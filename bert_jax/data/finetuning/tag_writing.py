"""Predicted tags in the files that the official scorers take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_jax.data.files import write_file
from bert_jax.data.finetuning.tags import CONLLU_COLUMNS, TagFiles, TagSentences, cells_of


def write_tags(
    files: TagFiles, sentences: TagSentences, predicted: Sequence[Sequence[str]], file: Path
) -> None:
    """Writes the lines that `sentences` were read from, with the predicted tags.

    Of column files the lines of words, the tag behind each, with what stands between its columns,
    tabs or spaces, and a blank line a sentence: CoNLL's scorer, conlleval, takes the last two
    columns for the right tag and the predicted one. Where `tag` is not the last column the right
    one is said again before it. Of CoNLL-U all lines, the tag in its column, as the scorer of
    Universal Dependencies takes them.
    """
    lines, written = sentences.lines.copy(), []
    for places, tags in zip(sentences.places, predicted, strict=True):
        for place, tag in zip(places, tags, strict=True):
            number = int(place.rpartition(":")[2]) - 1
            lines[number] = _tagged(lines[number], tag, files)
            written.append(lines[number])
        written.append("")
    content = lines if files.kind == "conllu" else written
    write_file(file, "".join(f"{line}\n" for line in content))


def _tagged(line: str, tag: str, files: TagFiles) -> str:
    if files.kind == "conllu":
        cells = line.split("\t")
        cells[CONLLU_COLUMNS.index(files.tag or "UPOS")] = tag
        return "\t".join(cells)
    line = line.rstrip(" \t")
    separator, cells = _separator(line), cells_of(line)
    if files.tag and int(files.tag) < len(cells) - 1:
        line = f"{line}{separator}{cells[int(files.tag)]}"
    return f"{line}{separator}{tag}"


def _separator(line: str) -> str:
    return "\t" if "\t" in line else " "
