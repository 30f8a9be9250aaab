"""What a model that ignores context could reach: the unigram cross-entropy of held-out text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_jax.data.corpus import Corpus

# 2^16 records of 512 tokens are 33 M tokens: far more than a unigram distribution needs.
MAX_RECORDS = 1 << 16


def unigram_cross_entropy(
    train: Corpus, held_out: Corpus, special_ids: Sequence[int] = ()
) -> float:
    """Nats per token of the held-out split under the unigram frequencies of the training split.

    Counts are smoothed by adding one to every id of the vocabulary. A split of more than
    MAX_RECORDS records is represented by that many, evenly spaced. A masked-LM loss below this
    value has learned something of context.

    special_ids: that are never predicted, [UNK] among them, and so not counted.

    Raises:
      ValueError: a split holds no record, or a shard cannot be read.
    """
    seen = token_counts(train) + 1.0
    met = token_counts(held_out)
    inside = [token_id for token_id in special_ids if token_id < len(seen)]
    seen[inside] = met[inside] = 0.0
    with np.errstate(divide="ignore"):
        costs = np.where(met > 0, -np.log(seen / seen.sum()), 0.0)
    return float((met @ costs) / max(met.sum(), 1.0))


def token_counts(corpus: Corpus) -> np.ndarray:
    """How often each token id occurs: [vocab_size] float64; see `unigram_cross_entropy`."""
    if not len(corpus):
        raise ValueError(f"the {corpus.split} split of {corpus.directory} holds no record")
    wanted = np.unique(np.linspace(0, len(corpus) - 1, min(len(corpus), MAX_RECORDS)).astype(int))
    counts = np.zeros(corpus.manifest.vocab_size)
    for indices in np.array_split(wanted, -(-len(wanted) // 1024)):
        tokens = corpus.decode(indices, corpus.read(indices)).tokens
        counts += np.bincount(tokens, minlength=len(counts))
    return counts
