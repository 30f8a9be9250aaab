"""Score a pretrained model on minimal pairs of sentences, such as BLiMP.

A pair counts as right if the model finds the acceptable sentence more probable. The accuracy on
several paradigms is the mean of their accuracies (Warstadt et al. 2020, "BLiMP", section 5).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.language_scores.masked_rows import (
    EncodedSentence,
    encode_sentences,
    sentence_problem,
)
from bert_jax.language_scores.pair_file import MinimalPair, read_minimal_pairs, sample_pairs
from bert_jax.language_scores.progress import OnProgress, progress_line
from bert_jax.language_scores.pseudo_likelihood import PseudoLikelihood
from bert_jax.local_paths import naming_urls
from bert_jax.plots import new_figure, plain, png_of, show_percent
from bert_jax.runs.named_checkpoint import NamedCheckpoint, name_checkpoints
from bert_jax.storage.uploads import write_json, write_result
from bert_jax.tokenizers.tokenizer import Tokenizer

CHANCE = 0.5


@dataclass(frozen=True)
class ParadigmScore:
    """A model's score on the pairs of one paradigm.

    Attributes:
      paradigm: the name of the paradigm.
      phenomenon: the phenomenon that it tests.
      pairs: the number of pairs.
      right: the number of pairs whose acceptable sentence is more probable.
    """

    paradigm: str
    phenomenon: str
    pairs: int
    right: int

    @property
    def accuracy(self) -> float:
        """The fraction of pairs that the model gets right."""
        return self.right / self.pairs


@dataclass(frozen=True, eq=False)
class MinimalPairScores:
    """A model's scores on minimal pairs, which print as a table.

    Attributes:
      checkpoint: the checkpoint that was scored.
      data: the file, directory or pattern that contains the pairs.
      whole_words: whether the rest of the word was masked along with each token.
      paradigms: the score on each paradigm, in the order of the data.
      pairs: the pairs that were scored.
      log_likelihoods: float64 [pairs, 2], the pseudo-log-likelihood of the acceptable and of the
        unacceptable sentence, in nats.
    """

    checkpoint: NamedCheckpoint
    data: str
    whole_words: bool
    paradigms: tuple[ParadigmScore, ...]
    pairs: Sequence[MinimalPair] = field(repr=False)
    log_likelihoods: np.ndarray = field(repr=False)

    @property
    def accuracy(self) -> float:
        """The mean accuracy over all paradigms."""
        return mean_accuracy(self.paradigms)

    @property
    def num_ties(self) -> int:
        """The number of pairs with equal scores for both sentences. Such ties count as wrong."""
        return int((self.log_likelihoods[:, 0] == self.log_likelihoods[:, 1]).sum())

    @property
    def by_phenomenon(self) -> dict[str, float]:
        """The mean accuracy over the paradigms of each phenomenon, keyed by its name."""
        return {name: mean_accuracy(scores) for name, scores in self._phenomena().items()}

    def _phenomena(self) -> dict[str, list[ParadigmScore]]:
        return by_phenomenon(self.paradigms)

    def lines(self) -> Iterator[str]:
        """Yield a table with a row for each phenomenon, followed by the rows of its paradigms."""
        yield f"model      {self.checkpoint}"
        yield f"data       {self.data}: {len(self.pairs):,} pairs, {len(self.paradigms)} paradigms"
        masks = "tokens, with the rest of their word" if self.whole_words else "single tokens"
        yield f"masked     {masks}"
        if self.num_ties:
            yield f"ties       {self.num_ties:,} pairs with equal scores, which count as wrong"
        width = max(len(score.paradigm) for score in self.paradigms) + 2
        yield f"{'':{width}}  accuracy   pairs"
        for phenomenon, scores in self._phenomena().items():
            pairs = sum(score.pairs for score in scores)
            yield f"{phenomenon:{width}}  {mean_accuracy(scores):8.1%}  {pairs:6,}"
            for score in scores:
                name = f"  {score.paradigm}"
                yield f"{name:{width}}  {score.accuracy:8.1%}  {score.pairs:6,}"
        yield f"{'all paradigms':{width}}  {self.accuracy:8.1%}  {len(self.pairs):6,}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_json(self) -> dict[str, Any]:
        """Return all accuracies as plain JSON values."""
        return {
            "checkpoint": self.checkpoint.to_json(),
            "data": self.data,
            "whole_words": self.whole_words,
            "pairs": len(self.pairs),
            "ties": self.num_ties,
            "accuracy": self.accuracy,
            "phenomena": self.by_phenomenon,
            "paradigms": {
                score.paradigm: {
                    "phenomenon": score.phenomenon,
                    "pairs": score.pairs,
                    "accuracy": score.accuracy,
                }
                for score in self.paradigms
            },
        }

    def save(self, path: str | Path) -> None:
        """Write all accuracies to a JSON file."""
        write_json(path, self.to_json())

    def plot(self, path: str | Path) -> None:
        """Plot the accuracy on each phenomenon (bars) and paradigm (dots), as a PNG image."""
        phenomena = self._phenomena()
        figure = new_figure(8, 1.5 + 0.34 * len(phenomena))
        axes = figure.subplots()
        names = sorted(phenomena, key=lambda name: mean_accuracy(phenomena[name]))
        axes.barh(names, [mean_accuracy(phenomena[name]) for name in names], color="#9ecae1")
        dots = [(score.accuracy, name) for name in names for score in phenomena[name]]
        accuracies, rows = zip(*dots, strict=True)
        axes.scatter(accuracies, rows, s=14, color="#08519c", zorder=3)
        axes.axvline(CHANCE, color="#888888", linestyle=":", linewidth=1)
        axes.set_yticks(range(len(names)), [plain(name.replace("_", " ")) for name in names])
        axes.set_xlim(0, 1)
        show_percent(axes.xaxis, decimals=0)
        axes.set_xlabel("accuracy (dots: paradigms, dotted line: chance)")
        axes.set_title(plain(f"{self.checkpoint.model}: {self.accuracy:.1%} over all paradigms"))
        write_result(path, png_of(figure))


@naming_urls()
def score_minimal_pairs(
    work_dir: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    whole_words: bool = False,
    max_pairs: int | None = None,
    step: int | None = None,
    on_progress: OnProgress | None = None,
) -> MinimalPairScores:
    """Compare the pseudo-log-likelihoods of the two sentences of each minimal pair.

    Args:
      work_dir: the work directory of a pretraining run or of `bert-jax import`.
      data: a JSON Lines file (plain or compressed), a directory of such files, or a pattern. The
        files need the fields of BLiMP: `sentence_good`, `sentence_bad`, `UID` and
        `linguistics_term`.
      whole_words: whether to mask, along with each token, the tokens that follow it in the same
        word (Kauf and Ivanova 2023).
      max_pairs: the maximum number of pairs from each paradigm, drawn as a fixed random sample;
        None to use all pairs.
      step: the step of the checkpoint; if None, the best or newest one.
      on_progress: called with progress messages.

    Raises:
      ValueError: the model has no masked-LM head, or the data cannot be used: a field is missing,
        every pair has identical sentences, or a sentence is too long for the model. All of this is
        checked before any pair is scored.
    """
    if max_pairs is not None and max_pairs < 1:
        raise ValueError(f"max_pairs={max_pairs}: expected 1 or more, or None for all pairs.")
    pairs = sample_pairs(read_minimal_pairs(data), max_pairs)
    model = PseudoLikelihood(work_dir, whole_words=whole_words, step=step)
    (checkpoint,) = name_checkpoints([work_dir], [step])
    encoded = encode_pairs(pairs, model.tokenizer, model.max_length, whole_words=whole_words)
    report = None if on_progress is None else progress_line("tokens", on_progress)
    scores = model.score(encoded, report).reshape(-1, 2)
    return MinimalPairScores(
        checkpoint, os.fspath(data), whole_words, paradigm_scores(pairs, scores), pairs, scores
    )


def encode_pairs(
    pairs: Sequence[MinimalPair],
    tokenizer: Tokenizer,
    max_length: int,
    *,
    whole_words: bool = False,
) -> list[EncodedSentence]:
    """Return the acceptable and the unacceptable sentence of each pair, one after the other.

    Args:
      pairs: the pairs to encode.
      tokenizer: the model's tokenizer.
      max_length: the maximum number of tokens in a sentence, including special tokens.
      whole_words: see `encode_sentences`.

    Raises:
      ValueError: a sentence has no tokens or is too long; the message gives its file and line.
    """
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    encoded = encode_sentences(tokenizer, texts, whole_words=whole_words)
    for index, sentence in enumerate(encoded):
        if problem := sentence_problem(sentence, max_length):
            raise ValueError(f"{pairs[index // 2].location}: {problem}.")
    return encoded


def paradigm_scores(
    pairs: Sequence[MinimalPair], log_likelihoods: np.ndarray
) -> tuple[ParadigmScore, ...]:
    """Count the pairs that the model gets right, by paradigm, in order of first occurrence."""
    right = log_likelihoods[:, 0] > log_likelihoods[:, 1]
    counts: dict[str, list[int]] = {}
    phenomena: Mapping[str, str] = {pair.paradigm: pair.phenomenon for pair in pairs}
    for pair, is_right in zip(pairs, right.tolist(), strict=True):
        count = counts.setdefault(pair.paradigm, [0, 0])
        count[0] += 1
        count[1] += is_right
    return tuple(
        ParadigmScore(name, phenomena[name], total, correct)
        for name, (total, correct) in counts.items()
    )


def by_phenomenon(scores: Sequence[ParadigmScore]) -> dict[str, list[ParadigmScore]]:
    """Return the scores of each phenomenon, in alphabetical order of the phenomena."""
    phenomena: dict[str, list[ParadigmScore]] = {}
    for score in scores:
        phenomena.setdefault(score.phenomenon, []).append(score)
    return dict(sorted(phenomena.items()))


def mean_accuracy(scores: Sequence[ParadigmScore]) -> float:
    """Return the mean of the accuracies of several paradigms."""
    return sum(score.accuracy for score in scores) / len(scores)
