"""Split tagged sentences into token windows, and convert predictions back to word tags.

Predicted tags are written in the formats that the official scorers read.
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
from bert_jax.labeled_data.features import (
    Features,
    Ids,
    build_sequences,
    check_max_length,
    id_array,
)
from bert_jax.labeled_data.tag_formats import CONLLU_COLUMNS, cells_of
from bert_jax.labeled_data.tag_schemes import Scheme, recognize_scheme, to_closed, to_iob1, to_iob2
from bert_jax.labeled_data.tags import TagFiles, TagSentences, check_tags, report_unknown_tags
from bert_jax.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TagFeatures:
    """Features of windows in which every word of every sentence is scored exactly once.

    A word is scored at its first token.

    Attributes:
      features: the windows. The token target "label_weights" is 1 at scored tokens and 0 at all
        others; it is also 0 if the word's tag is not one of `labels`. If the sentences have tags,
        the token target "labels" is the index of the word's tag in `labels`.
      labels: the task's labels.
      positions: int64 [words] index of the word's scored token in `features.sequences.token_ids`.
      sentences: int64 [words] index of the sentence that contains the word.
      words: int64 [words] index of the word within its sentence.
      sizes: int64 [sentences] number of words in the sentence.
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
    # The first scored word, as an index into the sentence.
    word: int
    # The first token of each scored word, as an index into the window.
    offsets: Ids


def tag_features(
    sentences: TagSentences,
    tokenizer: Tokenizer,
    max_length: int,
    labels: Sequence[str],
    *,
    document_context: bool,
    for_evaluation: bool = False,
) -> TagFeatures:
    """Split sentences into windows `[CLS] tokens [SEP]`.

    Each word is tokenized on its own, as with `is_split_into_words` in Hugging Face Transformers. A
    word without tokens is replaced by [UNK], and a word longer than a window is truncated. A
    sentence longer than a window is divided into parts of about half a window. Each part gets a
    window with as much of the surrounding sentence as fits.

    Args:
        sentences: the sentences to split.
        tokenizer: the tokenizer for the words.
        max_length: the maximum number of tokens in a window, including special tokens.
        labels: the task's labels.
        document_context: whether to fill up each window with the text before and after it in the
          document. This context is not scored (Devlin et al. 2019, section 5.3, "maximal document
          context").
        for_evaluation: whether the sentences are for evaluation rather than training. If so, up to
            half of the tags may be missing from `labels` (they are excluded from the loss), and
            document context is not used if the file does not mark documents.

    Raises:
        ValueError: `max_length` is too small, a tag is not one of `labels` (for evaluation, this
            is allowed for up to half of the tags), or `document_context` is set for training on a
            file that does not mark documents. The message gives the file and line.
    """
    check_max_length(max_length, 2)
    if sentences.tags is not None:
        (report_unknown_tags if for_evaluation else check_tags)(sentences, labels)
    if document_context and sentences.documents is None:
        problem = (
            f"{sentences.locations[0][0].rpartition(':')[0]}: document_context=True, but no line "
            "marks the beginning of a document (-DOCSTART-, or '# newdoc' in CoNLL-U)"
        )
        if not for_evaluation:
            raise ValueError(f"{problem}. Set document_context=False")
        logger.warning("%s: sentences are evaluated without context", problem)
        document_context = False
    tokens_of_words = _tokenize_words(sentences, tokenizer, max_length - 2)
    windows = [
        window
        for scope in _scopes(sentences, document_context)
        for window in _windows(scope, tokens_of_words, max_length - 2)
    ]
    sequences = build_sequences(tokenizer, [w.token_ids for w in windows], [None] * len(windows))
    counts = np.array([len(window.offsets) for window in windows], np.int64)
    offsets = np.concatenate([window.offsets for window in windows])
    positions = np.repeat(sequences.starts[:-1], counts) + 1 + offsets  # 1 for [CLS]
    sentence_of_word = np.array([window.sentence for window in windows], np.int64).repeat(counts)
    words = ranges(np.array([window.word for window in windows], np.int64), counts)
    targets = {"label_weights": np.zeros(len(sequences.token_ids), np.int32)}
    targets["label_weights"][positions] = 1
    if sentences.tags is not None:
        number_of = {label: number for number, label in enumerate(labels)}
        numbers = np.array(
            [
                number_of.get(sentences.tags[sentence][word], -1)
                for sentence, word in zip(sentence_of_word.tolist(), words.tolist(), strict=True)
            ],
            np.int32,
        )
        targets["label_weights"][positions] = numbers >= 0
        targets["labels"] = np.zeros(len(sequences.token_ids), np.int32)
        targets["labels"][positions] = np.maximum(numbers, 0)
    sizes = np.array(list(map(len, sentences.words)), np.int64)
    features = Features(sequences, token_targets=targets)
    return TagFeatures(features, tuple(labels), positions, sentence_of_word, words, sizes)


def word_tags(features: TagFeatures, predicted_ids: NDArray[np.integer]) -> list[list[str]]:
    """Convert predictions to tags, [sentences][words].

    Args:
        features: the features of the sentences.
        predicted_ids: [tokens] indices into `features.labels`, aligned with the token IDs in
            `features.features.sequences`.
    """
    assert predicted_ids.shape == features.features.sequences.token_ids.shape
    starts = np.concatenate([[0], np.cumsum(features.sizes)])
    ids = np.full(starts[-1], -1, np.int64)
    ids[starts[features.sentences] + features.words] = predicted_ids[features.positions]
    assert (ids >= 0).all(), "every word must be scored"
    tags = [features.labels[index] for index in ids.tolist()]
    return [tags[start:end] for start, end in zip(starts[:-1], starts[1:], strict=True)]


def _tokenize_words(
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
    """Yield lists of the sentences that may share windows, as (sentence number, words) pairs."""
    numbered = list(enumerate(sentences.words))
    if not document_context:
        yield from ([sentence] for sentence in numbered)
        return
    documents = sentences.documents
    assert documents is not None
    for _, group in groupby(numbered, key=lambda sentence: documents[sentence[0]]):
        yield list(group)


def _windows(
    scope: Sequence[tuple[int, list[str]]], tokens_of_words: dict[str, list[int]], capacity: int
) -> Iterator[_Window]:
    tokens = [token for _, words in scope for word in words for token in tokens_of_words[word]]
    begin = 0  # index of the sentence's first token
    for sentence, words in scope:
        sizes = [len(tokens_of_words[word]) for word in words]
        offsets = list(accumulate(sizes, initial=begin))
        begin = offsets[-1]
        for part in _parts(sizes, capacity):
            start = _window_start(offsets[part.start], offsets[part.stop], len(tokens), capacity)
            yield _Window(
                tokens[start : start + capacity],
                sentence,
                part.start,
                id_array([offsets[word] - start for word in part]),
            )


def _parts(sizes: Sequence[int], capacity: int) -> Iterator[range]:
    """Yield word ranges: the sentence if it fits in a window, or else parts of about half a window.

    Args:
        sizes: [words] number of tokens in each word.
        capacity: the number of tokens in a window, excluding special tokens.
    """
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
    """Return the start of a window that is centered on [begin, end) but stays within [0, total)."""
    centered = begin - (capacity - (end - begin)) // 2
    return max(0, min(centered, total - capacity))


def write_tags(
    files: TagFiles, sentences: TagSentences, predicted: Sequence[Sequence[str]], file: Path
) -> None:
    """Write the lines from which the sentences were read, with the predicted tags.

    In a column file, the predicted tag is appended to the word's line with the separator that the
    line uses (tab or space), and a blank line ends each sentence. CoNLL's scorer, conlleval, reads
    the correct and the predicted tag from the last two columns. If the tags are not in the last
    column, the correct tag is repeated before the predicted one. In CoNLL-U, the predicted tag
    replaces the one in the file, as the Universal Dependencies scorer expects, and all other lines
    are unchanged.

    If the predictions have a different scheme than the file, the correct tag is repeated in the
    predictions' scheme, so that conlleval can compare the two tags. BILOU and BMES are exceptions,
    since conlleval does not support them: for such a file, predictions are written in the file's
    scheme. Predictions for a file without entity tags are written unchanged.

    Args:
        files: the task's files.
        sentences: the sentences to write.
        predicted: [sentences][words] predicted tags.
        file: the file to write.
    """
    lines, output = sentences.lines.copy(), []
    numbers = [
        [int(location.rpartition(":")[2]) - 1 for location in sentence]
        for sentence in sentences.locations
    ]
    tags_in_file = _tags_in_file(files, lines, numbers)
    scheme = _scheme_of(tags_in_file) if files.learn_as != "as_written" else "plain"
    if scheme == "BILOU" or scheme == "BMES":
        predicted = [to_closed(tags, scheme) for tags in predicted]
    correct = None if files.kind == "conllu" else _correct_tags(files, tags_in_file, scheme)
    for sentence, (line_numbers, tags) in enumerate(zip(numbers, predicted, strict=True)):
        for word, (number, tag) in enumerate(zip(line_numbers, tags, strict=True)):
            if files.kind == "conllu":
                lines[number] = _replace_tag(lines[number], tag, files)
                continue
            line = lines[number].rstrip(" \t")
            appended = [correct[sentence][word], tag] if correct else [tag]
            output.append(("\t" if "\t" in line else " ").join([line, *appended]))
        output.append("")
    content = lines if files.kind == "conllu" else output
    write_file(file, "".join(f"{line}\n" for line in content))


class _TagsInFile(NamedTuple):
    tags: list[list[str]]  # [sentences][words]
    is_last_column: bool  # whether the tags are in the last column of every line


def _tags_in_file(
    files: TagFiles, lines: Sequence[str], numbers: Sequence[Sequence[int]]
) -> _TagsInFile | None:
    """Return the tags in the file's tag column, or None if a line does not have this column."""
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


def _correct_tags(
    files: TagFiles, in_file: _TagsInFile | None, scheme: Scheme
) -> list[list[str]] | None:
    """Return the correct tags to repeat, or None if lines already end with them or have no tags."""
    if in_file is None:
        return None
    if scheme in (files.learn_as, "plain", "BILOU", "BMES"):
        return None if in_file.is_last_column else in_file.tags
    match files.learn_as:
        case "IOB1":
            return [to_iob1(tags, scheme) for tags in in_file.tags]
        case "IOB2":
            return [to_iob2(tags, scheme) for tags in in_file.tags]
        case "as_written":
            raise AssertionError("with learn_as='as_written', the scheme is 'plain'")
        case _:
            assert_never(files.learn_as)


def _scheme_of(in_file: _TagsInFile | None) -> Scheme:
    try:
        return recognize_scheme(in_file.tags) if in_file else "plain"
    except ValueError:
        # The tags in a test file are not checked.
        return "plain"


def _replace_tag(line: str, tag: str, files: TagFiles) -> str:
    cells = line.split("\t")
    cells[CONLLU_COLUMNS.index(files.tag or "UPOS")] = tag
    return "\t".join(cells)
