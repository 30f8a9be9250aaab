"""Find the attention heads that follow dependency relations (Clark et al. 2019, section 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.interpretability.notebook import Cell, Shaded, paragraph, table
from bert_jax.interpretability.traced_text import COUNTED_FROM, FloatArray
from bert_jax.interpretability.word_states import WordAttention, describe_skipped
from bert_jax.labeled_data.treebank import ParsedSentence, Treebank
from bert_jax.models.options import DTypeName
from bert_jax.storage.uploads import write_json

Direction = Literal["dependent to head", "head to dependent"]
DIRECTIONS: tuple[Direction, ...] = ("dependent to head", "head to dependent")
ALL = "all"
# Candidates for the fixed-offset baseline of Clark et al.; few syntactic heads are farther away.
OFFSETS = range(-3, 4)
MIN_COUNT = 100
# Notes to print below tables in notebooks.
SHADES = (
    "Blue heads are more accurate than the best fixed offset (the baseline), orange heads less."
)
TOO_RARE = f"No relation occurs {MIN_COUNT} times. To list rarer relations, call lines(min_count)."


class BestHead(NamedTuple):
    """The attention head and the fixed offset that predict a relation best.

    Attributes:
      relation: the name of the dependency relation.
      occurrences: the number of times the relation occurs.
      layer: the layer, counted from 0.
      head: the attention head, counted from 0.
      direction: whether dependents attend to their syntactic heads, or the other way around.
      accuracy: the fraction of dependents whose syntactic head is predicted correctly.
      offset: the best fixed offset from a dependent to its syntactic head, in words.
      offset_accuracy: the fraction of dependents whose syntactic head is at this offset.
    """

    relation: str
    occurrences: int
    layer: int
    head: int
    direction: Direction
    accuracy: float
    offset: int
    offset_accuracy: float

    @property
    def name(self) -> str:
        """The layer and the head, both counted from 1, as in "3-2"."""
        return f"{self.layer + 1}-{self.head + 1}"


def _row(best: BestHead) -> list[Cell]:
    """Return a head as a row of a table."""
    return [
        best.relation,
        f"{best.occurrences:,}",
        best.name,
        Shaded(f"{best.accuracy:.1%}", 2 * (best.accuracy - best.offset_accuracy)),
        f"{best.offset:+}",
        f"{best.offset_accuracy:.1%}",
        best.direction,
    ]


@dataclass(frozen=True, eq=False)
class HeadProbe:
    """How well every attention head predicts every dependency relation.

    Printing this object shows a table of the best heads, which Jupyter displays in color.

    Attributes:
      relations: "all", followed by the relations in the treebank, the most frequent first.
      counts: int64 [relations], the number of times each relation occurs.
      accuracies: float64 [2, relations, layers, heads]; the first axis is `DIRECTIONS`.
      offset_accuracies: float64 [relations, offsets]; the second axis is `OFFSETS`.
      num_sentences: the number of sentences that were used.
      skipped: the number of skipped sentences, keyed by reason.
    """

    relations: tuple[str, ...]
    counts: NDArray[np.int64] = field(repr=False)
    accuracies: NDArray[np.float64] = field(repr=False)
    offset_accuracies: NDArray[np.float64] = field(repr=False)
    num_sentences: int
    skipped: dict[str, int]

    def best(self, min_count: int = MIN_COUNT) -> list[BestHead]:
        """Return the best head for each relation with at least `min_count` occurrences."""
        return [
            self._best(number)
            for number, relation in enumerate(self.relations)
            if self.counts[number] >= min_count and relation not in ("root", "punct")
        ]

    def _best(self, number: int) -> BestHead:
        scores = self.accuracies[:, number]
        direction, layer, head = np.unravel_index(int(scores.argmax()), scores.shape)
        offset = int(self.offset_accuracies[number].argmax())
        return BestHead(
            self.relations[number],
            int(self.counts[number]),
            int(layer),
            int(head),
            DIRECTIONS[int(direction)],
            float(scores.max()),
            OFFSETS[offset],
            float(self.offset_accuracies[number, offset]),
        )

    def accuracy_of(self, best: BestHead) -> float:
        """Return the accuracy of a given head for its relation; 0 if the relation is absent."""
        if best.relation not in self.relations:
            return 0.0
        index = DIRECTIONS.index(best.direction), self.relations.index(best.relation)
        return float(self.accuracies[(*index, best.layer, best.head)])

    def lines(self, min_count: int = MIN_COUNT) -> Iterator[str]:
        """Yield a table of the best heads, line by line, with layers and heads counted from 1."""
        width = max(map(len, self.relations))
        yield (
            f"{'relation':{width}}  {'count':>7}  {'head':>6}  {'accuracy':>8}  {'offset':>6}  "
            f"{'baseline':>8}  direction"
        )
        for best in self.best(min_count):
            yield (
                f"{best.relation:{width}}  {best.occurrences:7,}  {best.name:>6}  "
                f"{best.accuracy:8.1%}  {best.offset:+6}  {best.offset_accuracy:8.1%}  "
                f"{best.direction}"
            )
        yield ""
        yield from self._notes()

    def _notes(self) -> Iterator[str]:
        yield f"{self.num_sentences:,} sentences with {self.counts[0]:,} words"
        if self.skipped:
            yield describe_skipped(self.skipped)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        best = self.best()
        header = ("relation", "count", "head", "accuracy", "offset", "baseline", "direction")
        notes = [SHADES if best else TOO_RARE, *self._notes()]
        return table(header, map(_row, best)) + "".join(map(paragraph, notes))

    def save(self, path: str | Path) -> None:
        """Write all counts and accuracies to a JSON file."""
        write_json(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return all counts and accuracies as JSON values.

        For each relation and direction, there is one list per layer, with one accuracy per head.
        """
        return {
            **COUNTED_FROM,
            "sentences": self.num_sentences,
            "skipped": self.skipped,
            "relations": {
                name: {
                    "count": int(self.counts[number]),
                    **{
                        direction: self.accuracies[index, number].round(4).tolist()
                        for index, direction in enumerate(DIRECTIONS)
                    },
                    "offsets": {
                        str(offset): round(float(accuracy), 4)
                        for offset, accuracy in zip(
                            OFFSETS, self.offset_accuracies[number], strict=True
                        )
                    },
                }
                for number, name in enumerate(self.relations)
            },
        }


OnProgress = Callable[[str], None]


def probe_heads(
    model: str | Path,
    treebank: Treebank,
    *,
    step: int | None = None,
    batch_size: int = 32,
    dtype: DTypeName = "auto",
    on_progress: OnProgress | None = None,
) -> HeadProbe:
    """Measure how well each attention head predicts the syntactic head of each word.

    The predicted syntactic head of a word is the word that it attends to most or, in the other
    direction, the word that attends to it most. Attention to the word itself, `[CLS]` and `[SEP]`
    is ignored. Words with multiple tokens are treated as in `TracedText.attention_between_words`.

    Args:
      model: the work directory of a run or of `bert-jax import`.
      treebank: the sentences.
      step: the step of the checkpoint; if None, the best one of a fine-tuning run, or the newest
        one of any other model.
      batch_size: the number of sentences to compute at once.
      dtype: the dtype to compute in; see `ComputeConfig`.
      on_progress: called with a progress message after each sentence.

    Raises:
      ValueError: there is no such model, or none of the sentences can be used.
    """
    attention = WordAttention(model, batch_size=batch_size, dtype=dtype, step=step)
    encoder = attention.config.encoder
    counts = _Counts(treebank, encoder.num_layers, encoder.num_heads)
    for sentence, weights in attention(treebank.sentences):
        counts.add(sentence, weights)
        if on_progress is not None:
            on_progress(f"{counts.num_sentences:,} of {len(treebank):,} sentences")
    if not counts.num_sentences:
        reasons = describe_skipped(attention.skipped)
        raise ValueError(f"{treebank.path}: none of the sentences can be used; {reasons}")
    return counts.result(dict(attention.skipped))


class _Counts:
    """Counts each head's correct predictions."""

    def __init__(self, treebank: Treebank, num_layers: int, num_heads: int):
        names = [name for name, _ in treebank.relation_counts().most_common()]
        self._index = {name: number for number, name in enumerate([ALL, *names])}
        count = len(self._index)
        self._counts = np.zeros(count, np.int64)
        self._correct = np.zeros((2, count, num_layers, num_heads), np.int64)
        self._at_offset = np.zeros((count, len(OFFSETS)), np.int64)
        self.num_sentences = 0

    def add(self, sentence: ParsedSentence, attention: FloatArray) -> None:
        """Count a sentence's correct predictions, given attention [layers, heads, words, words]."""
        words = np.arange(len(sentence.words))
        others = np.where(np.eye(len(words), dtype=np.bool_), -1.0, attention)
        predicted = np.stack([others.argmax(axis=-1), others.argmax(axis=-2)])
        correct = predicted[..., _predictors(sentence)] == sentence.heads
        at_offset = words[:, None] + np.array(OFFSETS) == sentence.heads[:, None]
        at_offset &= sentence.heads[:, None] >= 0
        relations = np.array([self._index[name] for name in sentence.relations])
        for number in (np.zeros_like(relations), relations):
            np.add.at(self._counts, number, 1)
            np.add.at(self._at_offset, number, at_offset)
            for total, each in zip(self._correct, correct, strict=True):
                np.add.at(total, number, np.moveaxis(each, -1, 0))
        self.num_sentences += 1

    def result(self, skipped: dict[str, int]) -> HeadProbe:
        """Return the accuracies."""
        counts = np.maximum(self._counts, 1)
        return HeadProbe(
            tuple(self._index),
            self._counts,
            self._correct / counts[:, None, None],
            self._at_offset / counts[:, None],
            self.num_sentences,
            skipped,
        )


_POSSESSIVES = ("nmod:poss", "poss")
_MARKERS = ("'s", "\u2019s", "'", "\u2019")


def _predictors(sentence: ParsedSentence) -> NDArray[np.int64]:
    """Return, for each word, the index of the word whose attention predicts its syntactic head.

    This is usually the word itself. For a possessor such as "dog" in "dog 's tail", it is the
    marker "'s", whose attention predicts the possessor's head, as in Clark et al.
    """
    indices = np.arange(len(sentence.words))
    for index, (relation, marker) in enumerate(
        zip(sentence.relations, sentence.words[1:], strict=False)
    ):
        if relation in _POSSESSIVES and marker in _MARKERS:
            indices[index] = index + 1
    return indices
