"""Compute, in batches, the vectors of words in sentences and the attention between the words."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax

from bert_jax.inference.predictor import BatchRunner, Predictor, Program, Row
from bert_jax.interpretability.trace import trace_attention, trace_states
from bert_jax.interpretability.traced_text import FloatArray, between_words, mean_of_words
from bert_jax.labeled_data.features import Features, build_sequences
from bert_jax.labeled_data.tokenized_text import TokenizedText, tokenize
from bert_jax.labeled_data.treebank import ParsedSentence
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import define_model
from bert_jax.models.options import DTypeName

_SENTENCES_AT_ONCE = 64


class WordReader(Predictor):
    """Runs a model on sentences that are split into words.

    Attributes:
      skipped: the number of sentences that have been skipped so far, keyed by reason.
    """

    heads = None
    made_by = "`bj.pretrain`"

    def __init__(
        self,
        work_dir: str | Path,
        *,
        batch_size: int = 32,
        dtype: DTypeName = "auto",
        step: int | None = None,
    ):
        """Load a model.

        Args:
          work_dir: the work directory of a run or of `bert-jax import`.
          batch_size: the number of sentences to process at once.
          dtype: the dtype to compute in; see `ComputeConfig`.
          step: the step of the checkpoint; if None, the best one of a fine-tuning run, or the
            newest one of any other model.
        """
        super().__init__(work_dir, batch_size=batch_size, dtype=dtype, step=step)
        self.skipped: Counter[str] = Counter()
        self._batch_size, self._dtype = batch_size, dtype

    def _rows(
        self, program: Program, sentences: Sequence[ParsedSentence]
    ) -> Iterator[tuple[ParsedSentence, TokenizedText, Row]]:
        """Yield each usable sentence with its tokens and the outputs that `program` computes."""
        for start in range(0, len(sentences), _SENTENCES_AT_ONCE):
            part = sentences[start : start + _SENTENCES_AT_ONCE]
            texts = [tokenize(self.tokenizer, sentence.words) for sentence in part]
            usable = [pair for pair in zip(part, texts, strict=True) if self._is_usable(*pair)]
            ids = [text.token_ids[1:-1] for _, text in usable]
            features = Features(build_sequences(self.tokenizer, ids, [None] * len(ids)))
            rows = self._run(program, features)
            for (sentence, text), row in zip(usable, rows, strict=True):
                yield sentence, text, row

    def _is_usable(self, sentence: ParsedSentence, text: TokenizedText) -> bool:
        if len(text.tokens) > self.max_length:
            self.skipped[f"longer than the model's {self.max_length} tokens"] += 1
            return False
        if len(text.words) - 2 != len(sentence.words):
            self.skipped["with a word for which the tokenizer has no token"] += 1
            return False
        return True


class WordAttention(WordReader):
    """Computes the attention between the words in each sentence."""

    def __call__(
        self, sentences: Sequence[ParsedSentence]
    ) -> Iterator[tuple[ParsedSentence, FloatArray]]:
        """Yield each usable sentence with its attention [layers, heads, words, words].

        The attention to and from `[CLS]` and `[SEP]` is left out, so each row sums to less than 1.
        """
        for sentence, text, row in self._rows(trace_attention, sentences):
            length = len(text.tokens)
            weights = between_words(row["attention"][:, :, :length, :length], text.words)
            yield sentence, weights[:, :, 1:-1, 1:-1]


class WordStates(WordReader):
    """Computes the vectors of the words in each sentence at every layer."""

    def __call__(
        self, sentences: Sequence[ParsedSentence]
    ) -> Iterator[tuple[ParsedSentence, FloatArray]]:
        """Yield each usable sentence with its word vectors [layers + 1, words, hidden_dim].

        The vector of a word is the mean of the vectors of its tokens.
        """
        for sentence, text, row in self._rows(trace_states, sentences):
            states = row["hidden_states"][:, : len(text.tokens)]
            yield sentence, mean_of_words(states, text.words)[:, 1:-1]

    def with_random_weights(self, seed: int) -> WordStates:
        """Return a copy that runs the model with randomly initialized parameters."""
        other = copy.copy(self)
        other.skipped = Counter()
        compute = ComputeConfig(dtype=self._dtype).resolve(jax.devices()[0], self.config.encoder)
        definition = define_model(self.config, compute)
        params = jax.jit(definition.init)(jax.random.key(seed))
        model = definition.module(params)
        other._runner = BatchRunner(model, self.max_length, self._batch_size)
        return other


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Return a line with the number of skipped sentences for each reason."""
    return "skipped sentences: " + ", ".join(f"{count:,} {name}" for name, count in skipped.items())
