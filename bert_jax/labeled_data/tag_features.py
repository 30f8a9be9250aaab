"""Cut tagged sentences into windows of tokens, and turn predictions back into tags of words.

Predicted tags are written in the files that the official scorers read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.records import ranges
from bert_jax.files import write_file
from bert_jax.labeled_data.features import Features, Ids, as_ids, check_max_length, sequences_of
from bert_jax.labeled_data.tag_formats import (
    CONLLU_COLUMNS,
    Scheme,
    cells_of,
    recognise_scheme,
    to_closed,
    to_iob1,
    to_iob2,
)
from bert_jax.labeled_data.tags import TagFiles, TagSentences, check_tags, report_unknown_tags
from bert_jax.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TagFeatures:
    """Features of windows, each word of every sentence scored in exactly one of them.

    features: its token targets are "label_weights", 1 at the first word-piece of every word of the
    window's own sentence whose tag is not outside `labels`, else 0, and, if the sentences have
    tags, "labels", places in `labels`.
    positions: int64 [words], the place of each scored word-piece in `features.sequences.token_ids`;
    sentences, words: int64 [words], whose word it is. sizes: int64 [sentences], words of each.
    """

    features: Features
    labels: tuple[str, ...]
    positions: NDArray[np.int64]
    sentences: NDArray[np.int64]
    words: NDArray[np.int64]
    sizes: NDArray[np.int64]


class _Window(NamedTuple):
    token_ids: list[int]
    sentence: int
    word: int  # the first that is scored
    offsets: Ids  # of the first piece of each word that is scored


def tag_features(
    sentences: TagSentences,
    tokenizer: Tokenizer,
    max_length: int,
    labels: Sequence[str],
    *,
    document_context: bool,
    judged: bool = False,
) -> TagFeatures:
    """Windows `[CLS] pieces [SEP]` of at most `max_length` tokens.

    Words are tokenised one by one, as Hugging Face's `is_split_into_words` does; one without any
    word-piece is [UNK], one longer than a window is cut. A sentence that does not fit is taken in
    parts of half a window, each with as much of the sentence around it as fits. With
    `document_context` what is left of any window is filled with the document before and after,
    which is not scored. Source: Devlin et al. 2019, section 5.3, "maximal document context".

    judged: the sentences are to be scored, not learned: some may have a tag outside `labels`, which
    has no weight in the loss, and where no line says where documents begin there is no context.

    Raises:
        ValueError: a tag outside `labels`, or more than half of those that are judged, naming file
            and line; what is learned in context from a file that does not say where documents
            begin.
    """
    check_max_length(max_length, 2)
    if sentences.tags is not None:
        (report_unknown_tags if judged else check_tags)(sentences, labels)
    if document_context and sentences.documents is None:
        unmarked = (
            f"{sentences.places[0][0].rpartition(':')[0]}: document_context is True, but no line "
            "says where a document begins (-DOCSTART-, or '# newdoc' in CoNLL-U)"
        )
        if not judged:
            raise ValueError(f"{unmarked}. Say False")
        logger.warning("%s: each sentence is read by itself", unmarked)
        document_context = False
    pieces = _pieces_of_words(sentences, tokenizer, max_length - 2)
    windows = [
        window
        for scope in _scopes(sentences, document_context)
        for window in _windows(scope, pieces, max_length - 2)
    ]
    sequences = sequences_of(tokenizer, [w.token_ids for w in windows], [None] * len(windows))
    counts = np.array([len(window.offsets) for window in windows], np.int64)
    offsets = np.concatenate([window.offsets for window in windows])
    positions = np.repeat(sequences.starts[:-1], counts) + 1 + offsets  # 1 for [CLS]
    owners = np.repeat(np.array([window.sentence for window in windows], np.int64), counts)
    words = ranges(np.array([window.word for window in windows], np.int64), counts)
    targets = {"label_weights": np.zeros(len(sequences.token_ids), np.int32)}
    targets["label_weights"][positions] = 1
    if sentences.tags is not None:
        number_of = {label: number for number, label in enumerate(labels)}
        numbers = np.array(
            [
                number_of.get(sentences.tags[sentence][word], -1)
                for sentence, word in zip(owners.tolist(), words.tolist(), strict=True)
            ],
            np.int32,
        )
        targets["label_weights"][positions] = numbers >= 0
        targets["labels"] = np.zeros(len(sequences.token_ids), np.int32)
        targets["labels"][positions] = np.maximum(numbers, 0)
    sizes = np.array([len(each) for each in sentences.words], np.int64)
    features = Features(sequences, token_targets=targets)
    return TagFeatures(features, tuple(labels), positions, owners, words, sizes)


def tags_of(features: TagFeatures, predicted_ids: NDArray[np.integer]) -> list[list[str]]:
    """The predicted tag of every word of every sentence.

    predicted_ids: [tokens], places in `features.labels`, of `features.features.sequences.token_ids`
    in turn.
    """
    assert predicted_ids.shape == features.features.sequences.token_ids.shape
    starts = np.concatenate([[0], np.cumsum(features.sizes)])
    ids = np.full(starts[-1], -1, np.int64)
    ids[starts[features.sentences] + features.words] = predicted_ids[features.positions]
    assert (ids >= 0).all(), "every word is scored"
    tags = [features.labels[index] for index in ids.tolist()]
    return [tags[start:end] for start, end in zip(starts[:-1], starts[1:], strict=True)]


def _pieces_of_words(
    sentences: TagSentences, tokenizer: Tokenizer, capacity: int
) -> dict[str, list[int]]:
    distinct = list(dict.fromkeys(word for words in sentences.words for word in words))
    return {
        word: ids[:capacity] or [tokenizer.unk_id]
        for word, ids in zip(distinct, tokenizer.encode_words(distinct), strict=True)
    }


def _scopes(
    sentences: TagSentences, document_context: bool
) -> Iterator[list[tuple[int, list[str]]]]:
    """Yields runs of (number, words) of sentences whose windows may show each other."""
    numbered = list(enumerate(sentences.words))
    if not document_context:
        yield from ([each] for each in numbered)
        return
    documents = sentences.documents
    assert documents is not None
    for _, group in groupby(numbered, key=lambda each: documents[each[0]]):
        yield list(group)


def _windows(
    scope: Sequence[tuple[int, list[str]]], pieces: dict[str, list[int]], capacity: int
) -> Iterator[_Window]:
    tokens = [token for _, words in scope for word in words for token in pieces[word]]
    begin = 0  # of the sentence
    for sentence, words in scope:
        sizes = [len(pieces[word]) for word in words]
        offsets = list(accumulate(sizes, initial=begin))
        begin = offsets[-1]
        for part in _parts(sizes, capacity):
            start = _window_start(offsets[part.start], offsets[part.stop], len(tokens), capacity)
            yield _Window(
                tokens[start : start + capacity],
                sentence,
                part.start,
                as_ids([offsets[word] - start for word in part]),
            )


def _parts(sizes: Sequence[int], capacity: int) -> Iterator[range]:
    """Yields the words of a sentence, all that fit in a window, or by parts of half a window."""
    if sum(sizes) <= capacity:
        yield range(len(sizes))
        return
    first = filled = 0
    for word, size in enumerate(sizes):
        if word > first and filled + size > capacity // 2:
            yield range(first, word)
            first, filled = word, 0
        filled += size
    yield range(first, len(sizes))


def _window_start(begin: int, end: int, total: int, capacity: int) -> int:
    """Where a window around [begin, end) begins: centred, moved inside [0, total)."""
    centred = begin - (capacity - (end - begin)) // 2
    return max(0, min(centred, total - capacity))


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
    match files.learn_as:
        case "IOB1":
            return [to_iob1(tags, scheme) for tags in in_file.tags]
        case "IOB2":
            return [to_iob2(tags, scheme) for tags in in_file.tags]
        case "as_written":
            raise AssertionError("tags as written need no conversion")
        case _:
            assert_never(files.learn_as)


def _scheme_of(in_file: _TagsInFile | None) -> Scheme:
    try:
        return recognise_scheme(in_file.tags) if in_file else "plain"
    except ValueError:  # a test file's tags are not checked
        return "plain"


def _in_its_column(line: str, tag: str, files: TagFiles) -> str:
    cells = line.split("\t")
    cells[CONLLU_COLUMNS.index(files.tag or "UPOS")] = tag
    return "\t".join(cells)
