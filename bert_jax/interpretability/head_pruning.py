"""Measure how important each attention head is to a task, and prune heads one by one.

To prune a head, the rows of the output projection by which the head's output is multiplied are set
to zero, so a pruned model differs only in the values of its parameters. The importance of a head is
the expected absolute gradient of the loss with respect to a factor that multiplies the head's
output (Michel et al. 2019, "Are Sixteen Heads Really Better than One?", equation 2).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bert_jax.finetuning.config import EvaluationConfig
from bert_jax.finetuning.open_evaluation import Evaluation, open_evaluation
from bert_jax.finetuning.task_data import ExampleSet
from bert_jax.interpretability.notebook import Cell, Shaded, folded, paragraph, picture, table
from bert_jax.interpretability.traced_text import COUNTED_FROM
from bert_jax.labeled_data.feature_batches import FeatureBatches, InOrder
from bert_jax.local_paths import naming_urls
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import Parameters
from bert_jax.plots import new_figure, plain, png_of
from bert_jax.runs.model_location import local_model
from bert_jax.runs.named_checkpoint import NamedCheckpoint, name_checkpoints
from bert_jax.storage.uploads import write_json, write_result
from bert_jax.tasks.finetuning import ClassifierTask
from bert_jax.tasks.task import Batch
from bert_jax.validation import check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OnProgress = Callable[[str], None]
_ROWS = 8


@dataclass(frozen=True, eq=False)
class HeadPruning:
    """The importance of every head, and the scores of the model with heads pruned.

    Heads are identified as (layer, head), counted from 0. If several layers share attention
    parameters, a head is pruned in all of them, and only the first of these layers is listed.
    Printing this object shows two tables; Jupyter displays them in color, with a plot.

    Attributes:
      checkpoint: the checkpoint of the fine-tuned model.
      data: the data that was scored: an absolute path or "tfds:...".
      set_name: the name of the set.
      num_examples: the number of examples in the set.
      metric: the name of the score.
      layers: the layers that do not use the attention parameters of an earlier layer.
      importance: float64 [layers, heads], normalized by the L2 norm over each layer's heads.
      without: float64 [layers, heads], the score with only this head pruned.
      order: the heads in the order in which they are pruned, the least important first.
      scores: the score with the first 0, 1, 2, ... heads of `order` pruned.
    """

    checkpoint: NamedCheckpoint
    data: str
    set_name: str
    num_examples: int
    metric: str
    layers: tuple[int, ...]
    importance: NDArray[np.float64] = field(repr=False)
    without: NDArray[np.float64] = field(repr=False)
    order: tuple[tuple[int, int], ...] = field(repr=False)
    scores: tuple[float, ...] = field(repr=False)

    def lines(self) -> Iterator[str]:
        """Yield two tables, one of single heads and one of pruned heads, numbered from 1."""
        heads = range(1, self.without.shape[1] + 1)
        yield self._title
        yield f"{'layer':>5}  " + "  ".join(f"{head:>7}" for head in heads)
        for layer, row in zip(self.layers, self.without, strict=True):
            cells = "  ".join(f"{score - self.scores[0]:+7.4f}" for score in row)
            yield f"{layer + 1:>5}  {cells}"
        yield ""
        yield f"{'pruned':>6}  {self.metric:>10}  last pruned head"
        for count, score in enumerate(self.scores):
            yield f"{count:>6}  {score:10.4f}  {self._last_pruned(count)}"
        yield ""
        yield self._note

    @property
    def _note(self) -> str:
        return (
            f"{self.checkpoint}, on {self.num_examples:,} examples: {self.set_name} from "
            f"{self.data}"
        )

    @property
    def _title(self) -> str:
        return f"{self.metric} without one head (all heads: {self.scores[0]:.4f})"

    def _last_pruned(self, count: int) -> str:
        """Return the name of the last of the first `count` pruned heads, such as "3-2"."""
        return "{}-{}".format(*(number + 1 for number in self.order[count - 1])) if count else ""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        changes = self.without - self.scores[0]
        largest = float(np.abs(changes).max()) or 1.0
        header = ["layer", *(f"head {head}" for head in range(1, changes.shape[1] + 1))]
        single: list[list[Cell]] = []
        for layer, row in zip(self.layers, changes.tolist(), strict=True):
            cells = (Shaded(f"{change:+.4f}", change / largest) for change in row)
            single.append([str(layer + 1), *cells])
        pruned = table(
            ("pruned", self.metric, "last pruned head"),
            (
                (str(count), f"{score:.4f}", self._last_pruned(count))
                for count, score in enumerate(self.scores)
            ),
        )
        return (
            paragraph(f"Change in {self._title}:")
            + table(header, single)
            + picture(png_of(self._figure()), f"{self.metric} against the number of pruned heads")
            + folded("The order in which heads are pruned", pruned)
            + paragraph(self._note)
        )

    def to_json(self) -> dict[str, Any]:
        """Return all results as plain JSON values."""
        return {
            **COUNTED_FROM,
            **self.checkpoint.to_json(),
            "data": self.data,
            "set": self.set_name,
            "examples": self.num_examples,
            "metric": self.metric,
            "layers": list(self.layers),
            "importance": self.importance.tolist(),
            "without": self.without.tolist(),
            "order": [list(head) for head in self.order],
            "scores": list(self.scores),
        }

    def save(self, path: str | Path) -> None:
        """Write all values to a JSON file."""
        write_json(path, self.to_json())

    def plot(self, path: str | Path) -> None:
        """Save a plot of the score against the number of pruned heads as a PNG image."""
        write_result(path, png_of(self._figure()))

    def _figure(self) -> Figure:
        from matplotlib.ticker import MaxNLocator

        figure = new_figure(7, 4)
        axes = figure.subplots()
        axes.plot(range(len(self.scores)), self.scores, marker="o", markersize=3)
        axes.axhline(self.scores[0], color="#777777", linestyle=":", linewidth=0.8)
        axes.set_xlabel("pruned heads, the least important first (dotted: all heads kept)")
        axes.set_ylabel(plain(self.metric))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return figure


@naming_urls()
def prune_heads(
    work_dir: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    set_name: str | None = None,
    config: EvaluationConfig | None = None,
    on_progress: OnProgress | None = None,
) -> HeadPruning:
    """Measure the importance of a fine-tuned model's heads, and prune them one by one.

    This evaluates the model twice per head, so use a small set for a large model.

    Args:
      work_dir: the work directory of a fine-tuning run, or of an import if `config` is given.
      data: a labeled file in the format of the validation file; None for the validation set.
      set_name: the set to score, for a task with several validation sets, such as
        "validation_matched" or "validation_mismatched" for MNLI.
      config: the task, for an imported model; see `bert_jax.evaluate`.
      on_progress: called with a progress message before each evaluation.

    Raises:
      ValueError: there is no such set, or there are several and `set_name` is None; see also
        `bert_jax.evaluate`.
    """
    report = on_progress or (lambda text: None)
    work_dir = local_model(work_dir)
    opened = open_evaluation(work_dir, config, data=None if data is None else os.fspath(data))
    name = _chosen_set(opened, set_name)
    examples = opened.sets[name]
    encoder = opened.scorer.task.config.encoder
    kernels = output_kernels(encoder)
    report(f"importance of {len(kernels) * encoder.num_heads} heads")
    importance = head_importance(opened, examples)
    norms = np.linalg.norm(importance, axis=1, keepdims=True)
    importance = importance / np.maximum(norms, 1e-30)

    def score(mask: NDArray[np.float32]) -> float:
        params = with_heads(opened.params, encoder, mask)
        logits, _ = opened.scorer.answers(params, examples, name)
        return float(examples.scores(logits)[examples.metrics[0]])

    layers = tuple(kernels)
    without = np.zeros_like(importance)
    for row, column in np.ndindex(*importance.shape):
        report(f"without head {layers[row] + 1}-{column + 1}")
        mask = np.ones(importance.shape, np.float32)
        mask[row, column] = 0
        without[row, column] = score(mask)
    order = np.argsort(importance, axis=None, kind="stable")
    mask = np.ones(importance.shape, np.float32)
    scores = [score(mask)]
    for number, index in enumerate(order, 1):
        report(f"{number} of {len(order)} heads pruned")
        mask.reshape(-1)[index] = 0
        scores.append(score(mask))
    places = [np.unravel_index(int(index), importance.shape) for index in order]
    heads = tuple((layers[int(row)], int(column)) for row, column in places)
    (checkpoint,) = name_checkpoints([work_dir], [opened.step])
    return HeadPruning(
        *(checkpoint, opened.data, name, examples.num_examples, examples.metrics[0]),
        *(layers, importance, without, heads, tuple(scores)),
    )


def _chosen_set(opened: Evaluation, name: str | None) -> str:
    """Return the name of the set to score; `name` may be None only if there is a single set."""
    names = list(opened.sets)
    if name is not None:
        check_choice("set_name", name, names)
        return name
    if len(names) > 1:
        raise ValueError(
            f"set_name=None: the task has several validation sets. Use one of {', '.join(names)}."
        )
    return names[0]


def output_kernels(encoder: EncoderConfig) -> Mapping[int, str]:
    """Return the name of each output kernel, keyed by the first layer that uses it."""
    owners = sorted({encoder.parameter_owners(n)[0] for n in range(encoder.num_layers)})
    return {owner: f"encoder.layers.{owner}.attention.output.kernel" for owner in owners}


def with_heads(params: Parameters, encoder: EncoderConfig, mask: Any) -> Parameters:
    """Return parameters with the output of every head multiplied by `mask` [layers, heads]."""
    changed = dict(params)
    for row, name in enumerate(output_kernels(encoder).values()):
        kernel = params[name]
        rows = jnp.repeat(jnp.asarray(mask[row]), encoder.head_dim)
        changed[name] = kernel * rows[:, None].astype(kernel.dtype)
    return changed


def head_importance(opened: Evaluation, examples: ExampleSet) -> NDArray[np.float64]:
    """Return the mean absolute gradient of the loss with respect to a factor on each head's output.

    Args:
      opened: the model.
      examples: the labeled examples to average over.

    Returns:
      float64 [layers, heads].
    """
    task, features = opened.scorer.task, examples.features
    lengths = tuple(opened.scorer.row_lengths)
    if features.lengths.max() > lengths[-1]:
        lengths = (*lengths[:-1], int(features.lengths.max()))
    plan = InOrder(features.lengths, lengths, [_ROWS] * len(lengths))
    batches = FeatureBatches(features, plan)
    encoder = task.config.encoder
    total = np.zeros((len(output_kernels(encoder)), encoder.num_heads))
    params = jax.device_put(jax.device_get(opened.params), jax.local_devices()[0])
    for step in range(len(batches)):
        batch = batches[step]
        gradients = np.abs(np.asarray(_mask_gradients(params, batch, task=task), np.float64))
        total += gradients[batch["example_weights"] > 0].sum(axis=0)
    return total / len(features)


@partial(jax.jit, static_argnames="task")
def _mask_gradients(params: Parameters, batch: Batch, *, task: ClassifierTask) -> jax.Array:
    """Return the gradients of `head_importance` for each example, [rows, layers, heads]."""
    encoder = task.config.encoder
    ones = jnp.ones((len(output_kernels(encoder)), encoder.num_heads))

    def loss(mask: jax.Array, row: Batch) -> jax.Array:
        one = {name: array[None] for name, array in row.items()}
        model = task.definition.module(with_heads(params, encoder, mask))
        metrics = task.metrics(model, one, None)
        return sum(
            (coefficient * metrics[name].mean() for name, coefficient in task.loss_terms.items()),
            jnp.zeros(()),
        )

    return jax.vmap(jax.grad(loss), in_axes=(None, 0))(ones, batch)
