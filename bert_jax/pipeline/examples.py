"""Make training examples as a pure function of (corpus, seed, epoch, index, masking rate).

A record becomes a row of fixed length. Each of its fragments becomes a document of the row, laid
out as `[CLS] A [SEP] B [SEP]`, and padding follows the last document.
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
from bert_jax.pipeline.rows import Rows, assemble_rows, join_documents
from bert_jax.tokenizers.special_tokens import Vocabulary

Batch = dict[str, NDArray]

# The number of records in a group. The second segment of a pair comes from the same group as the
# first. Making a single example therefore requires reading a whole group, but a batch of whole
# groups requires reading each record only once.
GROUP_SIZE = 32


@dataclass(frozen=True)
class ExampleConfig:
    """Everything that determines an example, except for the corpus, the epoch and the index.

    Attributes:
      seed: the random seed, from 0 to 2**63 - 1.
      sentence_pairs: whether fragments are split into pairs A and B, and how B is chosen.
      masking: how tokens are masked.
      join_documents: whether each document attends to all documents in its row (FULL-SENTENCES in
        Liu et al. 2019, section 4.2) or only to itself (DOC-SENTENCES).
    """

    seed: int
    sentence_pairs: SentencePairs = "next_sentence"
    masking: MaskingConfig = MaskingConfig()
    join_documents: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed={self.seed}: expected 0 to 2**63 - 1.")
        if self.join_documents and self.sentence_pairs != "none":
            raise ValueError(
                f"join_documents=True with sentence_pairs={self.sentence_pairs!r}: pairs cannot be "
                "joined. Set sentence_pairs='none' or join_documents=False."
            )


class ExampleSource:
    """The examples of a corpus. Each epoch visits every record once, in a different order."""

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, config: ExampleConfig):
        """Prepare to make examples from `corpus`.

        Raises:
          ValueError: the split is empty, its token ids exceed the vocabulary, or next-sentence
            pairs are requested for a split with only one document.
        """
        _check_corpus(corpus, vocabulary, config)
        self.corpus = corpus
        self.vocabulary = vocabulary
        self.config = config
        self.length = corpus.manifest.max_length
        self.max_documents = 1 if config.join_documents else corpus.manifest.max_fragments
        self.max_predictions = config.masking.max_predictions(self.length)
        self._masker = Masker(config.masking, vocabulary)

    def __len__(self) -> int:
        return len(self.corpus)

    def examples(
        self,
        epoch: int,
        indices: NDArray[np.int64],
        masking_rate: float | None = None,
        stage_done: Callable[[str], None] = lambda stage: None,
    ) -> Batch:
        """Return the examples of `epoch` with these indices, one per row, in the given order.

        Args:
          epoch: the epoch, counted from 0.
          indices: [B] at least one number from 0 to len(self) - 1. Indices may repeat.
          masking_rate: the fraction of tokens to predict; if None, the rate of the last step.
          stage_done: called with "order", "read", "decode", "pair", "assemble" and "mask" at the
            end of the stage with that name.

        Returns:
          The arrays that `spec` describes: the fields of `Rows`, and those of `Predictions` with
          the prefix `masked_`. `token_ids` is the model's input, after masking.

        Raises:
          ValueError: a shard cannot be read, or a record is corrupt; the message names it.
        """
        slots, record_group = self._pool(indices)
        drawn_epoch = epoch % (self.config.masking.num_maskings or epoch + 1)
        records = self._records(slots, epoch, drawn_epoch)
        stage_done("order")
        blobs = self.corpus.read(records)
        stage_done("read")
        pool = self.corpus.decode(records, blobs)
        self._check_fit(pool, records)
        stage_done("decode")
        key = hash_of(self._key(Purpose.EXAMPLE, drawn_epoch), records)
        segments, tokens = self._segments(pool, record_group, key)
        stage_done("pair")
        slot = np.searchsorted(slots, indices)
        rows = self._assemble(pool, tokens, segments, slot)
        stage_done("assemble")
        predictions = self._masker.mask(rows.token_ids, key[slot], masking_rate)
        stage_done("mask")
        return _as_batch(rows, predictions)

    def spec(self, num_rows: int) -> dict[str, tuple[tuple[int, int], type]]:
        """Return the shape and dtype of every array in a batch of `num_rows` rows."""
        positions = ((num_rows, self.length), np.int32)
        predictions = (num_rows, self.max_predictions)
        documents = (num_rows, self.max_documents)
        return {
            "token_ids": positions,
            "segment_ids": positions,
            "position_ids": positions,
            "document_ids": positions,
            "cls_positions": (documents, np.int32),
            "pair_labels": (documents, np.int32),
            "pair_weights": (documents, np.float32),
            "masked_positions": (predictions, np.int32),
            "masked_labels": (predictions, np.int32),
            "masked_weights": (predictions, np.float32),
        }

    def padding(self, num_rows: int) -> Batch:
        """Return rows without examples: all positions are padding and all weights are zero."""
        batch: Batch = {name: np.zeros(*spec) for name, spec in self.spec(num_rows).items()}
        batch["token_ids"][:] = self.vocabulary.pad_id
        return batch

    def _records(self, slots: NDArray[np.int64], epoch: int, drawn_epoch: int) -> NDArray[np.int64]:
        """Return the records at `slots`, which are positions in the order of `epoch`.

        The random draws are made for `drawn_epoch`, which may be an earlier epoch.
        """
        order = epoch
        if self.config.sentence_pairs == "next_sentence":
            # Partners come from the same group of records. An epoch that reuses draws must
            # therefore keep the groups, but it visits them in a different order.
            order = drawn_epoch
            group, within = np.divmod(slots, GROUP_SIZE)
            # The last group also contains the leftover records, so it stays in place.
            num_movable = len(self) // GROUP_SIZE - 1
            if drawn_epoch != epoch and num_movable > 0:
                moves = group < num_movable
                key = self._key(Purpose.GROUP_ORDER, epoch)
                group[moves] = permuted(group[moves], num_movable, key)
                slots = group * GROUP_SIZE + within
        return permuted(slots, len(self), self._key(Purpose.SHUFFLE, order))

    def _key(self, purpose: Purpose, epoch: int) -> NDArray[np.uint64]:
        return hash_of(self.config.seed, purpose, epoch)

    def _pool(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the slots of the records to read, in ascending order, and the group of each slot.

        A slot is a position in the order of an epoch. Every group consists of GROUP_SIZE
        consecutive slots, and the last group also includes any leftover slots.
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
        """Return the segments of all fragments, and the tokens that their offsets refer to."""
        capacity = self.length - SPECIAL_TOKENS_PER_FRAGMENT
        match self.config.sentence_pairs:
            case "next_sentence":
                return draw_pairs(pool, record_group, key, capacity), pool.tokens
            case "sentence_order":
                spaces_are_text = self.vocabulary.spaces_are_text
                return draw_orders(pool, key, capacity, spaces_are_text=spaces_are_text)
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
        """Lay out the records at these positions in the pool, one per row."""
        first = np.searchsorted(pool.fragment_record, slot)
        count = np.searchsorted(pool.fragment_record, slot, side="right") - first
        row = np.repeat(np.arange(len(slot)), count)
        shape = (len(slot), self.length, self.corpus.manifest.max_fragments)
        segments = segments.take(ranges(first, count))
        rows = assemble_rows(tokens, segments, row, shape, self.vocabulary)
        return join_documents(rows, self.vocabulary) if self.config.join_documents else rows

    def _check_fit(self, pool: RecordBatch, records: NDArray[np.int64]) -> None:
        """Raise ValueError for records that exceed the limits in the manifest."""
        fragments = np.bincount(pool.fragment_record, minlength=len(records))
        positions = pool.fragment_length + SPECIAL_TOKENS_PER_FRAGMENT
        cost = np.bincount(pool.fragment_record, positions, minlength=len(records))
        most = self.corpus.manifest.max_fragments
        bad = (fragments > most) | (cost > self.length)
        if bad.any():
            index = int(np.argmax(bad))
            raise ValueError(
                f"{self.corpus.where(int(records[index]))}: takes {int(cost[index])} positions in "
                f"{fragments[index]} fragments. The manifest allows at most {self.length} "
                f"positions in {most} fragments."
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
        raise ValueError(
            f"{corpus.directory}: the {corpus.split} split has no records. Prepare it again with "
            "more documents in this split."
        )
    if corpus.manifest.vocab_size > vocabulary.vocab_size:
        raise ValueError(
            f"{corpus.directory}: prepared with {corpus.manifest.vocab_size} token ids, but the "
            f"vocabulary has {vocabulary.vocab_size}. Use the tokenizer saved with the corpus."
        )
    if config.sentence_pairs == "next_sentence" and corpus.info.num_documents < 2:
        raise ValueError(
            f"{corpus.directory}: the {corpus.split} split has only one document, but "
            "next-sentence pairs need second segments from other documents. Train without "
            "next-sentence pairs, or prepare a corpus with more documents in this split (blank "
            "lines separate documents in plain text)."
        )


def _as_batch(rows: Rows, predictions: Predictions) -> Batch:
    masked = {f"masked_{name}": array for name, array in vars(predictions).items()}
    return {**vars(rows), **masked}
