"""Open a checkpoint and the sets to evaluate it on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
from jax.sharding import Mesh

from bert_jax.conversion import (
    config_keys,
    to_dataclass,
    to_plain,
    without_absent_sections,
)
from bert_jax.finetuning.compiled_steps import unknown_lines
from bert_jax.finetuning.config import EvaluationConfig, FinetuneConfig
from bert_jax.finetuning.label_matching import (
    check_head,
    check_positions,
    no_task_of,
    notes_on_unnamed_labels,
    score_order,
    with_scores_in_order,
)
from bert_jax.finetuning.outcome import check_files, claim_files
from bert_jax.finetuning.registry import loss_of
from bert_jax.finetuning.scoring import Scorer, row_lengths
from bert_jax.finetuning.task_data import ExampleSet, TaskData
from bert_jax.finetuning.task_kind import TaskConfig
from bert_jax.json_files import read_json_object
from bert_jax.labeled_data.files import Split
from bert_jax.models.parameters import Parameters
from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.runs.named_checkpoint import absolute_name
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.runtime import versions
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    MODEL_NAME,
    path_advice,
    read_model,
    read_tokenizer,
)
from bert_jax.tasks.finetuning import ClassifierTask
from bert_jax.text.archives import COMPRESSIONS
from bert_jax.text.files import is_tfds
from bert_jax.training.checkpoint_files import identity_of
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed, check_same
from bert_jax.training.sharding import MeshConfig, batch_extent, make_mesh, parameter_shardings
from bert_jax.training.step import make_metrics_step, make_prediction_step

FINETUNE = "bert-jax finetune"


@dataclass(frozen=True)
class SetScores:
    """A model's scores on a set, and its prediction files. Unlabeled examples have no scores.

    Attributes:
      examples: the number of examples.
      scores: the scores, keyed by metric name.
      by_type: the scores for each type of answer, such as a class, a label or an entity type.
      type_is: the word for a type in `by_type`, such as "label".
      files: the prediction files.
    """

    examples: int
    scores: dict[str, float]
    by_type: dict[str, dict[str, float]]
    type_is: str
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Evaluation:
    """A checkpoint and the sets to evaluate it on. Either all sets are labeled or none are.

    Attributes:
      work_dir: the model's work directory.
      step: the checkpoint's step.
      sets: the examples in each set, keyed by set name.
      labeled: whether the examples have labels.
      data: the input, either an absolute path or "tfds:...".
      source: a text that describes the origin of the predictions: the input (see
        `TaskConfig.source_of`) and the model's work directory.
      scorer: the scorer, which runs the model on whole sets.
      params: the checkpoint's parameters.
      notes: messages about the examples and the labels.
    """

    work_dir: Path
    step: int
    sets: Mapping[str, ExampleSet]
    labeled: bool
    data: str
    source: str
    scorer: Scorer
    params: Parameters
    notes: Sequence[str] = ()

    def score(self, predictions: Path | None) -> dict[str, SetScores]:
        """Return the scores on each set, keyed by set name, and write predictions on process 0.

        Args:
          predictions: the directory for the prediction files; if None, none are written.
        """
        results = {}
        for name, examples in self.sets.items():
            logits, loss = self.scorer.answers(self.params, examples, name)
            files = []
            if predictions is not None and jax.process_index() == 0:
                names = examples.file_names(name)
                claim_files(predictions, names, self.source)
                files = examples.write(logits, predictions, name)
                assert [file.name for file in files] == names
            scores, by_type = {}, {}
            if self.labeled:
                scores = examples.scores(logits) | loss
                by_type = examples.scores_by_type(logits)
            kind = examples.type_is
            results[name] = SetScores(examples.num_examples, scores, by_type, kind, files)
        return results


def open_evaluation(
    work_dir: Path,
    config: EvaluationConfig | None = None,
    *,
    data: str | None = None,
    step: int | None = None,
    labeled: bool = True,
    into: Path | None = None,
) -> Evaluation:
    """Open a checkpoint and the sets to evaluate it on.

    A model from a fine-tuning run is evaluated with the run's row lengths and batch size, so that
    the run's scores are reproduced bit for bit.

    Args:
      work_dir: the model's work directory.
      config: the task and settings for a model that was fine-tuned with other software and
        imported; defaults to the config of the model's own run.
      data: a file or directory to evaluate on instead of the task's validation or test sets.
      step: the checkpoint's step; defaults to the best one.
      labeled: whether to evaluate on the labeled validation sets or on the unlabeled test sets.
      into: the directory for predictions; None for no predictions.

    Raises:
      ValueError: the model was not fine-tuned, there is no checkpoint at `step`, a file is missing
        or malformed, or predictions could overwrite one of the task's files.
    """
    imported = config is not None
    config = config or _config_of_run(work_dir)
    task = config.task
    model, _ = read_model(work_dir)
    if imported:
        check_head(task, model, work_dir)
    check_positions(config.max_length, model, work_dir)
    step = agreed(default_checkpoint_step(work_dir)) if step is None else step
    identity = identity_of(work_dir / CHECKPOINTS_NAME, step)
    split: Split = "validation" if labeled else "test"
    task = task if data is None else task.with_file(data, split)
    if into is not None:
        _check_separate(task.paths(), into)
    tokenizer = read_tokenizer(work_dir, model.encoder)
    if imported:
        task = task.matching(model).with_columns(split, model)
    hint = "" if imported or data is not None else _directory_hint(task, work_dir)
    try:
        task_data = task.open(tokenizer, config.max_length, [split], model.labels)
    except ValueError as error:
        raise ValueError(f"{error}{hint}") from error
    sets = _sets_of(task_data, split, work_dir, data)
    read_from = task.source_of(split)
    source = f"{read_from} by {absolute_name(work_dir)}"
    if into is not None:
        check_files(into, [file for name in sets for file in sets[name].file_names(name)], source)
    check_same(
        {
            "the config": to_plain(replace(config, task=task)),
            "the examples": {name: examples.fingerprint for name, examples in sets.items()},
            "the versions": versions(),
        }
    )
    lengths = None if imported else identity["row_lengths"]
    compute = config.compute.resolve(jax.devices()[0], model.encoder, config.max_length)
    loss = loss_of(task, model, compute)
    scorer = _make_scorer(loss, config, lengths, sets)
    params = load_parameters(
        work_dir / CHECKPOINTS_NAME,
        scorer.task.definition,
        parameter_shardings(
            scorer.task.definition.shapes, scorer.task.definition.logical_axes, scorer.mesh
        ),
        step,
    )
    notes = unknown_lines({name: each.features for name, each in sets.items()}, tokenizer)
    if imported:
        names = next(iter(sets.values())).labels_in_files
        order = score_order(model, task_data.head, names, work_dir)
        params = params if order is None else with_scores_in_order(params, order)
        notes += notes_on_unnamed_labels(model, task_data.head)
    return Evaluation(work_dir, step, sets, labeled, read_from, source, scorer, params, notes)


def _make_scorer(
    loss: ClassifierTask,
    config: EvaluationConfig,
    lengths: Sequence[int] | None,
    sets: Mapping[str, ExampleSet],
) -> Scorer:
    """Return the compiled scorer; without `lengths`, choose row lengths that fit the first set."""
    mesh = _mesh(config.mesh)
    if lengths is None:
        features = next(iter(sets.values())).features
        lengths = row_lengths(features, config.max_shapes, loss.config.encoder.max_positions)
    extent = batch_extent(mesh)
    rows = -(-config.batch_size // extent) * extent
    steps = make_prediction_step(loss, mesh), make_metrics_step(loss, mesh)
    return Scorer(mesh, loss, *steps, rows, tuple(lengths))


def _sets_of(
    task_data: TaskData, split: Split, work_dir: Path, data: str | None
) -> Mapping[str, ExampleSet]:
    """Return a split's sets, keyed by name; raise ValueError if there are none."""
    sets = task_data.validation if split == "validation" else task_data.test
    if not sets and data is not None:
        raise ValueError(
            f"{data} contains no {split} file for the task. Specify a directory with the layout of "
            "the GLUE download, or a single file."
        )
    if not sets:
        raise ValueError(
            f"{work_dir} has no test files: its config does not list any, or they were removed. "
            "Specify one with --data."
        )
    return sets if data is None else named_after(data, sets)


_FORMATS = (
    *(".tsv", ".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".txt", ".text"),
    *(".conll", ".conll03", ".conll2003", ".conllu", ".bio", ".iob", ".iob2"),
)


def named_after(path: str, sets: Mapping[str, ExampleSet]) -> dict[str, ExampleSet]:
    """Return the sets read from `path`; a set that comes from a file is named after that file.

    The extension of a known format is left out of the name; any other extension is kept, as in
    "eng.testa". Sets from a directory or from TensorFlow Datasets keep their names.
    """
    if is_tfds(path) or Path(path).is_dir():
        return dict(sets)
    (examples,) = sets.values()
    file = Path(path)
    file = file.with_suffix("") if file.suffix.lower() in COMPRESSIONS else file
    return {file.stem if file.suffix.lower() in _FORMATS else file.name: examples}


def _config_of_run(work_dir: Path) -> EvaluationConfig:
    """Return a fine-tuning run's evaluation config.

    Raises:
      ValueError: the directory is not the work directory of a fine-tuning run.
    """
    if not (work_dir / MODEL_NAME).is_file():
        raise ValueError(
            f"{work_dir}: contains no {MODEL_NAME}{path_advice(work_dir)}. Specify the work "
            f"directory of a `{FINETUNE}` run."
        )
    model, origin = read_model(work_dir)
    if origin.get("command") != FINETUNE:
        raise ValueError(no_task_of(work_dir, model, origin))
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        raise ValueError(
            f"{work_dir}: contains no {RESOLVED_NAME}, which describes the task. Restore the file."
        )
    values = without_absent_sections(FinetuneConfig, read_json_object(file))
    unknown = values.keys() - config_keys(FinetuneConfig)
    sections = [key for key in unknown if isinstance(values[key], dict)]
    if sections:
        raise ValueError(
            f"{file}: the section {sections[0]!r} belongs to a kind of task that is not "
            "registered. Import the module that registers it first."
        )
    return to_dataclass(FinetuneConfig, values, str(file)).evaluation


def _directory_hint(task: TaskConfig, work_dir: Path) -> str:
    """Return a hint to append to an error if the task's relative paths do not exist, else ""."""
    if not task.is_missing():
        return ""
    return (
        f". The paths in {work_dir} are relative to the directory that the run was started from; "
        f"the current directory is {Path.cwd()}. Change to that directory, or specify a file with "
        "--data."
    )


def _check_separate(paths: Sequence[str], into: Path) -> None:
    """Raise ValueError if predictions could overwrite the task's files in this directory."""
    for path in paths:
        if into.resolve() in (Path(path).resolve(), Path(path).resolve().parent):
            raise ValueError(
                f"--predictions {into}: contains one of the task's files ({path}), which "
                "predictions could overwrite. Use another directory."
            )


def _mesh(config: MeshConfig) -> Mesh:
    """Return the run's mesh if it fits the devices, or a mesh that splits batches over them."""
    try:
        return make_mesh(config)
    except ValueError:
        return make_mesh(MeshConfig())
