"""Compare the vectors of layers, checkpoints and models with centered kernel alignment (CKA)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_jax.interpretability.head_probe import OnProgress
from bert_jax.interpretability.notebook import paragraph, shaded_table
from bert_jax.interpretability.plots import heat_map
from bert_jax.interpretability.traced_text import FloatArray, layer_names
from bert_jax.interpretability.word_states import WordStates, describe_skipped
from bert_jax.labeled_data.treebank import ParsedSentence, Treebank
from bert_jax.plots import png_of
from bert_jax.runs.named_checkpoint import NamedCheckpoint, name_checkpoints
from bert_jax.storage.locations import absolute
from bert_jax.storage.uploads import write_json, write_result
from bert_jax.storage.urls import Location


@dataclass(frozen=True, eq=False)
class Similarity:
    """The similarity of every layer of one model to every layer of another.

    Printing this object shows a table, which Jupyter displays in color.

    Attributes:
      first: the checkpoint of the first model.
      second: the checkpoint of the second model.
      cka: float64 [layers + 1, layers + 1], from 0 to 1; row and column 0 are the embeddings. The
        rows are the layers of the first model.
      treebank: the file that the words come from.
      num_sentences: the number of sentences that were used.
      num_words: the number of words whose vectors were compared.
    """

    first: NamedCheckpoint
    second: NamedCheckpoint
    cka: NDArray[np.float64] = field(repr=False)
    treebank: Location
    num_sentences: int
    num_words: int

    def lines(self) -> Iterator[str]:
        """Yield a table with a row for each layer of the first model."""
        names = ["emb.", *map(str, range(1, self.cka.shape[1]))]
        yield f"{'layer':>5}  " + "  ".join(f"{name:>5}" for name in names)
        for layer, row in enumerate(self.cka):
            cells = "  ".join(f"{value:5.2f}" for value in row)
            yield f"{str(layer) if layer else 'emb.':>5}  {cells}"
        yield ""
        yield f"rows: {self.first}; columns: {self.second}"
        yield self._note

    @property
    def _note(self) -> str:
        return f"linear CKA of {describe_words(self.treebank, self.num_sentences, self.num_words)}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows, columns = map(layer_names, self.cka.shape)
        shown = paragraph(f"rows: {self.first}; columns: {self.second}") + paragraph(self._note)
        return shaded_table(["layer", *columns], rows, self.cka.tolist()) + shown

    def to_json(self) -> dict[str, Any]:
        """Return all values, including the names of the layers, in a form that JSON can store."""
        return {
            "first": self.first.to_json(),
            "second": self.second.to_json(),
            "treebank": absolute(self.treebank),
            "sentences": self.num_sentences,
            "words": self.num_words,
            "rows": layer_names(self.cka.shape[0]),
            "columns": layer_names(self.cka.shape[1]),
            "cka": self.cka.round(4).tolist(),
        }

    def save(self, path: str | Path) -> None:
        """Write all values to a JSON file."""
        write_json(path, self.to_json())

    def plot(self, path: str | Path) -> None:
        """Save a heat map of the similarities as a PNG image."""
        rows, columns = map(layer_names, self.cka.shape)
        figure = heat_map(
            self.cka,
            rows,
            columns,
            row_title=f"layer of {self.first}",
            column_title=f"layer of {self.second}",
            value_title=f"linear CKA of {self.num_words:,} word vectors",
        )
        write_result(path, png_of(figure))


def compare_layers(
    first: str | Path,
    second: str | Path,
    treebank: Treebank,
    *,
    first_step: int | None = None,
    second_step: int | None = None,
    max_sentences: int = 500,
    on_progress: OnProgress | None = None,
) -> Similarity:
    """Measure how similar the word vectors of two models are, layer by layer.

    Linear CKA is invariant to rotation and scaling, so it can compare models of different sizes, or
    two training runs whose dimensions do not correspond (Kornblith et al. 2019, "Similarity of
    Neural Network Representations Revisited", section 3).

    Args:
      first: the work directory of a run or of `bert-jax import`.
      second: another work directory, or the same one to compare layers or checkpoints of one model.
      treebank: the treebank whose sentences both models read.
      first_step: the step of the first model's checkpoint; if None, the best one of a fine-tuning
        run, or the newest one of any other model.
      second_step: the step of the second model's checkpoint; None has the same meaning as for
        `first_step`.
      max_sentences: the maximum number of sentences to read, from the beginning of the treebank.
      on_progress: called with a progress message, a line of text, before each model is read.

    Raises:
      ValueError: there is no such model, or no sentence can be used by both models.
    """
    sentences = _first_sentences(treebank, max_sentences)
    checkpoints = name_checkpoints((first, second), (first_step, second_step))
    readers = [
        WordStates(model, step=checkpoint.step)
        for model, checkpoint in zip((first, second), checkpoints, strict=True)
    ]
    states = []
    for checkpoint, reader in zip(checkpoints, readers, strict=True):
        if on_progress is not None:
            on_progress(f"vectors of {checkpoint}")
        states.append(_by_sentence(reader, sentences))
    shared = [index for index in states[0] if index in states[1]]
    if not shared:
        reasons = "; ".join(describe_skipped(reader.skipped) for reader in readers)
        raise ValueError(f"{treebank.path}: none of the sentences can be used; {reasons}")
    left, right = (
        np.concatenate([each[index] for index in shared], axis=1).astype(np.float64)
        for each in states
    )
    return Similarity(
        checkpoints[0],
        checkpoints[1],
        linear_cka(left, right),
        treebank.path,
        num_sentences=len(shared),
        num_words=left.shape[1],
    )


def describe_words(treebank: Location, num_sentences: int, num_words: int) -> str:
    """Return a phrase that describes the source of the compared word vectors."""
    return f"{num_words:,} word vectors in {num_sentences:,} sentences of {treebank}"


def _by_sentence(reader: WordStates, sentences: Sequence[ParsedSentence]) -> dict[int, FloatArray]:
    """Return a dict from the index of each usable sentence to its word vectors."""
    numbers = {id(sentence): number for number, sentence in enumerate(sentences)}
    return {numbers[id(sentence)]: vectors for sentence, vectors in reader(sentences)}


def vectors_by_sentence(
    model: str | Path, treebank: Treebank, *, step: int | None = None, max_sentences: int = 500
) -> list[FloatArray]:
    """Return the vectors of the words in each usable sentence of a treebank.

    Args:
      model: the work directory of a run or of `bert-jax import`.
      treebank: the sentences.
      step: the step of the checkpoint; if None, the best one of a fine-tuning run, or the newest
        one of any other model.
      max_sentences: the maximum number of sentences to read, from the beginning of the treebank.

    Returns:
      For each sentence, float32 [layers + 1, words, hidden_dim].

    Raises:
      ValueError: there is no such model, or none of the sentences can be used.
    """
    reader = WordStates(model, step=step)
    vectors = [each for _, each in reader(_first_sentences(treebank, max_sentences))]
    if not vectors:
        reasons = describe_skipped(reader.skipped)
        raise ValueError(f"{treebank.path}: none of the sentences can be used; {reasons}")
    return vectors


def _first_sentences(treebank: Treebank, max_sentences: int) -> Sequence[ParsedSentence]:
    if max_sentences < 1:
        raise ValueError(f"max_sentences={max_sentences}: expected at least 1.")
    return treebank.sentences[:max_sentences]


def linear_cka(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the linear CKA of every pair of layers.

    Args:
      left: [layers, examples, dim].
      right: [other layers, examples, other dim], for the same examples.

    Returns:
      float64 [layers, other layers].
    """
    left, right = (x - x.mean(axis=1, keepdims=True) for x in (left, right))
    norms = [
        np.array([np.linalg.norm(layer.T @ layer) for layer in each]) for each in (left, right)
    ]
    cross = np.array([[np.linalg.norm(b.T @ a) ** 2 for b in right] for a in left])
    products: NDArray[np.float64] = cross / np.maximum(norms[0][:, None] * norms[1], 1e-12)
    return products
