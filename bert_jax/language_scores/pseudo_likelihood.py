"""Compute pseudo-log-likelihoods: how probable a masked language model finds each sentence.

Every token is masked in turn, and the log-probabilities of the masked tokens are added (Salazar et
al. 2020, "Masked language model scoring", section 2).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import overload

import jax
import numpy as np
from numpy.typing import NDArray

from bert_jax.inference.predictor import Predictor, as_list, check_strings, refuse
from bert_jax.labeled_data.feature_batches import MULTIPLE
from bert_jax.language_scores.batch_limits import SENTENCE_TOKENS, BatchLimits
from bert_jax.language_scores.masked_lm import MaskedLM, NotFinite
from bert_jax.language_scores.masked_rows import (
    EncodedSentence,
    MaskedRows,
    encode_sentences,
    masked_rows,
    sentence_problem,
)
from bert_jax.local_paths import naming_urls
from bert_jax.models.options import DTypeName
from bert_jax.models.pretraining_models import PretrainingModel
from bert_jax.tokenizers.tokenizer import Tokenizer

# There are two row lengths, and one more for every 2,000 rows, but at most 12. Compiling for one
# more length takes about as long as computing a few thousand rows with BERT-mini.
_MAX_LENGTHS, _ROWS_PER_LENGTH = 12, 2000
# Up to this length, rows may have any number of tokens; beyond it, only multiples of 8.
_LONGEST_EXACT = 512
# The maximum number of tokens in the rows that are in memory at the same time.
_TOKENS_AT_ONCE = 1 << 18

OnTokens = Callable[[int, int], None]


class SentenceScorer:
    """Computes pseudo-log-likelihoods of encoded sentences.

    Args:
      model: a model with a masked-LM head.
      tokenizer: the model's tokenizer.
    """

    def __init__(self, model: MaskedLM, tokenizer: Tokenizer):
        self._model = model
        self._tokenizer = tokenizer

    def __call__(
        self, sentences: Sequence[EncodedSentence], on_tokens: OnTokens | None = None
    ) -> NDArray[np.float64]:
        """Return the pseudo-log-likelihood of each sentence, in nats.

        Rows with exactly the same masked input are computed only once, and only the logits of the
        masked position are computed.

        Args:
          sentences: the sentences; one without tokens has the pseudo-log-likelihood 0.
          on_tokens: called with the number of tokens done so far and the total number of tokens.
            Both count repeated sentences only once.

        Raises:
          NotFinite: a log-probability is not finite.
        """
        numbers: dict[tuple[bytes, bytes], int] = {}
        each = np.array(
            [
                numbers.setdefault((ids.tobytes(), words.tobytes()), len(numbers))
                for ids, words in sentences
            ],
            np.int64,
        )
        _, first = np.unique(each, return_index=True)
        different = [sentences[index] for index in first]
        scores = np.zeros(len(different))
        done, total = 0, sum(len(sentence.token_ids) for sentence in different)
        for indices, length in _plan(different, self._model.limits):
            part = [different[index] for index in indices]
            rows = masked_rows(part, length, self._tokenizer)
            found = self._log_probabilities(rows)[rows.row, rows.slot].astype(np.float64)
            counts = np.array([len(sentence.token_ids) for sentence in part])
            scores[indices] = np.add.reduceat(found, np.cumsum(counts) - counts)
            done += int(counts.sum())
            if on_tokens is not None:
                on_tokens(done, total)
        return scores[each]

    def _log_probabilities(self, rows: MaskedRows) -> NDArray[np.float32]:
        """Return the log-probability of every label, shaped like `rows.labels`."""
        length = rows.token_ids.shape[1]
        limits, threads = self._model.limits, self._model.num_threads
        size = limits.num_rows(length, SENTENCE_TOKENS.here, len(rows.token_ids))
        # On a CPU, the batches of all threads are in memory at the same time.
        if jax.default_backend() == "cpu":
            threads = min(threads, limits.num_batches(size, length))

        def compute(start: int) -> NDArray[np.float32]:
            return np.asarray(self._model.log_probabilities(_batch(rows, start, size)))

        pool = ThreadPoolExecutor(threads)
        try:
            results = list(pool.map(compute, range(0, len(rows.token_ids), size)))
        finally:
            pool.shutdown(cancel_futures=True)
        values = np.concatenate(results)[: len(rows.token_ids)]
        if not np.isfinite(values).all():
            raise NotFinite(
                "the model's log-probabilities are not all finite. Check whether its training "
                "diverged"
            )
        return values


def _plan(
    sentences: Sequence[EncodedSentence], limits: BatchLimits
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield the indices and the row length of each group of sentences, longest first."""
    counts = np.array([len(sentence.token_ids) for sentence in sentences], np.int64)
    filled = np.flatnonzero(counts)
    if not len(filled):
        return
    # A sentence of n tokens has n rows of n + 2 positions.
    multiple = 1 if counts.max() + 2 <= _LONGEST_EXACT else MULTIPLE
    num_lengths = min(_MAX_LENGTHS, 2 + int(counts.sum()) // _ROWS_PER_LENGTH)
    lengths = limits.row_lengths(
        counts[filled] + 2, num_lengths, weights=counts[filled], multiple=multiple
    )
    bucket = np.searchsorted(lengths, counts + 2)
    for number in reversed(range(len(lengths))):
        members = filled[bucket[filled] == number]
        part = (np.cumsum(counts[members]) - counts[members]) * lengths[number] // _TOKENS_AT_ONCE
        for each in np.unique(part):
            yield members[part == each], lengths[number]


def _batch(rows: MaskedRows, start: int, size: int) -> Mapping[str, NDArray[np.int32]]:
    """Return a batch of `size` rows, repeating the last row if there are not enough."""
    index = np.minimum(np.arange(start, start + size), len(rows.token_ids) - 1)
    return {
        "token_ids": rows.token_ids[index],
        "lengths": rows.lengths[index],
        "positions": rows.positions[index],
        "labels": rows.labels[index],
    }


class PseudoLikelihood(Predictor):
    """Computes the pseudo-log-likelihood of sentences, in nats.

    >>> score = PseudoLikelihood("runs/mine")                                 # doctest: +SKIP
    >>> score(["The cats sleep.", "The cats sleeps."])                        # doctest: +SKIP
    [-19.4, -27.9]
    """

    heads = ("pretraining", "masked_lm")
    purpose = "score text"
    made_by = "`bj.pretrain`"

    @naming_urls()
    def __init__(
        self,
        work_dir: str | os.PathLike[str],
        *,
        whole_words: bool = False,
        max_length: int | None = None,
        dtype: DTypeName = "float32",
        step: int | None = None,
    ):
        """Load the best checkpoint in a work directory, or the newest if none is marked best.

        Args:
          work_dir: the work directory of a run or of `bert-jax import`.
          whole_words: whether the tokens that follow a masked token in the same word are masked
            too. Otherwise, they reveal the token, and rare words that are split into many pieces
            get too high a score (Kauf and Ivanova 2023).
          max_length: the maximum number of tokens in a sentence, including special tokens;
            defaults to the model's number of positions.
          dtype: the dtype to compute in; see `Predictor`.
          step: the step of the checkpoint; if None, the best or newest one.

        Raises:
          ValueError: there is no such model, or it has no masked-LM head.
        """
        super().__init__(work_dir, max_length=max_length, dtype=dtype, step=step)
        self.whole_words = whole_words
        assert isinstance(self.model, PretrainingModel), "a model with a masked-LM head"
        self.masked_lm = MaskedLM.of(self.model)
        self._scorer = SentenceScorer(self.masked_lm, self.tokenizer)

    @overload
    def __call__(self, text: str) -> float: ...
    @overload
    def __call__(self, text: list[str]) -> list[float]: ...
    def __call__(self, text: str | list[str]) -> float | list[float]:
        """Return the pseudo-log-likelihood of a sentence, or of each sentence in a list.

        Args:
          text: a sentence or a list of sentences.

        Raises:
          ValueError: `text` is neither a string nor a list.
          UnusableText: a sentence is not valid Unicode, has no tokens, or is too long.
        """
        texts = [text] if isinstance(text, str) else as_list(text)
        check_strings([[each] for each in texts])
        encoded = self.encode(texts)
        refuse(
            {
                index: problem
                for index, sentence in enumerate(encoded)
                if (problem := self.problem(sentence))
            },
            len(texts),
        )
        scores = self.score(encoded).tolist()
        return scores[0] if isinstance(text, str) else scores

    def encode(self, texts: Sequence[str]) -> list[EncodedSentence]:
        """Encode sentences for `score`."""
        return encode_sentences(self.tokenizer, texts, whole_words=self.whole_words)

    def problem(self, sentence: EncodedSentence) -> str:
        """Return the reason why a sentence cannot be scored, or "" if it can."""
        return sentence_problem(sentence, self.max_length)

    def score(
        self, sentences: Sequence[EncodedSentence], on_tokens: OnTokens | None = None
    ) -> NDArray[np.float64]:
        """Return the pseudo-log-likelihood of each encoded sentence; see `SentenceScorer`."""
        return self._scorer(sentences, on_tokens)
