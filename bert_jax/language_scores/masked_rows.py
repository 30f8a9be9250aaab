"""Encode sentences, and make rows in which their tokens are masked one at a time.

Identical rows are made only once. The two sentences of a minimal pair often differ in a single
token, in which case they share the row where that token is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.labeled_data.features import TEXTS_PER_BATCH
from bert_jax.tokenizers.tokenizer import Tokenizer

# The maximum number of tokens to look up in one row. Most rows belong to one sentence or to both
# sentences of a pair; if more tokens must be looked up, the row is repeated.
LABELS_PER_ROW = 2


class EncodedSentence(NamedTuple):
    """A sentence as a model reads it.

    Attributes:
      token_ids: int32 [tokens], the token ids without [CLS] and [SEP].
      words: int32 [tokens], the index of the word that each token belongs to. Unless sentences are
        encoded with `whole_words`, every token counts as a word.
    """

    token_ids: NDArray[np.int32]
    words: NDArray[np.int32]


@dataclass(frozen=True)
class MaskedRows:
    """Distinct rows that each have a token to predict, and where to find each token's result.

    Attributes:
      token_ids: int32 [rows, length], `[CLS] sentence [SEP]` with masks, and padding.
      lengths: int32 [rows], the number of tokens in each row.
      positions: int32 [rows], the position to predict.
      labels: int32 [rows, LABELS_PER_ROW], the tokens to look up; 0 in unused entries.
      row: int64 [tokens], the row in which each token of the sentences is looked up.
      slot: int64 [tokens], its column in `labels`.
    """

    token_ids: NDArray[np.int32]
    lengths: NDArray[np.int32]
    positions: NDArray[np.int32]
    labels: NDArray[np.int32]
    row: NDArray[np.int64]
    slot: NDArray[np.int64]


def encode_sentences(
    tokenizer: Tokenizer, texts: Sequence[str], *, whole_words: bool = False
) -> list[EncodedSentence]:
    """Encode sentences, treating special tokens that are spelled out in a text as ordinary text.

    Args:
      tokenizer: the model's tokenizer.
      texts: the sentences.
      whole_words: whether `EncodedSentence.words` are the tokenizer's words (see
        `Tokenizer.word_offsets`) rather than single tokens.
    """
    sentences = []
    for start in range(0, len(texts), TEXTS_PER_BATCH):
        part = texts[start : start + TEXTS_PER_BATCH]
        if not whole_words:
            for ids in tokenizer.encode_batch(part, specials_as_text=True):
                sentences.append(
                    EncodedSentence(np.array(ids, np.int32), np.arange(len(ids), dtype=np.int32))
                )
            continue
        located = tokenizer.encode_with_offsets(part, specials_as_text=True)
        for tokens, words in zip(located, tokenizer.word_offsets(part), strict=True):
            # A token belongs to the last word that starts at or before the token.
            word = np.searchsorted(words[:, 0], tokens.offsets[:, 0], side="right")
            sentences.append(EncodedSentence(tokens.ids, word.astype(np.int32)))
    return sentences


def sentence_problem(sentence: EncodedSentence, max_length: int) -> str:
    """Return the reason why a sentence cannot be scored, or "" if it can.

    Args:
      sentence: the encoded sentence.
      max_length: the maximum number of tokens in a row, including special tokens.
    """
    count = len(sentence.token_ids)
    if not count:
        return "the sentence has no tokens. Write at least one word"
    if count + 2 > max_length:
        return (
            f"the sentence has {count + 2:,} tokens, but the model reads at most "
            f"{max_length:,}. Shorten or split it"
        )
    return ""


def masked_rows(
    sentences: Sequence[EncodedSentence], length: int, tokenizer: Tokenizer
) -> MaskedRows:
    """Return the rows in which each token of the sentences is masked in turn.

    If the sentences were encoded with `whole_words`, the tokens that follow the masked token in the
    same word are masked too (Kauf and Ivanova 2023, "A better way to do masked language model
    scoring", section 3.2).

    Args:
      sentences: sentences with at least one token.
      length: the number of positions in a row; the sentences and two special tokens must fit.
      tokenizer: provides the special tokens.
    """
    counts = np.array([len(sentence.token_ids) for sentence in sentences])
    num_rows = int(counts.sum())
    token_ids = np.full((num_rows, length), tokenizer.pad_id, np.int32)
    start = 0
    for ids, words in sentences:
        count = len(ids)
        rows = token_ids[start : start + count]
        rows[:, 0], rows[:, count + 1] = tokenizer.cls_id, tokenizer.sep_id
        number = np.arange(count)
        hidden = (words[:, None] == words) & (number >= number[:, None])
        rows[:, 1 : count + 1] = np.where(hidden, tokenizer.mask_id, ids)
        start += count
    first = np.cumsum(counts) - counts
    positions = (np.arange(num_rows) - np.repeat(first, counts) + 1).astype(np.int32)
    labels = np.concatenate([sentence.token_ids for sentence in sentences])
    lengths = np.repeat(counts + 2, counts).astype(np.int32)
    return _without_repetitions(token_ids, lengths, positions, labels)


def _without_repetitions(
    token_ids: NDArray[np.int32],
    lengths: NDArray[np.int32],
    positions: NDArray[np.int32],
    labels: NDArray[np.int32],
) -> MaskedRows:
    """Merge rows with the same tokens and the same position to predict.

    Args:
      token_ids: [tokens, length], one row for each token of the sentences.
      lengths: [tokens].
      positions: [tokens].
      labels: [tokens], the token that is masked in each row.
    """
    content = np.ascontiguousarray(np.column_stack([positions, token_ids]))
    keys = content.view(np.dtype((np.void, content.strides[0])))[:, 0]
    _, chosen, same = np.unique(keys, return_index=True, return_inverse=True)
    # Number the distinct labels of each row from 0. A row with more than LABELS_PER_ROW labels is
    # copied, and its labels are split among the copies.
    lookups, lookup = np.unique(np.column_stack([same, labels]), axis=0, return_inverse=True)
    lookup = lookup.reshape(-1)
    begins = np.searchsorted(lookups[:, 0], np.arange(len(chosen)))
    number = np.arange(len(lookups)) - begins[lookups[:, 0]]
    copies = -(-np.bincount(lookups[:, 0], minlength=len(chosen)) // LABELS_PER_ROW)
    row = (np.cumsum(copies) - copies)[lookups[:, 0]] + number // LABELS_PER_ROW
    slot = number % LABELS_PER_ROW
    source = np.repeat(chosen, copies)
    table = np.zeros((len(source), LABELS_PER_ROW), np.int32)
    table[row, slot] = lookups[:, 1]
    return MaskedRows(
        token_ids[source], lengths[source], positions[source], table, row[lookup], slot[lookup]
    )
