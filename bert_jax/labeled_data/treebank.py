"""Read sentences with their dependency trees from CoNLL-U files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bert_jax.labeled_data.files import file_lines, find_file
from bert_jax.labeled_data.tag_formats import CONLLU_COLUMNS, Word, conllu_events, group_sentences
from bert_jax.storage.locations import file_names, is_directory
from bert_jax.storage.urls import Location, parse_location

TreebankSplit = Literal["train", "dev", "test"]


@dataclass(frozen=True, eq=False)
class ParsedSentence:
    """A sentence with its dependency tree.

    Attributes:
      words: the words of the sentence, in order.
      heads: int64 [words], the index of each word's syntactic head; -1 for the root.
      relations: the relation of each word to its head, such as "obj" or "nmod:poss".
      tags: the part of speech of each word (UPOS).
    """

    words: tuple[str, ...]
    heads: NDArray[np.int64]
    relations: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Treebank:
    """The sentences in a CoNLL-U file.

    Attributes:
      path: the file.
      sentences: the sentences, in the order of the file.
      num_multiword_tokens: the number of skipped lines for multiword tokens, such as "don't", whose
        words have their own lines.
      num_empty_nodes: the number of skipped lines for words that do not appear in the text.
    """

    path: Location
    sentences: Sequence[ParsedSentence]
    num_multiword_tokens: int
    num_empty_nodes: int

    def __len__(self) -> int:
        return len(self.sentences)

    @property
    def num_words(self) -> int:
        """The number of words in all sentences."""
        return sum(len(sentence.words) for sentence in self.sentences)

    @property
    def notes(self) -> list[str]:
        """A line that counts the skipped lines of the file; empty if none were skipped."""
        counts = {
            "for multiword tokens": self.num_multiword_tokens,
            "for empty nodes": self.num_empty_nodes,
        }
        skipped = [f"{count:,} {name}" for name, count in counts.items() if count]
        return [f"skipped lines: {' and '.join(skipped)}"] if skipped else []

    def relation_counts(self) -> Counter[str]:
        """Count how often each relation occurs."""
        return Counter(name for sentence in self.sentences for name in sentence.relations)


def read_treebank(path: str | Location) -> Treebank:
    """Read the dependency trees in a CoNLL-U file, plain or compressed.

    Args:
      path: the file.

    Raises:
      ValueError: the file does not exist, contains no sentences or is malformed, or a word has no
        head. The message gives the file and line.
    """
    file = find_file(path)
    skipped: Counter[str] = Counter()
    lines = _counted(file, skipped)
    sentences = [
        _parsed(words) for words in group_sentences(conllu_events(lines)) if words is not None
    ]
    if not sentences:
        raise ValueError(f"{file}: contains no sentences. Specify a CoNLL-U file.")
    return Treebank(file, sentences, skipped["-"], skipped["."])


def find_treebank(path: str | Path, split: TreebankSplit) -> Location:
    """Return a treebank's CoNLL-U file, given the file itself or its directory.

    Args:
      path: a file, or a directory with files named as in Universal Dependencies, such as
        en_ewt-ud-test.conllu.
      split: which file to choose in a directory.

    Raises:
      ValueError: the directory contains no such file or more than one.
    """
    directory = parse_location(path)
    if not is_directory(directory):
        return directory
    files = [name for name in file_names(directory) if ".conllu" in name]
    names = sorted({name.partition(".conllu")[0] for name in files})
    chosen = [name for name in names if name.endswith(split)]
    if len(chosen) != 1:
        raise ValueError(
            f"{directory}: expected one file *{split}.conllu, but it contains "
            f"{', '.join(chosen or names) or 'no CoNLL-U files'}. Specify the file itself."
        )
    return directory / f"{chosen[0]}.conllu"


def _counted(file: Location, skipped: Counter[str]) -> Iterator[tuple[str, str]]:
    """Yield lines with their locations, counting multiword tokens and empty nodes in `skipped`."""
    for number, line in enumerate(file_lines(file), start=1):
        text = line.rstrip("\r\n")
        name = text.partition("\t")[0]
        for mark in "-.":
            skipped[mark] += not text.startswith("#") and mark in name
        yield text, f"{file}:{number}"


def _parsed(words: Sequence[Word]) -> ParsedSentence:
    columns = [CONLLU_COLUMNS.index(name) for name in ("HEAD", "DEPREL", "UPOS")]
    heads = []
    for word in words:
        head = word.cells[columns[0]]
        if not head.isdecimal() or int(head) > len(words):
            raise ValueError(
                f"{word.location}: HEAD={head!r}: expected the number of a word in the sentence, "
                f"from 1 to {len(words)}, or 0 for the root. Specify a file with dependency trees."
            )
        heads.append(int(head) - 1)
    return ParsedSentence(
        tuple(word.text for word in words),
        np.array(heads, np.int64),
        tuple(word.cells[columns[1]] for word in words),
        tuple(word.cells[columns[2]] for word in words),
    )
