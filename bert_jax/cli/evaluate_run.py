"""A fine-tuned work directory and the sets it is scored on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
from jax.sharding import Mesh

from bert_jax.cli.config import RESOLVED_NAME
from bert_jax.cli.provenance import versions
from bert_jax.conversion import to_dataclass
from bert_jax.data.finetuning.batches import MULTIPLE
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.other_files import judged_on, named_after, with_labels
from bert_jax.finetuning.scoring import Scorer
from bert_jax.finetuning.task_data import TaskData
from bert_jax.inference.work_dir import (
    CHECKPOINTS_NAME,
    MODEL_NAME,
    TOKENIZER_NAME,
    chosen_step,
    read_model,
)
from bert_jax.models.parameters import Parameters
from bert_jax.tasks.finetuning import task_of
from bert_jax.training.checkpoint import identity_of, load_parameters
from bert_jax.training.distributed import agreed, check_same
from bert_jax.training.sharding import MeshConfig, batch_extent, make_mesh, parameter_shardings
from bert_jax.training.step import make_metrics_step, make_prediction_step

FINETUNE = "bert-jax finetune"


@dataclass(frozen=True)
class SetScores:
    """What a model does on a set. by_type: see `ExampleSet.scores_by_type`."""

    examples: int
    scores: dict[str, float]
    by_type: dict[str, dict[str, float]]
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Evaluation:
    """The checkpoint of a step and what it is scored on."""

    work_dir: Path
    step: int
    data: TaskData
    scorer: Scorer
    params: Parameters

    def score(self, predictions: Path | None) -> dict[str, SetScores]:
        """The metrics and the loss of each set, by its name; on process 0 also its files.

        predictions: the directory they are written to, None for none.
        """
        found = {}
        for name, examples in self.data.validation.items():
            logits, loss = self.scorer.logits(self.params, examples.features)
            files = []
            if predictions is not None and jax.process_index() == 0:
                predictions.mkdir(parents=True, exist_ok=True)
                files = examples.write(logits, predictions, name)
            scores = examples.scores(logits) | loss
            by_type = examples.scores_by_type(logits)
            found[name] = SetScores(examples.num_examples, scores, by_type, files)
        return found


def open_evaluation(work_dir: Path, data: str | None, step: int | None) -> Evaluation:
    """Reads a work directory, and its validation set or the file `data` in its place.

    Rows are as long and batches as large as in the run, whose numbers these are then, bit for bit.

    Raises:
      ValueError: it was not fine-tuned, has no such checkpoint, or a file is not as it should be.
    """
    config = _config_of(work_dir)
    model, _ = read_model(work_dir)
    step = agreed(chosen_step(work_dir)) if step is None else step
    identity = identity_of(work_dir / CHECKPOINTS_NAME, step)
    config = with_labels(config if data is None else judged_on(config, data), model.labels)
    found = config.open(Tokenizer.load(work_dir / TOKENIZER_NAME), train=False, test=False)
    if data is not None:
        found = replace(found, validation=named_after(data, found.validation))
    examples = {name: each.features.fingerprint for name, each in found.validation.items()}
    check_same({"the examples": examples, "the versions": versions()})
    longest = max(int(each.features.lengths.max()) for each in found.validation.values())
    lengths = _holding(longest, identity["row_lengths"], model.encoder.max_positions)

    mesh = _mesh(config.mesh)
    task = task_of(model, config.compute.resolve(jax.default_backend(), model.encoder))
    rows = -(-config.rows_evaluated // batch_extent(mesh)) * batch_extent(mesh)
    steps = make_prediction_step(task, mesh), make_metrics_step(task, mesh)
    scorer = Scorer(mesh, task, *steps, rows, lengths)
    definition = task.definition
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    params = load_parameters(work_dir / CHECKPOINTS_NAME, definition, shardings, step)
    return Evaluation(work_dir, step, found, scorer, params)


def _config_of(work_dir: Path) -> FinetuneConfig:
    """What the run was given. ValueError if the directory is not one of `finetune`."""
    if not (work_dir / MODEL_NAME).is_file():
        raise ValueError(
            f"{work_dir}: no {MODEL_NAME} in it; expected the work directory of a `{FINETUNE}`"
        )
    made_by = read_model(work_dir)[1].get("command", "another command")
    if made_by != FINETUNE:
        raise ValueError(
            f"{work_dir} is a work directory of `{made_by}`: its model has learned no task to be "
            f"scored on. Fine-tune it first: `{FINETUNE} --config configs/finetune/TASK.py --init "
            f"{work_dir}`"
        )
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        raise ValueError(f"{work_dir}: no {RESOLVED_NAME} in it, which says what the task is")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: damaged: {error}") from error
    return to_dataclass(FinetuneConfig, values, str(file))


def _holding(longest: int, lengths: Sequence[int], max_positions: int) -> tuple[int, ...]:
    """The run's row lengths, and one more if an example here is longer than all of them."""
    if longest <= max(lengths):
        return tuple(lengths)
    return (*lengths, min(-(-longest // MULTIPLE) * MULTIPLE, max_positions))


def _mesh(config: MeshConfig) -> Mesh:
    """The run's mesh; where there are other devices than it had, all of them for the batch."""
    try:
        return make_mesh(config)
    except ValueError:
        return make_mesh(MeshConfig())
