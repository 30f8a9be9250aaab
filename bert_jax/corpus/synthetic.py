"""Make corpora of random documents with realistic lengths, for benchmarks and tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.document_stream import Split
from bert_jax.corpus.manifest import TOKENIZER, Manifest, ShardInfo, SplitInfo, write_manifest
from bert_jax.corpus.packing import (
    TokenizedDocument,
    default_max_fragments,
    fill_rate,
    pack_documents,
)
from bert_jax.corpus.records import Fragment, encode_record
from bert_jax.corpus.shards import shard_path, write_records
from bert_jax.corpus.units import shard_name
from bert_jax.local_paths import make_directory
from bert_jax.tokenizers.special_tokens import Vocabulary
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import check_seed

# These distributions of lengths, in WordPiece tokens, resemble the lengths in English Wikipedia and
# books. The mean sentence length is 25 tokens, and document lengths are log-normal with a median of
# 350 tokens and a mean near 900.
SENTENCE_LENGTH = (3.0, 0.65)
DOCUMENT_LENGTH = (5.85, 1.35)
NUM_SPECIAL = 5
_TEMPORARY_HELDOUT_TOKENS = 10_000
# Defaults for a benchmark's temporary corpus. Its vocabulary is as large as BERT's.
MAX_LENGTH = 512
MILLION_TOKENS = 16.0
_VOCAB_SIZE = 30_522


def synthetic_vocabulary(vocab_size: int) -> Vocabulary:
    """Return a vocabulary of [PAD], [UNK], [CLS], [SEP] and [MASK] (ids 0 to 4) plus words."""
    return Vocabulary(
        vocab_size=vocab_size,
        pad_id=0,
        cls_id=2,
        sep_id=3,
        mask_id=4,
        special_ids=tuple(range(NUM_SPECIAL)),
        random_ids=np.arange(NUM_SPECIAL, vocab_size, dtype=np.int32),
    )


def random_documents(
    num_tokens: int, vocab_size: int, seed: int, first_id: int = 0
) -> list[TokenizedDocument]:
    """Return random documents with about `num_tokens` tokens in total.

    Word frequencies follow Zipf's law.
    """
    check_seed(seed)
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, vocab_size - NUM_SPECIAL + 1)
    edges = np.cumsum(weights / weights.sum())
    documents: list[TokenizedDocument] = []
    while num_tokens > 0:
        length = int(np.clip(rng.lognormal(*DOCUMENT_LENGTH), 3, 200_000))
        lengths = np.maximum(1, rng.lognormal(*SENTENCE_LENGTH, length // 8 + 1).astype(np.int64))
        ends = np.cumsum(lengths)
        ends = ends[: max(1, np.searchsorted(ends, length))]
        words = np.minimum(np.searchsorted(edges, rng.random(ends[-1])), len(edges) - 1)
        starts = np.concatenate([[0], ends[:-1]])
        documents.append(TokenizedDocument(first_id + len(documents), words + NUM_SPECIAL, starts))
        num_tokens -= int(ends[-1])
    return documents


def write_corpus(
    directory: str | os.PathLike[str],
    train: Sequence[TokenizedDocument],
    heldout: Sequence[TokenizedDocument],
    *,
    max_length: int,
    vocab_size: int,
    max_fragments: int | None = None,
    token_bytes: int = 2,
    num_shards: int = 1,
) -> Manifest:
    """Pack documents as `bert-jax prepare` does, and write a finished corpus.

    Args:
      directory: the corpus directory, which is created.
      train: the documents of the training split.
      heldout: the documents of the held-out split.
      max_length: the length of a record in tokens.
      vocab_size: the largest token id plus one.
      max_fragments: the maximum number of fragments in a record; None for the default.
      token_bytes: the size of a stored token id, 2 or 4.
      num_shards: the number of files to divide each split's records among.
    """
    max_fragments = max_fragments or default_max_fragments(max_length)
    root = Path(directory)
    make_directory(root)

    def write_split(name: Split, documents: Sequence[TokenizedDocument]) -> SplitInfo:
        records = pack_documents(documents, max_length, max_fragments)
        parts: list[NDArray] = np.array_split(np.arange(len(records)), num_shards)
        shards = tuple(
            write_records(shard_path(root, shard_name(name, number)), blobs)
            for number, part in enumerate(parts)
            if (blobs := [encode_record(records[at], token_bytes) for at in part.tolist()])
        )
        return _split_info(documents, records, shards, max_length)

    manifest = Manifest(
        max_length=max_length,
        max_fragments=max_fragments,
        token_bytes=token_bytes,
        vocab_size=vocab_size,
        tokenizer_fingerprint="synthetic",
        tokenizer_files={},
        lowercase=True,
        options={},
        sources=(),
        duplicates_removed=0,
        empty_documents=0,
        bad_lines_skipped=0,
        documents_split=0,
        train=write_split("train", train),
        heldout=write_split("heldout", heldout),
    )
    write_manifest(root, manifest)
    return manifest


@contextmanager
def corpus_to_measure(
    directory: str | None, *, max_length: int | None = None, million_tokens: float | None = None
) -> Iterator[tuple[Path, Vocabulary]]:
    """Yield the directory and vocabulary of the given corpus, or of a temporary one.

    Args:
      directory: a prepared corpus. If None, a `temporary_corpus` is made.
      max_length: the length of a record in the temporary corpus; defaults to `MAX_LENGTH`.
      million_tokens: the size of the temporary corpus, in millions of tokens; defaults to
        `MILLION_TOKENS`.

    Raises:
      ValueError: both a directory and a size are given, or there is no such corpus.
    """
    sizes = {"max_length": max_length, "million_tokens": million_tokens}
    given = [name for name, value in sizes.items() if value is not None]
    if directory and given:
        raise ValueError(
            f"{given[0]} applies only to the temporary corpus, not to {directory}. Omit it, or "
            "omit the corpus"
        )
    if directory:
        yield Path(directory), Vocabulary.of(Tokenizer.load(Path(directory) / TOKENIZER))
        return
    num_tokens = int((MILLION_TOKENS if million_tokens is None else million_tokens) * 1e6)
    length = MAX_LENGTH if max_length is None else max_length
    with temporary_corpus(num_tokens, max_length=length, vocab_size=_VOCAB_SIZE) as temporary:
        yield temporary, synthetic_vocabulary(_VOCAB_SIZE)


@contextmanager
def temporary_corpus(num_tokens: int, *, max_length: int, vocab_size: int) -> Iterator[Path]:
    """Yield the directory of a corpus of random documents, which is deleted afterwards.

    Args:
      num_tokens: the approximate number of tokens in the training split.
      max_length: the length of a record in tokens.
      vocab_size: the number of tokens in the `synthetic_vocabulary`.
    """
    with tempfile.TemporaryDirectory(prefix="bert-jax-bench-") as directory:
        write_corpus(
            directory,
            random_documents(num_tokens, vocab_size, seed=0),
            random_documents(_TEMPORARY_HELDOUT_TOKENS, vocab_size, seed=1),
            max_length=max_length,
            vocab_size=vocab_size,
        )
        yield Path(directory)


def _split_info(
    documents: Sequence[TokenizedDocument],
    records: list[list[Fragment]],
    shards: tuple[ShardInfo, ...],
    max_length: int,
) -> SplitInfo:
    num_fragments = sum(map(len, records))
    num_tokens = sum(len(document.token_ids) for document in documents)
    return SplitInfo(
        shards=shards,
        num_records=len(records),
        num_fragments=num_fragments,
        num_documents=len(documents),
        num_sentences=sum(len(document.sentence_starts) for document in documents),
        num_tokens=num_tokens,
        fill_rate=fill_rate(num_tokens, num_fragments, len(records), max_length),
    )
