"""Predicted tags in the files that the official scorers take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bert_jax.data.finetuning.tag_lines import CONLLU_COLUMNS, cells_of
from bert_jax.data.finetuning.tag_schemes import Scheme, recognise_scheme, to_iob1, to_iob2
from bert_jax.data.finetuning.tags import TagFiles, TagSentences
from bert_jax.files import write_file


def write_tags(
    files: TagFiles, sentences: TagSentences, predicted: Sequence[Sequence[str]], file: Path
) -> None:
    """Writes the lines that `sentences` were read from, with the predicted tags.

    Of column files the lines of words, the tag behind each, with what stands between its columns,
    tabs or spaces, and a blank line a sentence: CoNLL's scorer, conlleval, takes the last two
    columns for the right tag and the predicted one. Where `tag` is not the last column, or marks
    entities in another scheme than the predictions, the right one is said again before it, in
    theirs. Of CoNLL-U all lines, the tag in its column, as the scorer of Universal
    Dependencies takes them.
    """
    lines, written = sentences.lines.copy(), []
    numbers = [
        [int(place.rpartition(":")[2]) - 1 for place in places] for places in sentences.places
    ]
    right = None if files.kind == "conllu" else _right_tags(files, lines, numbers)
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


def _right_tags(
    files: TagFiles, lines: Sequence[str], numbers: Sequence[Sequence[int]]
) -> list[list[str]] | None:
    """[sentences][words], what is to be said again; None if the lines end in it, or have none."""
    rows = [[cells_of(lines[number].rstrip(" \t")) for number in each] for each in numbers]
    widths = {len(cells) for sentence in rows for cells in sentence}
    column = int(files.tag) if files.tag else max(1, max(widths) - 1)
    if column >= min(widths) or (not files.tag and column == int(files.word or 0)):
        return None
    tags = [[cells[column] for cells in sentence] for sentence in rows]
    scheme = _scheme_of(tags) if files.learn_as != "as_written" else "plain"
    if column == max(widths) - 1 and scheme in (files.learn_as, "plain"):
        return None
    converted = to_iob1 if files.learn_as == "IOB1" else to_iob2
    return [converted(each, scheme) for each in tags]


def _scheme_of(tags: Sequence[Sequence[str]]) -> Scheme:
    try:
        return recognise_scheme(tags)
    except ValueError:  # of a test file, where they may be anything
        return "plain"


def _in_its_column(line: str, tag: str, files: TagFiles) -> str:
    cells = line.split("\t")
    cells[CONLLU_COLUMNS.index(files.tag or "UPOS")] = tag
    return "\t".join(cells)
