"""Sentences of words with a tag each, from column files and CoNLL-U, and the tags there are."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from bert_jax.labeled_data.delimited import LONE_RETURN
from bert_jax.labeled_data.files import (
    Split,
    WordPlaces,
    check_paths,
    file_lines,
    find_file,
    split_path,
)
from bert_jax.labeled_data.labels import check_label_set
from bert_jax.labeled_data.tag_formats import (
    CONLLU_COLUMNS,
    End,
    Word,
    column_events,
    conllu_events,
    recognise_scheme,
    to_iob1,
    to_iob2,
)
from bert_jax.local_paths import LocalPath

logger = logging.getLogger(__name__)

LearnAs = Literal["IOB2", "IOB1", "as_written"]


@dataclass(frozen=True)
class TagFiles:
    """Where tagged sentences are: a file a split, "" for none.

    kind: "columns", a word a line, columns between tabs or, in a line without one, spaces, a blank
    line after every sentence; or "conllu". tag: the tag's column; "" for the last one, "UPOS" in
    CoNLL-U; columns go by number, "0" the first, in CoNLL-U by name. word: the word's column; ""
    for the first, FORM of CoNLL-U. comment: what lines begin with that are passed over, "" for
    none: in most column files "#" is a word. learn_as: "IOB2" recognizes the scheme of entity tags
    (IOB1, IOB2, BIOES, BILOU or BMES), refuses a mixture and converts the tags to IOB2; "IOB1" does
    the same with IOB1; "as_written" keeps the tags as they are. labels: () to collect them from
    train.
    """

    train: LocalPath = ""
    validation: LocalPath = ""
    test: LocalPath = ""
    kind: Literal["columns", "conllu"] = "columns"
    tag: str = ""
    word: str = ""
    comment: str = ""
    learn_as: LearnAs = "IOB2"
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_paths(self.train, self.validation, self.test)
        check_label_set(self.labels)
        if self.kind not in ("columns", "conllu"):
            raise ValueError(f"kind is {self.kind!r}; expected 'columns' or 'conllu'")
        if self.learn_as not in get_args(LearnAs):
            expected = "'IOB2', 'IOB1' or 'as_written'"
            raise ValueError(f"learn_as is {self.learn_as!r}; expected {expected}")
        if self.kind == "conllu" and self.tag and self.tag not in CONLLU_COLUMNS[2:]:
            raise ValueError(
                f"tag is {self.tag!r}; expected one of {', '.join(CONLLU_COLUMNS[2:])}"
            )
        if self.kind == "conllu" and (self.word or self.comment):
            raise ValueError("word and comment are for kind='columns'; CoNLL-U has its own")
        for name, column in (("tag", self.tag), ("word", self.word)):
            if self.kind == "columns" and column and not (column.isascii() and column.isdigit()):
                raise ValueError(
                    f"{name} is {column!r}; expected the number of a column, such as '1'"
                )
        if self.word and self.tag and int(self.word) == int(self.tag):
            raise ValueError(f"word and tag are both column {self.tag}; expected two columns")


@dataclass
class TagSentences:
    """Sentences as they stand in a file.

    words and places ("file:line") are [sentences][words], and so are tags, None where they were not
    read. documents: the document of every sentence, ascending; None if the file does not say where
    documents begin. lines: of the whole file, without their ends. written: the tags as the file
    has them, where `tags` are those in another scheme, `scheme`.
    """

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    places: Sequence[Sequence[str]] = ()
    documents: list[int] | None = None
    lines: list[str] = field(default_factory=list)
    written: list[list[str]] | None = None
    scheme: LearnAs = "as_written"

    def __len__(self) -> int:
        return len(self.words)

    def tag_told(self, sentence: int, word: int) -> str:
        """A tag as messages tell it: as it stands in the file, and what it is read as."""
        assert self.tags is not None
        tag = self.tags[sentence][word]
        written = self.written[sentence][word] if self.written is not None else tag
        return repr(tag) if written == tag else f"{written!r} ({tag!r} in {self.scheme})"


def read_tags(files: TagFiles, split: Split, *, labelled: bool) -> TagSentences:
    """Reads the sentences of a split; `labelled`, their tags too, in the scheme of `learn_as`.

    Words of several rows of CoNLL-U ("1-2") and its empty nodes ("1.1") are passed over.

    Raises:
        ValueError: no such file, one without a sentence, a line without a word or a tag, entity
            tags of mixed schemes, a tag outside `files.labels`; names file, line and value.
    """
    path = find_file(split_path(files, split))
    places = WordPlaces(path)
    sentences = TagSentences(
        tags=[] if labelled else None,
        places=places,
        lines=list(_text_lines(path)),
    )
    placed = ((line, f"{path}:{number}") for number, line in enumerate(sentences.lines, 1))
    events = (
        conllu_events(placed)
        if files.kind == "conllu"
        else column_events(placed, int(files.word or 0), files.comment)
    )
    documents, document = [], 0
    for item in _sentences(events):
        if item is None:
            document += 1
            continue
        sentences.words.append([sys.intern(word.text) for word in item])
        places.append(int(word.place.rpartition(":")[2]) for word in item)
        documents.append(document)
        if sentences.tags is not None:
            sentences.tags.append([sys.intern(_tag(word, files)) for word in item])
    if not len(sentences):
        raise ValueError(f"{path} holds no sentence; expected at least one")
    sentences.documents = documents if document else None
    if sentences.tags is not None:
        if files.learn_as != "as_written":
            scheme = recognise_scheme(sentences.tags, sentences.places)
            if scheme not in (files.learn_as, "plain"):
                converted = {"IOB2": to_iob2, "IOB1": to_iob1}[files.learn_as]
                sentences.written, sentences.scheme = sentences.tags, files.learn_as
                sentences.tags = [converted(tags, scheme) for tags in sentences.tags]
        if files.labels:
            check_tags(sentences, files.labels)
    return sentences


# So many tags, at more than one for two different words, are words, lemmas or the like. The largest
# tag sets have thousands, all told (morphology in one tag, entities of hundreds of types), but each
# is that of many words: FEATS of English EWT are 230 of 19,674 words; its lemmas, 14,194. Below,
# files of a few lines may be anything.
_FEWEST_TOO_MANY = 200


def _text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without line ends; raise ValueError for a CR without a LF."""
    for number, raw in enumerate(file_lines(path), start=1):
        line = raw.rstrip("\r\n")
        if "\r" in line:
            raise ValueError(f"{path}:{number}: {LONE_RETURN}")
        yield line


def collect_labels(sentences: TagSentences, column: str = "") -> tuple[str, ...]:
    """The tags of sentences, sorted, "O" first.

    column: of the file they are from, for messages; "" for the last one. ValueError if the tags are
    fewer than two, or so many that they are the words.
    """
    assert sentences.tags is not None
    found = {tag for tags in sentences.tags for tag in tags}
    file = sentences.places[0][0].rpartition(":")[0]
    if len(found) < 2:
        raise ValueError(
            f"{file}: every tag is {min(found)!r}; expected at least two different ones. Name the "
            "tag's column"
        )
    num_words = len({word for words in sentences.words for word in words})
    if len(found) > _FEWEST_TOO_MANY and 2 * len(found) > num_words:
        where = f"column {column!r}" if column else "the last column"
        raise ValueError(
            f"{file}: {len(found):,} different tags in {where} for {num_words:,} different words; "
            "expected few tags for many words. Is it the word's? Set tags.files.tag (and in column "
            "files tags.files.word); or, if it is right, give all tags as tags.files.labels"
        )
    return tuple(sorted(found, key=lambda tag: (tag != "O", tag)))


def check_tags(sentences: TagSentences, labels: Sequence[str]) -> None:
    """Refuses a tag outside `labels`: ValueError naming file, line, value and the labels."""
    assert sentences.tags is not None
    known = frozenset(labels)
    for number, tags in enumerate(sentences.tags):
        for word, tag in enumerate(tags):
            if tag not in known:
                raise ValueError(
                    f"{sentences.places[number][word]}: tag {sentences.tag_told(number, word)}; "
                    f"expected one of {', '.join(map(repr, labels))}. If it is right, give all "
                    "tags as labels"
                )


def report_unknown_tags(sentences: TagSentences, labels: Sequence[str]) -> None:
    """Logs how many words have a tag outside `labels`, none of which a prediction can be.

    Raises:
        ValueError: they are more than half: it is another column or another task. Names the first.
    """
    assert sentences.tags is not None
    known = frozenset(labels)
    unknown = [
        (number, word)
        for number, tags in enumerate(sentences.tags)
        for word, tag in enumerate(tags)
        if tag not in known
    ]
    if not unknown:
        return
    total, (number, word) = sum(map(len, sentences.tags)), unknown[0]
    place, tag = sentences.places[number][word], sentences.tag_told(number, word)
    if 2 * len(unknown) > total:
        raise ValueError(
            f"{place}: tag {tag}; expected one of {', '.join(map(repr, labels))}, but "
            f"{len(unknown):,} of {total:,} words have another. Is it the right column?"
        )
    logger.warning(
        "%s: tag %s: %s of %s words have one that is not learned, which counts as wrong whatever "
        "is predicted",
        *(place, tag, f"{len(unknown):,}", f"{total:,}"),
    )


def _sentences(events: Iterator[Word | End]) -> Iterator[list[Word] | None]:
    """Yields sentences, and None where another document begins."""
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


def _tag(word: Word, files: TagFiles) -> str:
    if files.kind == "conllu":
        name = files.tag or "UPOS"
        tag = word.cells[CONLLU_COLUMNS.index(name)]
        if not tag:
            raise ValueError(
                f"{word.place}: {word.line[:80]!r} has nothing in its column {name}; expected a "
                'tag, or "_" for none'
            )
        return tag
    column = int(files.tag) if files.tag else max(1, len(word.cells) - 1)
    if column == int(files.word or 0):
        raise ValueError(f"{word.place}: the last column is that of the words; name the tag's")
    if column >= len(word.cells) or not word.cells[column]:
        raise ValueError(
            f"{word.place}: {word.line[:80]!r} has no tag: expected it in column {column}, counted "
            "from 0"
        )
    return word.cells[column]
