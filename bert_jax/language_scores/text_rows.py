"""Turn raw text into the rows and the sentences on which a pretrained model is scored."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.inputs import InputPaths, input_names
from bert_jax.corpus.packing import check_language, split_sentences, tokenize_document
from bert_jax.hashing import Purpose, hash_of, permuted
from bert_jax.language_scores.batch_limits import BatchLimits
from bert_jax.language_scores.masked_rows import EncodedSentence, encode_sentences
from bert_jax.pipeline.masking import Masker, MaskingConfig
from bert_jax.text.sources import SourceCounts, SourceOptions, read_documents
from bert_jax.tokenizers.special_tokens import Vocabulary
from bert_jax.tokenizers.tokenizer import Tokenizer

SPECIAL_TOKENS = 2  # [CLS] and [SEP]
_NUM_LENGTHS = 6
Batch = dict[str, NDArray]


@dataclass(frozen=True, eq=False)
class TextRows:
    """A text in the form of token ids.

    Attributes:
      name: the name of the input or, if there are several, their number ("3 inputs").
      documents: the number of documents.
      fragments: the token ids of the documents, split into parts that fit in a row; int32 [tokens]
        each.
      num_sentences: the number of sentences in the text.
      sentences: a random sample of the sentences; those that are too long for a row are split.
      num_split: the number of sentences in the sample that were split.
    """

    name: str
    documents: int
    fragments: Sequence[NDArray[np.int32]]
    num_sentences: int
    sentences: Sequence[EncodedSentence]
    num_split: int

    @property
    def tokens(self) -> int:
        """The number of tokens in the text, without special tokens."""
        return sum(map(len, self.fragments))

    @property
    def sentence_tokens(self) -> int:
        """The number of tokens in the sample of sentences."""
        return sum(len(sentence.token_ids) for sentence in self.sentences)


def read_text_rows(
    inputs: InputPaths,
    tokenizer: Tokenizer,
    max_length: int,
    *,
    max_sentences: int | None,
    seed: int,
    language: str,
    sources: SourceOptions,
) -> TextRows:
    """Read text in any format that `prepare` reads.

    Args:
      inputs: a file, directory, pattern or TFDS dataset, or a list of them.
      tokenizer: the model's tokenizer.
      max_length: the maximum number of tokens in a row, including special tokens.
      max_sentences: the maximum number of sentences in the sample, which may be 0; None for all.
      seed: the seed of the sample.
      language: the language of the rules for splitting the text into sentences.
      sources: the options for reading the inputs.

    Raises:
      ValueError: an input cannot be read, or contains no tokens.
    """
    check_language(language)
    names = input_names(inputs)
    capacity = max_length - SPECIAL_TOKENS
    counts = SourceCounts()
    fragments: list[NDArray[np.int32]] = []
    sentences: list[str] = []
    for document in read_documents(names, sources, counts):
        ids, _ = tokenize_document(document.text, tokenizer, language, np.dtype(np.int32))
        fragments += _cut(ids.astype(np.int32), capacity)
        stripped = (each.strip() for each in split_sentences(document.text, language))
        sentences += [sentence for sentence in stripped if sentence]
    if not fragments:
        raise ValueError(f"{names[0]}: contains no text. Use a file with at least one word.")
    sample = _sample(sentences, max_sentences, seed)
    encoded = [each for each in encode_sentences(tokenizer, sample) if len(each.token_ids)]
    parts = [
        EncodedSentence(part, np.arange(len(part), dtype=np.int32))
        for sentence in encoded
        for part in _cut(sentence.token_ids, capacity)
    ]
    num_split = sum(len(sentence.token_ids) > capacity for sentence in encoded)
    name = os.path.basename(names[0]) if len(names) == 1 else f"{len(names)} inputs"
    return TextRows(name, counts.documents, fragments, len(sentences), parts, num_split)


def _cut(ids: NDArray[np.int32], capacity: int) -> list[NDArray[np.int32]]:
    return [ids[start : start + capacity] for start in range(0, len(ids), capacity)]


def _sample(sentences: Sequence[str], count: int | None, seed: int) -> list[str]:
    """Return `count` random sentences in their original order, or all if there are fewer."""
    if count is None or count >= len(sentences):
        return list(sentences)
    chosen = permuted(np.arange(count), len(sentences), seed)
    return [sentences[index] for index in np.sort(chosen)]


class RowGroup(NamedTuple):
    """Fragments that are laid out in rows of equal length.

    Attributes:
      members: the indices of the fragments.
      length: the number of tokens in a row.
      num_rows: the number of rows in a batch.
    """

    members: NDArray[np.int64]
    length: int
    num_rows: int


def row_groups(
    fragments: Sequence[NDArray[np.int32]], tokens: int, limits: BatchLimits
) -> Iterator[RowGroup]:
    """Yield the groups into which `masked_batches` splits fragments, longest first.

    Args:
      fragments: the token ids of each row.
      tokens: the maximum number of tokens in a batch on each device; see `BatchLimits.num_rows`.
      limits: the limits on the shape of a batch.
    """
    sizes = _sizes(fragments)
    lengths = limits.row_lengths(sizes, _NUM_LENGTHS)
    bucket = np.searchsorted(lengths, sizes)
    for number, length in reversed(list(enumerate(lengths))):
        members = np.flatnonzero(bucket == number)
        yield RowGroup(members, length, limits.num_rows(length, tokens, len(members)))


def _sizes(fragments: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
    return np.array([len(fragment) + SPECIAL_TOKENS for fragment in fragments], np.int64)


def masked_batches(
    fragments: Sequence[NDArray[np.int32]],
    tokenizer: Tokenizer,
    *,
    seed: int,
    tokens: int,
    limits: BatchLimits,
    masking: MaskingConfig,
) -> Iterator[Batch]:
    """Yield batches of rows `[CLS] fragment [SEP]`, masked as in pretraining.

    A row's masks depend only on the seed and the row's number, not on the batch.

    Args:
      fragments: the token ids of each row.
      tokenizer: the tokenizer that encoded the fragments.
      seed: the seed of the masks.
      tokens: the maximum number of tokens in a batch on each device; see `BatchLimits.num_rows`.
      limits: the limits on the shape of a batch.
      masking: how tokens are masked.

    Yields:
      `token_ids` [rows, length], `lengths` [rows], and `positions`, `labels` and `weights`
      [rows, predictions], as in `Predictions`.
    """
    masker = Masker(masking, Vocabulary.of(tokenizer))
    sizes = _sizes(fragments)
    for members, length, num_rows in row_groups(fragments, tokens, limits):
        for start in range(0, len(members), num_rows):
            chosen = members[start : start + num_rows]
            token_ids = _layout((fragments[row] for row in chosen), num_rows, length, tokenizer)
            keys = np.zeros(num_rows, np.uint64)
            keys[: len(chosen)] = hash_of(seed, Purpose.EXAMPLE, chosen)
            predictions = masker.mask(token_ids, keys)
            yield {"token_ids": token_ids, "lengths": _lengths(sizes[chosen], num_rows)} | {
                "positions": predictions.positions,
                "labels": predictions.labels,
                "weights": predictions.weights,
            }


def _layout(
    fragments: Iterable[NDArray[np.int32]], num_rows: int, length: int, tokenizer: Tokenizer
) -> NDArray[np.int32]:
    """Return one row per fragment, followed by rows of padding."""
    rows = np.full((num_rows, length), tokenizer.pad_id, np.int32)
    for row, fragment in zip(rows, fragments, strict=False):
        row[0] = tokenizer.cls_id
        row[1 : 1 + len(fragment)] = fragment
        row[1 + len(fragment)] = tokenizer.sep_id
    return rows


def _lengths(sizes: NDArray[np.int64], num_rows: int) -> NDArray[np.int32]:
    """Return the number of tokens in each row; a row of padding counts as one token.

    With 0 tokens, all positions of the row would be masked out, and its attention would be
    undefined.
    """
    lengths = np.ones(num_rows, np.int32)
    lengths[: len(sizes)] = sizes
    return lengths
