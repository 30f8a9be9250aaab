"""Make training examples as a pure function of (corpus, seed, epoch, index).

Segments become rows of a fixed length: `[CLS] A [SEP] B [SEP]` for every piece, then padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.packing import SPECIAL_TOKENS_PER_FRAGMENT
from bert_jax.corpus.records import RecordBatch, ranges
from bert_jax.hashing import Purpose, hash_of, permuted
from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.masking import Masker, MaskingConfig, Predictions
from bert_jax.pipeline.pairs import Segments, draw_orders, draw_pairs, whole_fragments
from bert_jax.tokenizers.special_tokens import Vocabulary


@dataclass(frozen=True)
class Rows:
    """B rows of L positions, and where their pieces are.

    Attributes:
        token_ids: [B, L] int32.
        segment_ids: [B, L] int32, 0 for `[CLS] A [SEP]`, 1 for `B [SEP]`, 0 for padding.
        position_ids: [B, L] int32, from 0 in every piece; 0 for padding.
        document_ids: [B, L] int32, 1, 2, ... for the pieces of a row; 0 for padding.
        cls_positions: [B, P] int32, where a piece begins; 0 beyond the last piece.
        pair_labels: [B, P] int32; see `Segments.label`.
        pair_weights: [B, P] float32, 1 for pieces with a segment B.
    """

    token_ids: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    document_ids: NDArray[np.int32]
    cls_positions: NDArray[np.int32]
    pair_labels: NDArray[np.int32]
    pair_weights: NDArray[np.float32]


def assemble_rows(
    tokens: NDArray[np.int32],
    segments: Segments,
    row: NDArray[np.int64],
    shape: tuple[int, int, int],
    vocabulary: Vocabulary,
) -> Rows:
    """Lays pieces out in rows, in their order.

    Args:
        tokens: what the segments' offsets refer to.
        segments: of [num_pieces] pieces.
        row: [num_pieces] ascending row of each piece; every row has at least one.
        shape: (B, L, P). What a record holds must fit: prepare.py guarantees it and the caller
            has checked it.
    """
    num_rows, length, max_fragments = shape
    paired = segments.b_length > 0
    a_width = segments.a_length + 2  # [CLS] A [SEP]
    b_width = np.where(paired, segments.b_length + 1, 0)  # B [SEP]
    first_in_row = np.searchsorted(row, np.arange(num_rows))
    number = np.arange(len(row)) - first_in_row[row]
    before = np.cumsum(a_width + b_width) - (a_width + b_width)
    begin = row * length + before - before[first_in_row][row]  # in the flattened rows
    end = begin + a_width + b_width
    last = np.append(row[1:] != row[:-1], True)
    padding = np.where(last, (row + 1) * length - end, 0)
    assert (padding >= 0).all() and (number < max_fragments).all(), "a record fits its row"

    # Three runs a piece cover all positions: [CLS] A [SEP], then B [SEP], then padding.
    runs = np.stack([a_width, b_width, padding], axis=1).ravel()
    zero = np.zeros_like(begin)
    everywhere = np.arange(num_rows * length, dtype=np.int32)

    def spread(a: NDArray[np.int64], b: NDArray[np.int64], pad: NDArray[np.int64]) -> NDArray:
        """Writes one value over each run."""
        return np.repeat(np.stack([a, b, pad], axis=1).ravel().astype(np.int32), runs)

    shift = spread(segments.a_offset - begin - 1, segments.b_offset - begin - a_width, -end)
    token_ids = tokens.take(shift + everywhere, mode="clip")  # what is clipped is overwritten
    document_ids = spread(number + 1, number + 1, zero)
    position_ids = everywhere - spread(begin, begin, zero)
    segment_ids = spread(zero, zero + 1, zero)
    is_padding = document_ids == 0
    token_ids[is_padding] = vocabulary.pad_id
    position_ids[is_padding] = 0
    token_ids[begin] = vocabulary.cls_id
    token_ids[begin + a_width - 1] = vocabulary.sep_id
    token_ids[end - 1] = vocabulary.sep_id

    def per_fragment(values: NDArray, dtype: type) -> NDArray:
        table: NDArray = np.zeros((num_rows, max_fragments), dtype)
        table[row, number] = values
        return table

    return Rows(
        token_ids=token_ids.reshape(num_rows, length),
        segment_ids=segment_ids.reshape(num_rows, length),
        position_ids=position_ids.reshape(num_rows, length),
        document_ids=document_ids.reshape(num_rows, length),
        cls_positions=per_fragment(begin - row * length, np.int32),
        pair_labels=per_fragment(segments.label, np.int32),
        pair_weights=per_fragment(paired, np.float32),
    )


def join_documents(rows: Rows, vocabulary: Vocabulary) -> Rows:
    """Rows without pairs whose pieces read on into each other, as one document each.

    `[CLS] A [SEP] [SEP] B [SEP]`: a [CLS] within a row becomes the extra separator of Liu et al.
    2019 (section 4.2, FULL-SENTENCES). Positions go on; [B, 1] in place of [B, P].
    """
    assert not rows.pair_weights.any(), "rows of pairs are not joined"
    there = rows.document_ids > 0
    token_ids = rows.token_ids.copy()
    begins = there[:, 1:] & (rows.document_ids[:, 1:] != rows.document_ids[:, :-1])
    token_ids[:, 1:][begins] = vocabulary.sep_id
    places = np.arange(token_ids.shape[1], dtype=np.int32)
    nothing = np.zeros((len(token_ids), 1), np.int32)
    return Rows(
        token_ids=token_ids,
        segment_ids=rows.segment_ids,
        position_ids=np.where(there, places, 0).astype(np.int32),
        document_ids=there.astype(np.int32),
        cls_positions=nothing,
        pair_labels=nothing,
        pair_weights=nothing.astype(np.float32),
    )


Batch = dict[str, NDArray]

# Second segments are drawn among the records of a group: an example on its own costs reading this
# many records, a batch of whole groups reads nothing twice.
GROUP_SIZE = 32


@dataclass(frozen=True)
class ExampleConfig:
    """What decides an example besides the corpus, the epoch and the index.

    Attributes:
        seed: 0 up to 2**63 - 1.
        sentence_pairs: whether pieces are split into pairs A and B, and what B is.
        masking: which tokens are predicted.
        join_documents: whether the documents of a row read on into each other (FULL-SENTENCES of
            Liu et al. 2019, section 4.2) or each sees itself alone (DOC-SENTENCES).
    """

    seed: int
    sentence_pairs: SentencePairs = "next_sentence"
    masking: MaskingConfig = MaskingConfig()
    join_documents: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed is {self.seed}; expected 0 up to 2**63 - 1")
        if self.join_documents and self.sentence_pairs != "none":
            raise ValueError(
                f"join_documents=True with sentence_pairs={self.sentence_pairs!r}: pairs are of "
                "one document each; set sentence_pairs='none' or join_documents=False"
            )


class ExampleSource:
    """Makes examples; an epoch visits every record once, in an order of its own."""

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, config: ExampleConfig):
        """Prepares to make examples of `corpus`.

        Raises:
            ValueError: the split is empty, its ids exceed the vocabulary, or next-sentence pairs
                are wanted of a single document.
        """
        _check_corpus(corpus, vocabulary, config)
        self.corpus = corpus
        self.vocabulary = vocabulary
        self.config = config
        self.length = corpus.manifest.max_length
        self.max_fragments = 1 if config.join_documents else corpus.manifest.max_fragments
        self.max_predictions = config.masking.max_predictions(self.length)
        self._masker = Masker(config.masking, vocabulary)

    def __len__(self) -> int:
        return len(self.corpus)

    def examples(
        self,
        epoch: int,
        indices: NDArray[np.int64],
        progress: float = 1.0,
        stage_done: Callable[[str], None] = lambda stage: None,
    ) -> Batch:
        """Returns the examples `indices` of `epoch`, a row each, in the order asked.

        Args:
            indices: [B] numbers in 0..len(self)-1, at least one; they may repeat.
            progress: how much of the run is over, 0 up to 1: for a masking whose rate changes.
            stage_done: told "order", "read", "decode", "pair", "assemble" and "mask" as each ends.

        Returns:
            What `spec` describes; the fields of `Rows` and, with the prefix `masked_`, of
            `Predictions`. `token_ids` is what the model sees, after masking.

        Raises:
            ValueError: a shard cannot be read, or a record is corrupt; names it.
        """
        slots, record_group = self._pool(indices)
        drawn = epoch % (self.config.masking.num_maskings or epoch + 1)
        records = self._records(slots, epoch, drawn)
        stage_done("order")
        blobs = self.corpus.read(records)
        stage_done("read")
        pool = self.corpus.decode(records, blobs)
        self._check_fit(pool, records)
        stage_done("decode")
        key = hash_of(self._key(Purpose.EXAMPLE, drawn), records)
        segments, tokens = self._segments(pool, record_group, key)
        stage_done("pair")
        slot = np.searchsorted(slots, indices)
        rows = self._assemble(pool, tokens, segments, slot)
        stage_done("assemble")
        predictions = self._masker.mask(rows.token_ids, key[slot], progress)
        stage_done("mask")
        return _as_batch(rows, predictions)

    def spec(self, num_rows: int) -> dict[str, tuple[tuple[int, int], type]]:
        """Returns the shape and type of every array of a batch of `num_rows` rows."""
        positions = ((num_rows, self.length), np.int32)
        predictions = (num_rows, self.max_predictions)
        fragments = (num_rows, self.max_fragments)
        return {
            "token_ids": positions,
            "segment_ids": positions,
            "position_ids": positions,
            "document_ids": positions,
            "cls_positions": (fragments, np.int32),
            "pair_labels": (fragments, np.int32),
            "pair_weights": (fragments, np.float32),
            "masked_positions": (predictions, np.int32),
            "masked_labels": (predictions, np.int32),
            "masked_weights": (predictions, np.float32),
        }

    def padding(self, num_rows: int) -> Batch:
        """Returns rows that hold no example: padding everywhere, all weights zero."""
        batch: Batch = {name: np.zeros(*spec) for name, spec in self.spec(num_rows).items()}
        batch["token_ids"][:] = self.vocabulary.pad_id
        return batch

    def _records(self, slots: NDArray[np.int64], epoch: int, drawn: int) -> NDArray[np.int64]:
        """Returns the records of an epoch's places, which repeat the draws of epoch `drawn`."""
        order = epoch
        if self.config.sentence_pairs == "next_sentence":
            # Partners are drawn among the records of a group: groups repeat, in another order.
            order = drawn
            group, within = np.divmod(slots, GROUP_SIZE)
            num_alike = len(self) // GROUP_SIZE - 1  # the last takes in the remainder, and stays
            if drawn != epoch and num_alike > 0:
                moves = group < num_alike
                key = self._key(Purpose.GROUP_ORDER, epoch)
                group[moves] = permuted(group[moves], num_alike, key)
                slots = group * GROUP_SIZE + within
        return permuted(slots, len(self), self._key(Purpose.SHUFFLE, order))

    def _key(self, purpose: Purpose, epoch: int) -> NDArray[np.uint64]:
        return hash_of(self.config.seed, purpose, epoch)

    def _pool(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the ascending indices whose records are needed, and the group of each.

        Groups are aligned runs of GROUP_SIZE indices; the last one takes in the remainder.
        """
        if self.config.sentence_pairs != "next_sentence":
            slots = np.unique(indices)
            return slots, np.zeros_like(slots)
        num_groups = max(1, len(self) // GROUP_SIZE)
        groups = np.unique(np.minimum(indices // GROUP_SIZE, num_groups - 1))
        end = np.where(groups == num_groups - 1, len(self), (groups + 1) * GROUP_SIZE)
        size = end - groups * GROUP_SIZE
        return ranges(groups * GROUP_SIZE, size), np.repeat(np.arange(len(groups)), size)

    def _segments(
        self, pool: RecordBatch, record_group: NDArray[np.int64], key: NDArray[np.uint64]
    ) -> tuple[Segments, NDArray[np.int32]]:
        """Returns the segments of all pieces, and the tokens they are ranges of."""
        capacity = self.length - SPECIAL_TOKENS_PER_FRAGMENT
        match self.config.sentence_pairs:
            case "next_sentence":
                return draw_pairs(pool, record_group, key, capacity), pool.tokens
            case "sentence_order":
                spaced = self.vocabulary.spaces_are_text
                return draw_orders(pool, key, capacity, spaces_are_text=spaced)
            case "none":
                return whole_fragments(pool), pool.tokens
            case _:
                assert_never(self.config.sentence_pairs)

    def _assemble(
        self,
        pool: RecordBatch,
        tokens: NDArray[np.int32],
        segments: Segments,
        slot: NDArray[np.int64],
    ) -> Rows:
        """Lays out the records in these places of the pool, a row each."""
        first = np.searchsorted(pool.fragment_record, slot)
        count = np.searchsorted(pool.fragment_record, slot, side="right") - first
        row = np.repeat(np.arange(len(slot)), count)
        shape = (len(slot), self.length, self.corpus.manifest.max_fragments)
        segments = segments.take(ranges(first, count))
        rows = assemble_rows(tokens, segments, row, shape, self.vocabulary)
        return join_documents(rows, self.vocabulary) if self.config.join_documents else rows

    def _check_fit(self, pool: RecordBatch, records: NDArray[np.int64]) -> None:
        """Refuses records that exceed what the manifest promises."""
        fragments = np.bincount(pool.fragment_record, minlength=len(records))
        positions = pool.fragment_length + SPECIAL_TOKENS_PER_FRAGMENT
        cost = np.bincount(pool.fragment_record, positions, minlength=len(records))
        most = self.corpus.manifest.max_fragments
        bad = (fragments > most) | (cost > self.length)
        if bad.any():
            index = int(np.argmax(bad))
            raise ValueError(
                f"{self.corpus.where(int(records[index]))}: takes {int(cost[index])} positions in "
                f"{fragments[index]} fragments. Expected at most {self.length} in {most}, "
                "according to the manifest."
            )
        if pool.tokens.max() >= self.vocabulary.vocab_size:
            token = np.argmax(pool.tokens)
            fragment = np.searchsorted(pool.fragment_offset, token, side="right") - 1
            record = int(records[pool.fragment_record[fragment]])
            raise ValueError(
                f"{self.corpus.where(record)}: contains the token id {pool.tokens.max()}, but the "
                f"vocabulary has {self.vocabulary.vocab_size} ids."
            )


def _check_corpus(corpus: Corpus, vocabulary: Vocabulary, config: ExampleConfig) -> None:
    if not len(corpus):
        raise ValueError(f"the {corpus.split} split of {corpus.directory} holds no record")
    if corpus.manifest.vocab_size > vocabulary.vocab_size:
        raise ValueError(
            f"{corpus.directory} was prepared with {corpus.manifest.vocab_size} token ids, the "
            f"vocabulary has {vocabulary.vocab_size}: use the tokenizer saved with the corpus"
        )
    if config.sentence_pairs == "next_sentence" and corpus.info.num_documents < 2:
        raise ValueError(
            f"the {corpus.split} split of {corpus.directory} holds a single document, so no "
            "second segment can be drawn from another one: train without next-sentence pairs, or "
            "prepare a corpus with more documents in this split (a blank line ends a document of "
            "plain text)"
        )


def _as_batch(rows: Rows, predictions: Predictions) -> Batch:
    masked = {f"masked_{name}": array for name, array in vars(predictions).items()}
    return {**vars(rows), **masked}
