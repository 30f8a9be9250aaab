"""Training examples as a pure function of (corpus, seed, epoch, index).

Nothing is streamed: `ExampleSource.examples` makes any examples of any epoch, alone or together, in
any process, and always the same. All work is vectorised over the examples asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.assembly import Rows, assemble_rows, join_documents
from bert_jax.data.corpus import Corpus
from bert_jax.data.hashing import Purpose, hash_of, permuted
from bert_jax.data.masking import Masker, MaskingConfig, Predictions
from bert_jax.data.packing import SPECIAL_TOKENS_PER_PIECE
from bert_jax.data.pairs import Segments, draw_pairs, whole_pieces
from bert_jax.data.records import RecordBatch, ranges
from bert_jax.data.sentence_order import draw_orders
from bert_jax.data.vocabulary import Vocabulary
from bert_jax.objectives import SentencePairs

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
        self.max_pieces = 1 if config.join_documents else corpus.manifest.max_pieces
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
        pieces = (num_rows, self.max_pieces)
        return {
            "token_ids": positions,
            "segment_ids": positions,
            "position_ids": positions,
            "document_ids": positions,
            "cls_positions": (pieces, np.int32),
            "pair_labels": (pieces, np.int32),
            "pair_weights": (pieces, np.float32),
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
        capacity = self.length - SPECIAL_TOKENS_PER_PIECE
        match self.config.sentence_pairs:
            case "next_sentence":
                return draw_pairs(pool, record_group, key, capacity), pool.tokens
            case "sentence_order":
                spaced = self.vocabulary.spaces_are_text
                return draw_orders(pool, key, capacity, spaces_are_text=spaced)
            case "none":
                return whole_pieces(pool), pool.tokens

    def _assemble(
        self,
        pool: RecordBatch,
        tokens: NDArray[np.int32],
        segments: Segments,
        slot: NDArray[np.int64],
    ) -> Rows:
        """Lays out the records in these places of the pool, a row each."""
        first = np.searchsorted(pool.piece_record, slot)
        count = np.searchsorted(pool.piece_record, slot, side="right") - first
        row = np.repeat(np.arange(len(slot)), count)
        shape = (len(slot), self.length, self.corpus.manifest.max_pieces)
        segments = segments.take(ranges(first, count))
        rows = assemble_rows(tokens, segments, row, shape, self.vocabulary)
        return join_documents(rows, self.vocabulary) if self.config.join_documents else rows

    def _check_fit(self, pool: RecordBatch, records: NDArray[np.int64]) -> None:
        """Refuses records that exceed what the manifest promises."""
        pieces = np.bincount(pool.piece_record, minlength=len(records))
        positions = pool.piece_length + SPECIAL_TOKENS_PER_PIECE
        cost = np.bincount(pool.piece_record, positions, minlength=len(records))
        most = self.corpus.manifest.max_pieces
        bad = (pieces > most) | (cost > self.length)
        if bad.any():
            at = int(np.argmax(bad))
            raise ValueError(
                f"{self.corpus.where(int(records[at]))} takes {int(cost[at])} positions in "
                f"{pieces[at]} pieces; the manifest promises at most {self.length} in "
                f"{most}"
            )
        if pool.tokens.max() >= self.vocabulary.vocab_size:
            piece = np.searchsorted(pool.piece_offset, np.argmax(pool.tokens), side="right") - 1
            raise ValueError(
                f"{self.corpus.where(int(records[pool.piece_record[piece]]))} holds the token id "
                f"{pool.tokens.max()}, the vocabulary has {self.vocabulary.vocab_size}"
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
