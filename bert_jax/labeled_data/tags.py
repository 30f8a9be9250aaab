"""Read tagged sentences from column files and CoNLL-U, and collect and check their tags."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from bert_jax.labeled_data.delimited import LONE_RETURN
from bert_jax.labeled_data.files import (
    Split,
    WordLocations,
    check_paths,
    file_lines,
    find_file,
    split_path,
)
from bert_jax.labeled_data.labels import check_label_set
from bert_jax.labeled_data.tag_formats import (
    CONLLU_COLUMNS,
    Word,
    column_events,
    conllu_events,
    group_sentences,
)
from bert_jax.labeled_data.tag_schemes import recognize_scheme, to_iob1, to_iob2
from bert_jax.local_paths import PathOrUrl
from bert_jax.storage.urls import Location

logger = logging.getLogger(__name__)

LearnAs = Literal["IOB2", "IOB1", "as_written"]


@dataclass(frozen=True)
class TagFiles:
    """The files and columns for a task on tagged sentences.

    Columns are specified by number, starting at "0", or by name in CoNLL-U.

    Attributes:
      train: the training file, or "" if there is none.
      validation: the validation file, or "" if there is none.
      test: the test file, or "" if there is none.
      kind: "columns" or "conllu". A column file has one word per line and a blank line after each
        sentence, and its columns are separated by tabs (in a line without tabs, by spaces).
      tag: the column that contains the tags. The default, "", means the last column or, in CoNLL-U,
        UPOS.
      word: the column that contains the words, or "" for the first one. It must be "" for CoNLL-U,
        where words are always in FORM.
      comment: the prefix of lines to skip. The default, "", skips none, since most column files
        treat "#" as an ordinary word.
      learn_as: the scheme to convert entity tags to. "IOB2" and "IOB1" recognize the scheme of the
        file (IOB1, IOB2, BIOES, BILOU or BMES), reject mixed schemes, and convert the tags.
        "as_written" uses the tags as they are.
      labels: the labels, or () to collect them from the training file.
    """

    train: PathOrUrl = ""
    validation: PathOrUrl = ""
    test: PathOrUrl = ""
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
            raise ValueError(f"kind={self.kind!r}: expected 'columns' or 'conllu'")
        if self.learn_as not in get_args(LearnAs):
            expected = "'IOB2', 'IOB1' or 'as_written'"
            raise ValueError(f"learn_as={self.learn_as!r}: expected {expected}")
        if self.kind == "conllu" and self.tag and self.tag not in CONLLU_COLUMNS[2:]:
            raise ValueError(f"tag={self.tag!r}: expected one of {', '.join(CONLLU_COLUMNS[2:])}")
        if self.kind == "conllu" and (self.word or self.comment):
            raise ValueError(
                "word and comment are only supported for kind='columns', since CoNLL-U defines both"
            )
        for name, column in (("tag", self.tag), ("word", self.word)):
            if self.kind == "columns" and column and not (column.isascii() and column.isdigit()):
                raise ValueError(f"{name}={column!r}: expected a column number, such as '1'")
        if self.word and self.tag and int(self.word) == int(self.tag):
            raise ValueError(f"word and tag are both column {self.tag}. Use different columns")


@dataclass
class TagSentences:
    """The tagged sentences in a file.

    Attributes:
      words: [sentences][words] the words.
      tags: [sentences][words] the tags, or None if they were not read.
      locations: [sentences][words] "file:line".
      documents: [sentences] document numbers, in ascending order, or None if the file does not mark
        documents.
      lines: all lines of the file, without line endings.
      original_tags: [sentences][words] the tags as written in the file, or None if they are the
        same as `tags`.
      scheme: the scheme that `tags` were converted to, or "as_written" if they were not converted.
    """

    words: list[list[str]] = field(default_factory=list)
    tags: list[list[str]] | None = None
    locations: Sequence[Sequence[str]] = ()
    documents: list[int] | None = None
    lines: list[str] = field(default_factory=list)
    original_tags: list[list[str]] | None = None
    scheme: LearnAs = "as_written"

    def __len__(self) -> int:
        return len(self.words)

    def describe_tag(self, sentence: int, word: int) -> str:
        """Describe a tag as written in the file and, if it differs, as converted."""
        assert self.tags is not None
        tag = self.tags[sentence][word]
        original = self.original_tags[sentence][word] if self.original_tags is not None else tag
        return repr(tag) if original == tag else f"{original!r} ({tag!r} in {self.scheme})"


def read_tags(files: TagFiles, split: Split, *, labeled: bool) -> TagSentences:
    """Read the sentences in a split.

    In CoNLL-U, multiword tokens ("1-2") and empty nodes ("1.1") are skipped.

    Args:
        files: the task's files.
        split: the split to read.
        labeled: whether to read tags, check them and convert them to the scheme `files.learn_as`.

    Raises:
        ValueError: the file does not exist or has no sentences, a line has no word or no tag, the
            entity tags mix different schemes, or a tag is not one of `files.labels`. The message
            gives the file, line and value.
    """
    path = find_file(split_path(files, split))
    locations = WordLocations(path)
    sentences = TagSentences(
        tags=[] if labeled else None,
        locations=locations,
        lines=list(_text_lines(path)),
    )
    located = ((line, f"{path}:{number}") for number, line in enumerate(sentences.lines, 1))
    events = (
        conllu_events(located)
        if files.kind == "conllu"
        else column_events(located, int(files.word or 0), files.comment)
    )
    documents, document = [], 0
    for item in group_sentences(events):
        if item is None:
            document += 1
            continue
        sentences.words.append([sys.intern(word.text) for word in item])
        locations.append(int(word.location.rpartition(":")[2]) for word in item)
        documents.append(document)
        if sentences.tags is not None:
            sentences.tags.append([sys.intern(_tag(word, files)) for word in item])
    if not len(sentences):
        raise ValueError(f"{path} contains no sentences. Add at least one")
    sentences.documents = documents if document else None
    if sentences.tags is not None:
        if files.learn_as != "as_written":
            scheme = recognize_scheme(sentences.tags, sentences.locations)
            if scheme not in (files.learn_as, "plain"):
                convert = {"IOB2": to_iob2, "IOB1": to_iob1}[files.learn_as]
                sentences.original_tags, sentences.scheme = sentences.tags, files.learn_as
                sentences.tags = [convert(tags, scheme) for tags in sentences.tags]
        if files.labels:
            check_tags(sentences, files.labels)
    return sentences


# A column is assumed to contain words or lemmas instead of tags if it has more distinct values than
# this, and more than half as many distinct values as there are distinct words. The largest tag sets
# have thousands of tags (combined morphological features, hundreds of entity types), but each tag
# is used for many words: the 19,674 distinct words in English EWT have only 230 distinct values of
# FEATS, but 14,194 lemmas. With fewer values, as in a very short file, the ratio is meaningless.
_MAX_UNCHECKED_TAGS = 200


def _text_lines(path: Location) -> Iterator[str]:
    """Yield a file's lines without line endings, and reject a CR that is not followed by an LF."""
    for number, raw in enumerate(file_lines(path), start=1):
        line = raw.rstrip("\r\n")
        if "\r" in line:
            raise ValueError(f"{path}:{number}: {LONE_RETURN}")
        yield line


def collect_labels(sentences: TagSentences, column: str = "") -> tuple[str, ...]:
    """Collect the distinct tags in sentences: "O" first, then the rest in ascending order.

    Args:
        sentences: the sentences to collect tags from.
        column: the column that contains the tags, for messages; "" for the last one.

    Raises:
        ValueError: there are fewer than two distinct tags, or so many that they may be words.
    """
    assert sentences.tags is not None
    distinct = {tag for tags in sentences.tags for tag in tags}
    file = sentences.locations[0][0].rpartition(":")[0]
    if len(distinct) < 2:
        raise ValueError(
            f"{file}: every tag is {min(distinct)!r}, but at least two distinct tags are needed. "
            "Set "
            "tags.files.tag to the column that contains the tags"
        )
    num_words = len({word for words in sentences.words for word in words})
    if len(distinct) > _MAX_UNCHECKED_TAGS and 2 * len(distinct) > num_words:
        where = f"column {column!r}" if column else "the last column"
        raise ValueError(
            f"{file}: {len(distinct):,} distinct tags in {where} for {num_words:,} distinct "
            "words, but there should be few tags for many words. If the column contains words, "
            "set tags.files.tag "
            "(and, for column files, tags.files.word); if it contains tags, list all of them in "
            "tags.files.labels"
        )
    return tuple(sorted(distinct, key=lambda tag: (tag != "O", tag)))


def check_tags(sentences: TagSentences, labels: Sequence[str]) -> None:
    """Check that every tag is one of the task's labels.

    Raises:
        ValueError: a tag is not one of `labels`. The message gives the file, line and value.
    """
    assert sentences.tags is not None
    label_set = frozenset(labels)
    for number, tags in enumerate(sentences.tags):
        for word, tag in enumerate(tags):
            if tag not in label_set:
                location = sentences.locations[number][word]
                raise ValueError(
                    f"{location}: tag {sentences.describe_tag(number, word)} is not one of "
                    f"{', '.join(map(repr, labels))}. If the tag is correct, list all tags in "
                    "labels"
                )


def report_unknown_tags(sentences: TagSentences, labels: Sequence[str]) -> None:
    """Log how many words have a tag that is not one of `labels` and so cannot be predicted.

    Raises:
        ValueError: more than half of the tags are unknown, so they may come from the wrong column
            or from another task. The message gives the file, line and value of the first unknown
            tag.
    """
    assert sentences.tags is not None
    label_set = frozenset(labels)
    unknown = [
        (number, word)
        for number, tags in enumerate(sentences.tags)
        for word, tag in enumerate(tags)
        if tag not in label_set
    ]
    if not unknown:
        return
    total, (number, word) = sum(map(len, sentences.tags)), unknown[0]
    location, tag = sentences.locations[number][word], sentences.describe_tag(number, word)
    if 2 * len(unknown) > total:
        raise ValueError(
            f"{location}: tag {tag} is not one of the model's labels "
            f"({', '.join(map(repr, labels))}), and {len(unknown):,} of {total:,} words have tags "
            "that the model does not know. Check "
            "that this is the right column"
        )
    logger.warning(
        "%s: tag %s is not one of the model's labels. %s of %s words have such tags, and every "
        "prediction for them counts as wrong",
        *(location, tag, f"{len(unknown):,}", f"{total:,}"),
    )


def _tag(word: Word, files: TagFiles) -> str:
    if files.kind == "conllu":
        name = files.tag or "UPOS"
        tag = word.cells[CONLLU_COLUMNS.index(name)]
        if not tag:
            raise ValueError(
                f"{word.location}: column {name} of {word.line[:80]!r} is empty. Write a tag, "
                'or "_" for none'
            )
        return tag
    column = int(files.tag) if files.tag else max(1, len(word.cells) - 1)
    if column == int(files.word or 0):
        raise ValueError(
            f"{word.location}: the last column contains the words. Set tag to the column that "
            "contains the tags"
        )
    if column >= len(word.cells) or not word.cells[column]:
        raise ValueError(
            f"{word.location}: {word.line[:80]!r} has no tag in column {column} (columns are "
            "counted from 0)"
        )
    return word.cells[column]
