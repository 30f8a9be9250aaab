"""Find documents that share word 13-grams with evaluation data (Brown et al. 2020, appendix C)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.filtering.findings import Finding
from bert_jax.filtering.words import Hashes, ngram_hashes, word_hashes
from bert_jax.json_files import parse_json
from bert_jax.storage.urls import parse_location
from bert_jax.text.archives import BROKEN_ARCHIVE, open_stream
from bert_jax.text.documents import SourceCounts
from bert_jax.text.files import JSON_LINES_SUFFIXES, PARQUET_SUFFIXES, content_suffix

NGRAM_WORDS = 13
CONTAMINATED = "contaminated"  # Findings have this rule name.
_TABLE_SUFFIXES = (".csv", ".tsv")
_BLANK_LINES = re.compile(r"\n\s*\n")
_COMPACTED = 10_000  # After every 10,000 texts, merge the n-grams found so far.


@dataclass(frozen=True)
class EvaluationNgrams:
    """The 13-grams of evaluation data.

    Attributes:
      hashes: the sorted hashes of the n-grams.
      texts: the number of texts that were read.
      short_texts: the number of texts with fewer than 13 words, which are not compared.
    """

    hashes: Hashes
    texts: int
    short_texts: int


def read_evaluation_ngrams(paths: Sequence[str], encoding: str = "utf-8") -> EvaluationNgrams:
    """Read the n-grams of evaluation data.

    Plain text is divided into texts at blank lines, and each line of a table (.csv, .tsv) is a
    text. In JSON and JSON Lines, every string is a text. In Parquet, every value in a column of
    strings is a text.

    Args:
      paths: the files, which may be compressed like the inputs of a corpus, except for Parquet.
      encoding: the encoding of text files.

    Raises:
      ValueError: a file is missing or damaged, or no text has 13 words.
    """
    found: list[Hashes] = []
    texts = short = 0
    for path in paths:
        for text in _texts(path, encoding):
            words = word_hashes(text)
            texts += 1
            short += len(words) < NGRAM_WORDS
            found.append(ngram_hashes(words, NGRAM_WORDS))
            if len(found) > _COMPACTED:
                found = [np.unique(np.concatenate(found))]
    hashes = np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)
    if not len(hashes):
        raise ValueError(
            f"decontaminate={', '.join(paths)}: none of {texts} texts has {NGRAM_WORDS} words, so "
            "there is nothing to compare. Use different files."
        )
    return EvaluationNgrams(hashes, texts, short)


def check_contamination(text: str, evaluation: Hashes) -> Finding | None:
    """Return a finding if a text shares a 13-gram with the evaluation data."""
    ngrams = ngram_hashes(word_hashes(text), NGRAM_WORDS)
    if not len(ngrams):
        return None
    places = np.searchsorted(evaluation, ngrams)
    shared = evaluation[np.minimum(places, len(evaluation) - 1)] == ngrams
    count = int(np.count_nonzero(shared))
    if not count:
        return None
    words = text.split()
    # The position is only approximate if the script has no spaces, or if spaces surround
    # punctuation.
    place = min(int(np.flatnonzero(shared)[0]), max(0, len(words) - NGRAM_WORDS))
    sample = " ".join(words[place : place + NGRAM_WORDS])
    sequences = f"{count:,} sequence{'s' * (count != 1)} of {NGRAM_WORDS} words"
    return Finding(CONTAMINATED, f"shares {sequences}, near “{sample[:200]}”")


def _texts(path: str, encoding: str) -> Iterator[str]:
    location = parse_location(path)
    suffix = content_suffix(location)
    if suffix in PARQUET_SUFFIXES:
        # Arrow is slow to import, so it is imported only if needed.
        from bert_jax.text.parquet import parquet_columns, parquet_records

        for _, record in parquet_records(location, parquet_columns(location)):
            yield from _strings(record)
        return
    content = _read(path, encoding)
    if suffix in JSON_LINES_SUFFIXES:
        for value in _parsed(content, path):
            yield from _strings(value)
    elif suffix in _TABLE_SUFFIXES:
        yield from filter(str.strip, content.splitlines())
    else:
        yield from filter(str.strip, _BLANK_LINES.split(content))


def _read(path: str, encoding: str) -> str:
    try:
        with open_stream(parse_location(path), SourceCounts()) as stream:
            return stream.read().decode(encoding)
    except BROKEN_ARCHIVE as error:
        raise ValueError(
            f"decontaminate={path}: a truncated or damaged archive. Download or write it again."
        ) from error
    except OSError as error:
        raise ValueError(
            f"decontaminate={path}: cannot be read: {error.strerror or error}."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"decontaminate={path}: not in the encoding {encoding} (byte {error.start}). "
            "Convert the file."
        ) from error


def _parsed(content: str, path: str) -> Iterator[Any]:
    """Yield the JSON value of a file or, for JSON Lines, the value of each line."""
    try:
        yield parse_json(content)
        return
    except ValueError:
        pass
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                yield parse_json(line)
            except ValueError as error:
                raise ValueError(
                    f"decontaminate={path}: line {number} is not valid JSON: {error}. Fix the file."
                ) from error


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
