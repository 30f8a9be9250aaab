"""Compare the word vectors from every checkpoint of a run with those from the last one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_jax.interpretability.emergence import checkpoint_steps
from bert_jax.interpretability.head_probe import OnProgress
from bert_jax.interpretability.notebook import paragraph, shaded_table
from bert_jax.interpretability.plots import heat_map
from bert_jax.interpretability.similarity import describe_words, linear_cka, vectors_by_sentence
from bert_jax.interpretability.traced_text import FloatArray, layer_names
from bert_jax.labeled_data.treebank import Treebank
from bert_jax.local_paths import naming_urls, shown
from bert_jax.plots import png_of
from bert_jax.runs.model_location import local_model
from bert_jax.runs.named_checkpoint import absolute_name
from bert_jax.storage.locations import absolute
from bert_jax.storage.uploads import write_json, write_result
from bert_jax.storage.urls import Location


@dataclass(frozen=True, eq=False)
class CheckpointSimilarity:
    """The similarity of every layer in each checkpoint to the same layer in the last checkpoint.

    Printing this object shows a table, which Jupyter displays in color.

    Attributes:
      work_dir: the work directory of the run.
      steps: the steps of the checkpoints, in ascending order.
      cka: float64 [checkpoints, layers + 1], from 0 to 1; column 0 is the embeddings. The last row
        compares the last checkpoint with itself.
      treebank: the file that the words come from.
      num_sentences: the number of sentences that were used.
      num_words: the number of words whose vectors were compared.
    """

    work_dir: Path
    steps: tuple[int, ...]
    cka: NDArray[np.float64] = field(repr=False)
    treebank: Location
    num_sentences: int
    num_words: int

    def lines(self) -> Iterator[str]:
        """Yield a table with a row for each checkpoint."""
        names = ["emb.", *map(str, range(1, self.cka.shape[1]))]
        width = max(len(name) for name in ("step", *self._step_names))
        yield f"{'step':>{width}}  " + "  ".join(f"{name:>5}" for name in names)
        for name, row in zip(self._step_names, self.cka, strict=True):
            yield f"{name:>{width}}  " + "  ".join(f"{value:5.2f}" for value in row)
        yield ""
        yield self._note

    @property
    def _step_names(self) -> list[str]:
        return [f"{step:,}" for step in self.steps]

    @property
    def _note(self) -> str:
        words = describe_words(self.treebank, self.num_sentences, self.num_words)
        return (
            f"linear CKA of {words}, between each layer in a checkpoint of {shown(self.work_dir)} "
            f"and the same layer at step {self.steps[-1]:,}"
        )

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        header = ["step", *layer_names(self.cka.shape[1])]
        return shaded_table(header, self._step_names, self.cka.tolist()) + paragraph(self._note)

    def to_json(self) -> dict[str, Any]:
        """Return all results as plain JSON values, including the layer names in order."""
        return {
            "work_dir": absolute_name(self.work_dir),
            "treebank": absolute(self.treebank),
            "sentences": self.num_sentences,
            "words": self.num_words,
            "layers": layer_names(self.cka.shape[1]),
            "steps": {
                str(step): row.round(4).tolist()
                for step, row in zip(self.steps, self.cka, strict=True)
            },
        }

    def save(self, path: str | Path) -> None:
        """Write all values to a JSON file."""
        write_json(path, self.to_json())

    def plot(self, path: str | Path) -> None:
        """Save a heat map of the similarities as a PNG image."""
        figure = heat_map(
            self.cka,
            self._step_names,
            layer_names(self.cka.shape[1]),
            row_title=f"step of {Path(absolute_name(self.work_dir)).name}",
            column_title="layer",
            value_title=f"linear CKA with step {self.steps[-1]:,}",
        )
        write_result(path, png_of(figure))


@naming_urls()
def compare_checkpoints(
    work_dir: str | Path,
    treebank: Treebank,
    *,
    max_sentences: int = 500,
    on_progress: OnProgress | None = None,
) -> CheckpointSimilarity:
    """Measure how similar the word vectors of every checkpoint are to those of the last one.

    Args:
      work_dir: the work directory of a run that was trained with `checkpoint.keep_every`.
      treebank: the sentences for the model to read.
      max_sentences: the maximum number of sentences to read, from the beginning of the treebank.
      on_progress: called with a progress message before each checkpoint is read.

    Raises:
      ValueError: the run has kept fewer than two checkpoints, or none of the sentences can be used.
    """
    report = on_progress or (lambda text: None)
    directory = local_model(work_dir)
    steps = checkpoint_steps(directory)

    def vectors(step: int) -> list[FloatArray]:
        report(f"vectors of step {step:,}")
        return vectors_by_sentence(directory, treebank, step=step, max_sentences=max_sentences)

    sentences = vectors(steps[-1])
    last = np.concatenate(sentences, axis=1)
    rows = [_of_same_layer(np.concatenate(vectors(step), axis=1), last) for step in steps[:-1]]
    rows.append(_of_same_layer(last, last))
    return CheckpointSimilarity(
        directory, tuple(steps), np.array(rows), treebank.path, len(sentences), last.shape[1]
    )


def _of_same_layer(left: FloatArray, right: FloatArray) -> list[float]:
    """Return the linear CKA between each layer in `left` and the same layer in `right`."""
    pairs = (
        (a[None].astype(np.float64), b[None].astype(np.float64))
        for a, b in zip(left, right, strict=True)
    )
    return [float(linear_cka(a, b)[0, 0]) for a, b in pairs]
