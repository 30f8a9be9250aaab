"""Train linear probes on every layer, and compare them with controls.

A probe is a linear classifier that predicts a property of a word, such as its part of speech, from
the word's vector. The accuracy of a probe by itself is not conclusive, because even random vectors
identify many words if they are wide. Two controls show how much of the accuracy comes from the
model's training and how much from the probe. They are the same model with random weights, and
labels that are shuffled among word types (Hewitt and Liang 2019, "Designing and Interpreting Probes
with Control Tasks").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, assert_never, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from bert_jax.interpretability.notebook import Cell, Shaded, paragraph, table
from bert_jax.interpretability.traced_text import layer_names
from bert_jax.interpretability.word_states import WordStates, describe_skipped
from bert_jax.labeled_data.treebank import ParsedSentence, Treebank
from bert_jax.storage.uploads import write_json
from bert_jax.validation import check_choice

FloatArray = NDArray[np.float32]
ProbeTarget = Literal["tags", "relations"]
Condition = Literal["trained", "random weights", "shuffled labels"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
OnProgress = Callable[[str], None]

_EPOCHS = 10
_BATCH_SIZE = 256
_LEARNING_RATE = 1e-3


@dataclass(frozen=True, eq=False)
class LayerProbe:
    """The test accuracies of linear probes.

    Printing this object shows a table, which Jupyter displays in color.

    Attributes:
      target: the property that the probes predict.
      labels: the labels, starting with the most frequent one in the training set.
      accuracies: float64 [conditions, layers + 1, seeds]; the first axis is `CONDITIONS`, and layer
        0 is the embeddings.
      most_frequent: the accuracy of always predicting the most frequent label.
      num_train: the number of words in the training set.
      num_test: the number of words in the test set.
    """

    target: ProbeTarget
    labels: tuple[str, ...]
    accuracies: NDArray[np.float64] = field(repr=False)
    most_frequent: float
    num_train: int
    num_test: int

    def lines(self) -> Iterator[str]:
        """Yield a table of mean accuracies with their standard deviations over seeds."""
        yield f"{'layer':>10}  " + "  ".join(f"{name:>15}" for name in CONDITIONS)
        for name, cells in self._rows():
            yield f"{name:>10}  " + "  ".join(f"{cell.text:>15}" for cell in cells)
        yield ""
        yield self._note

    def _rows(self) -> Iterator[tuple[str, list[Shaded]]]:
        """Yield the name of each layer with its accuracies."""
        for layer, name in enumerate(layer_names(self.accuracies.shape[1])):
            cells = [
                Shaded(f"{values.mean():.1%} ± {values.std():.1%}", float(values.mean()))
                for values in self.accuracies[:, layer]
            ]
            yield name, cells

    @property
    def _note(self) -> str:
        return (
            f"{len(self.labels)} {self.target}; {self.num_train:,} training words, "
            f"{self.num_test:,} test words; accuracy of the most frequent label: "
            f"{self.most_frequent:.1%}"
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows: Iterator[list[Cell]] = ([name, *cells] for name, cells in self._rows())
        return table(["layer", *CONDITIONS], rows) + paragraph(self._note)

    def to_json(self) -> dict[str, Any]:
        """Return all results as plain JSON values, including the layer names in order."""
        return {
            "target": self.target,
            "layers": layer_names(self.accuracies.shape[1]),
            "labels": list(self.labels),
            "accuracies": {
                name: self.accuracies[number].round(4).tolist()
                for number, name in enumerate(CONDITIONS)
            },
            "most_frequent": self.most_frequent,
            "words": {"train": self.num_train, "test": self.num_test},
        }

    def save(self, path: str | Path) -> None:
        """Write all values to a JSON file."""
        write_json(path, self.to_json())


class _Words(NamedTuple):
    """Word vectors [layers + 1, words, hidden_dim] with the words and their labels."""

    vectors: FloatArray
    words: Sequence[str]
    labels: Sequence[str]


def probe_layers(
    model: str | Path,
    train: Treebank,
    test: Treebank,
    *,
    target: ProbeTarget = "tags",
    max_sentences: int = 1_000,
    num_seeds: int = 3,
    step: int | None = None,
    on_progress: OnProgress | None = None,
) -> LayerProbe:
    """Measure how well a linear classifier can read a property of words from each layer.

    Args:
      model: the work directory of a run or of `bert-jax import`.
      train: the sentences to train the probes on.
      test: the sentences to score the probes on.
      target: "tags" for the part of speech, or "relations" for the relation to the syntactic head.
      max_sentences: the maximum number of sentences to use, from the beginning of each treebank.
      num_seeds: the number of probes for every layer and condition. These probes differ in the
        order of their batches, in the random weights and in the shuffled labels.
      step: the step of the checkpoint; if None, the best one of a fine-tuning run, or the newest
        one of any other model.
      on_progress: called with a description of each part before it starts.

    Raises:
      ValueError: there is no such model, an argument is out of range, or no sentence can be used.
    """
    check_choice("target", target, get_args(ProbeTarget))
    for name, number in (("max_sentences", max_sentences), ("num_seeds", num_seeds)):
        if number < 1:
            raise ValueError(f"{name}={number}: expected at least 1.")
    report = on_progress or (lambda text: None)
    states = WordStates(model, step=step)

    def words(source: WordStates, bank: Treebank) -> _Words:
        report(f"vectors of {bank.path.name}")
        return _words(source, bank.sentences[:max_sentences], target)

    trained = words(states, train), words(states, test)
    names, counts = np.unique(trained[0].labels, return_counts=True)
    labels = tuple(names[np.argsort(-counts, kind="stable")].tolist())
    index = {label: number for number, label in enumerate(labels)}
    scores = np.zeros((len(CONDITIONS), len(trained[0].vectors), num_seeds))
    for number, condition in enumerate(CONDITIONS):
        for seed in range(num_seeds):
            report(f"{condition}, seed {seed}")
            pair = trained
            match condition:
                case "trained":
                    targets = [_indices(part.labels, index) for part in pair]
                case "random weights":
                    source = states.with_random_weights(seed)
                    pair = words(source, train), words(source, test)
                    targets = [_indices(part.labels, index) for part in pair]
                case "shuffled labels":
                    targets = _shuffled(pair, index, seed)
                case _:
                    assert_never(condition)
            for layer in range(scores.shape[1]):
                scores[number, layer, seed] = _accuracy(
                    pair[0].vectors[layer],
                    targets[0],
                    pair[1].vectors[layer],
                    targets[1],
                    num_labels=len(labels),
                    seed=seed,
                )
    return LayerProbe(
        target,
        labels,
        scores,
        float(np.mean(_indices(trained[1].labels, index) == 0)),
        len(trained[0].words),
        len(trained[1].words),
    )


def _words(states: WordStates, sentences: Sequence[ParsedSentence], target: ProbeTarget) -> _Words:
    vectors: list[FloatArray] = []
    words: list[str] = []
    labels: list[str] = []
    for sentence, array in states(sentences):
        vectors.append(array)
        words += sentence.words
        match target:
            case "tags":
                labels += sentence.tags
            case "relations":
                labels += sentence.relations
            case _:
                assert_never(target)
    if not vectors:
        raise ValueError(f"none of the sentences can be used; {describe_skipped(states.skipped)}")
    return _Words(np.concatenate(vectors, axis=1), words, labels)


def _indices(labels: Sequence[str], index: dict[str, int]) -> NDArray[np.int32]:
    """Return label indices.

    Labels that are not in the training set have the index -1, which is never predicted.
    """
    return np.array([index.get(label, -1) for label in labels], np.int32)


def _shuffled(
    pair: tuple[_Words, _Words], index: dict[str, int], seed: int
) -> list[NDArray[np.int32]]:
    """Return random labels that are the same for all occurrences of a word, in both sets.

    The label of each word type is drawn from the distribution of labels in the training set.
    """
    rng = np.random.default_rng(seed)
    known = _indices(pair[0].labels, index)
    types = sorted({word for part in pair for word in part.words})
    drawn = dict(zip(types, rng.choice(known, len(types)).tolist(), strict=True))
    return [np.array([drawn[word] for word in part.words], np.int32) for part in pair]


def _accuracy(
    train: FloatArray,
    train_labels: NDArray[np.int32],
    test: FloatArray,
    test_labels: NDArray[np.int32],
    *,
    num_labels: int,
    seed: int,
) -> float:
    """Return the test accuracy of a linear classifier on standardized vectors."""
    mean, scale = train.mean(axis=0), train.std(axis=0) + 1e-6
    steps = max(1, len(train) // _BATCH_SIZE)
    rng = np.random.default_rng(seed)
    order = np.stack([rng.permutation(len(train)) for _ in range(_EPOCHS)])
    size = min(_BATCH_SIZE, len(train))
    batches = order[:, : steps * size].reshape(_EPOCHS * steps, size)
    predicted = _fit_and_predict(
        (train - mean) / scale, train_labels, batches, (test - mean) / scale, num_labels=num_labels
    )
    return float(np.mean(np.asarray(predicted) == test_labels))


@partial(jax.jit, static_argnames="num_labels")
def _fit_and_predict(
    vectors: jax.Array, labels: jax.Array, batches: jax.Array, test: jax.Array, *, num_labels: int
) -> jax.Array:
    """Train a softmax classifier with Adam, and return its predictions for `test`."""
    optimizer = optax.adam(optax.linear_schedule(_LEARNING_RATE, 0.0, len(batches)))
    dim = vectors.shape[1]
    params = jnp.zeros((dim, num_labels)), jnp.zeros(num_labels)

    def loss(params: tuple[jax.Array, jax.Array], rows: jax.Array) -> jax.Array:
        logits = vectors[rows] @ params[0] + params[1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[rows]).mean()

    def update(carry: Any, rows: jax.Array) -> tuple[Any, None]:
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params, rows), state)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.lax.scan(update, (params, optimizer.init(params)), batches)
    return jnp.argmax(test @ params[0] + params[1], axis=1)
