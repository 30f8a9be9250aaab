"""Score a model repeatedly on the same texts and minimal pairs during training."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.sharding import Mesh

from bert_jax.language_scores.batch_limits import SENTENCE_TOKENS, TEXT_TOKENS, BatchLimits
from bert_jax.language_scores.masked_lm import MaskedLM, MaskedLMPrograms, NotFinite
from bert_jax.language_scores.masked_rows import EncodedSentence
from bert_jax.language_scores.metric_names import (
    phenomenon_accuracy,
    text_metric,
    text_names,
)
from bert_jax.language_scores.minimal_pairs import (
    by_phenomenon,
    encode_pairs,
    mean_accuracy,
    paradigm_scores,
)
from bert_jax.language_scores.pair_file import MinimalPair, read_minimal_pairs, sample_pairs
from bert_jax.language_scores.pseudo_likelihood import SentenceScorer
from bert_jax.language_scores.text_rows import SPECIAL_TOKENS, TextRows, read_text_rows, row_groups
from bert_jax.language_scores.text_scores import text_metrics
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import ModelDefinition, Parameters
from bert_jax.text.sources import SourceOptions, expand_inputs
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.reports import PAIRS_ACCURACY

# This is the default seed of `score_text`.
_SEED = 0


class BatchShape(NamedTuple):
    """The number of rows in a batch, over all devices, and the number of tokens per row."""

    rows: int
    length: int


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Texts and minimal pairs that have been read and encoded.

    Attributes:
      tokenizer: the model's tokenizer.
      texts: the texts, keyed by name.
      pairs: the minimal pairs.
      sentences: the two sentences of each pair, one after the other.
    """

    tokenizer: Tokenizer
    texts: Mapping[str, TextRows]
    pairs: Sequence[MinimalPair]
    sentences: Sequence[EncodedSentence]

    @property
    def fingerprint(self) -> str:
        """A checksum of all tokens."""
        digest = hashlib.sha256()
        for name, rows in self.texts.items():
            digest.update(name.encode())
            for part in (*rows.fragments, *(each.token_ids for each in rows.sentences)):
                digest.update(part.tobytes() + b"|")
        for pair in self.pairs:
            digest.update(f"{pair.paradigm}|{pair.phenomenon}".encode())
        for sentence in self.sentences:
            digest.update(sentence.token_ids.tobytes() + b"|")
        return digest.hexdigest()

    def text_batches(self, limits: BatchLimits) -> Iterator[BatchShape]:
        """Yield the shapes of the batches for the texts' losses."""
        for rows in self.texts.values():
            for group in row_groups(rows.fragments, TEXT_TOKENS.here, limits):
                yield BatchShape(group.num_rows, group.length)

    def sentence_batch(self, limits: BatchLimits) -> BatchShape | None:
        """Return the shape of a batch for the longest sentence of the minimal pairs, if any."""
        if not self.sentences:
            return None
        # A sentence has one row for each of its tokens.
        tokens = max(len(sentence.token_ids) for sentence in self.sentences)
        length = tokens + SPECIAL_TOKENS
        return BatchShape(limits.num_rows(length, SENTENCE_TOKENS.here, tokens), length)

    def lines(self) -> Iterator[str]:
        """Yield a line for each text, and one for the minimal pairs."""
        for name, rows in self.texts.items():
            sample = f"{len(rows.sentences):,} of {rows.num_sentences:,} sentences"
            more = f", pseudo-perplexity of {sample}" if rows.sentences else ""
            yield f"text       {name}: {rows.tokens:,} tokens{more}"
        if self.pairs:
            paradigms = len({pair.paradigm for pair in self.pairs})
            yield f"pairs      {len(self.pairs):,} minimal pairs, {paradigms} paradigms"


def read_evaluation_set(
    texts: Sequence[str],
    minimal_pairs: str,
    tokenizer: Tokenizer,
    *,
    text_length: int,
    max_sentences: int,
    max_pairs: int,
    max_positions: int,
) -> EvaluationSet:
    """Read texts and minimal pairs, and check that they can be scored.

    Args:
      texts: files and directories of text, in any format that `prepare` reads.
      minimal_pairs: the data for `score_minimal_pairs`; "" for none.
      tokenizer: the model's tokenizer.
      text_length: the maximum number of tokens in a row of text, including special tokens.
      max_sentences: the maximum number of sentences to use from each text for the
        pseudo-perplexity.
      max_pairs: the maximum number of pairs from each paradigm; 0 for all.
      max_positions: the model's number of positions.

    Raises:
      ValueError: a file is missing, unreadable or empty, or a pair cannot be scored.
    """
    for path in texts:
        # Find all missing files before any file is read.
        expand_inputs([path])
    pairs: list[MinimalPair] = []
    if minimal_pairs:
        pairs = sample_pairs(read_minimal_pairs(minimal_pairs), max_pairs or None)
    sentences = encode_pairs(pairs, tokenizer, max_positions)
    rows = {
        name: read_text_rows(
            [path],
            tokenizer,
            text_length,
            max_sentences=max_sentences,
            seed=_SEED,
            language="en",
            sources=SourceOptions(),
        )
        for name, path in zip(text_names(texts, "texts"), texts, strict=True)
    }
    return EvaluationSet(tokenizer, rows, pairs, sentences)


class LanguageMetrics:
    """Computes the scores on an evaluation set for different parameters of one model.

    The scores are equal to those that `score_text` and `score_minimal_pairs` return.

    Args:
      data: the texts and the minimal pairs.
      definition: a model with an encoder and a masked-LM head.
      encoder: the encoder's config.
      mesh: the device mesh that the parameters are on.
      stored_names: see `MaskedLMPrograms`.
    """

    def __init__(
        self,
        data: EvaluationSet,
        definition: ModelDefinition[Any],
        encoder: EncoderConfig,
        mesh: Mesh,
        stored_names: Mapping[str, str] | None = None,
    ):
        self._data = data
        self.programs = MaskedLMPrograms(definition, encoder, mesh, stored_names)

    def __call__(self, parameters: Parameters, after_batch: Callable[[], None]) -> dict[str, float]:
        """Return all scores, keyed by metric name; NaN if the model's outputs are not finite.

        Args:
          parameters: the model's parameters.
          after_batch: see `MaskedLMPrograms.bind`.
        """
        model = self.programs.bind(parameters, after_batch)
        metrics: dict[str, float] = {}
        for name, rows in self._data.texts.items():
            metrics |= self._on_text(name, rows, model)
        return metrics | (self._on_pairs(model) if self._data.pairs else {})

    def _on_text(self, name: str, rows: TextRows, model: MaskedLM) -> dict[str, float]:
        try:
            scores = text_metrics(model, self._data.tokenizer, rows, seed=_SEED)
        except NotFinite:
            return {text_metric(name, "mlm_loss"): math.nan}
        del scores["predictions"]
        return {text_metric(name, score): value for score, value in scores.items()}

    def _on_pairs(self, model: MaskedLM) -> dict[str, float]:
        data = self._data
        try:
            found = SentenceScorer(model, data.tokenizer)(data.sentences)
        except NotFinite:
            return {PAIRS_ACCURACY: math.nan}
        scores = paradigm_scores(data.pairs, found.reshape(-1, 2))
        phenomena = by_phenomenon(scores).items()
        return {PAIRS_ACCURACY: mean_accuracy(scores)} | {
            phenomenon_accuracy(name): mean_accuracy(each) for name, each in phenomena
        }
