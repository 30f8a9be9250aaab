"""Evaluate a fine-tuned work directory on its own task or on the task of another config."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
from jax.sharding import Mesh

from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.finetuning.compiled_steps import unknown_lines
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.label_matching import (
    check_head,
    check_positions,
    score_places,
    unnamed_told,
    with_scores_in_order,
)
from bert_jax.finetuning.outcome import check_files, claim_files
from bert_jax.finetuning.registry import task_of
from bert_jax.finetuning.scoring import Scorer, row_lengths
from bert_jax.finetuning.task_data import ExampleSet, TaskData
from bert_jax.finetuning.task_kind import TaskConfig
from bert_jax.json_files import read_json_object
from bert_jax.labeled_data.files import Split
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters
from bert_jax.runs.checkpoints import default_checkpoint_step
from bert_jax.runs.outputs import check_output
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.runtime import versions
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    MODEL_NAME,
    path_advice,
    read_model,
    read_tokenizer,
)
from bert_jax.text.files import COMPRESSIONS, is_tfds
from bert_jax.training.checkpoint_files import identity_of
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed, check_same
from bert_jax.training.sharding import MeshConfig, batch_extent, make_mesh, parameter_shardings
from bert_jax.training.step import make_metrics_step, make_prediction_step
from bert_jax.validation import check_config

FINETUNE = "bert-jax finetune"


@dataclass(frozen=True)
class SetScores:
    """The scores of a model on a set, also by type (see `ExampleSet`); empty without labels."""

    examples: int
    scores: dict[str, float]
    by_type: dict[str, dict[str, float]]
    type_is: str
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class EvaluationResult:
    """The result of evaluating a checkpoint.

    sets: by name, the scores of each set.
    notes: lines about the examples and the labels.
    devices: number and kind of the devices.
    """

    work_dir: Path
    step: int
    sets: Mapping[str, SetScores]
    notes: Sequence[str]
    devices: str


def evaluate(
    work_dir: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    step: int | None = None,
    labeled: bool = True,
    predictions: str | os.PathLike[str] | None = None,
    config: FinetuneConfig | None = None,
) -> EvaluationResult:
    """Score a fine-tuned model on its validation set, or on another file of its task.

    Args:
      work_dir: the work directory of a fine-tuning run or of an import.
      data: a file in the form of the validation file, or for a GLUE task a directory; None scores
        the validation set itself.
      step: the step of the checkpoint; None takes the best one.
      labeled: whether the examples have labels. Without labels, nothing is scored, and the task's
        test sets are used if `data` is None.
      predictions: a directory for files with the predictions; process 0 writes them.
      config: the task of a model that was fine-tuned elsewhere and imported; None takes the task
        of the model's own run.

    Raises:
      ValueError: the directory holds no fine-tuned model or no such checkpoint, a file is missing
        or has another form, or predictions would replace a file.
    """
    if config is not None:
        check_config(config, FinetuneConfig)
    into = None if predictions is None else Path(predictions)
    if into is not None:
        if into.is_file():
            raise ValueError(
                f"--predictions {into} is a file: expected a directory, in which each set "
                "that is predicted gets a file of its own"
            )
        check_output(into, "--predictions")
    opened = open_evaluation(
        Path(work_dir),
        None if data is None else os.fspath(data),
        step,
        labeled=labeled,
        into=into,
        task=config,
    )
    mesh = opened.scorer.mesh
    return EvaluationResult(
        opened.work_dir,
        opened.step,
        opened.score(into),
        opened.notes,
        f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
    )


@dataclass(frozen=True)
class Evaluation:
    """A checkpoint and the sets to evaluate it on, which are all labeled or all unlabeled.

    source: the input of the predictions, from `TaskConfig.source_of`, and their work directory.
    """

    work_dir: Path
    step: int
    sets: Mapping[str, ExampleSet]
    labeled: bool
    source: str
    scorer: Scorer
    params: Parameters
    notes: Sequence[str] = ()

    def score(self, predictions: Path | None) -> dict[str, SetScores]:
        """The metrics and the loss of each set, by its name; on process 0 also its files.

        predictions: the directory they are written to, None for none.
        """
        found = {}
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
            found[name] = SetScores(examples.num_examples, scores, by_type, kind, files)
        return found


def open_evaluation(
    work_dir: Path,
    data: str | None,
    step: int | None,
    *,
    labeled: bool = True,
    into: Path | None = None,
    task: FinetuneConfig | None = None,
) -> Evaluation:
    """Reads a work directory, and its validation set or the file `data` in its place.

    labeled: if not, its test sets, or `data` in their place, whose labels are not known. into:
    where predictions will go, None for nowhere. task: of a model from elsewhere; None for that of
    its own run. Rows are as long and batches as large as in the run, whose numbers these are then,
    bit for bit.

    Raises:
      ValueError: it was not fine-tuned, has no such checkpoint, a file is not as it should be, or
        predictions could replace one.
    """
    config = _config_of(work_dir) if task is None else task
    model, _ = read_model(work_dir)
    if task is not None:
        check_head(task.task, model, work_dir)
    check_positions(config.max_length, model, work_dir)
    step = agreed(default_checkpoint_step(work_dir)) if step is None else step
    identity = identity_of(work_dir / CHECKPOINTS_NAME, step)
    split: Split = "validation" if labeled else "test"
    if data is not None:
        config = config.with_file(data, split)
    if into is not None:
        _check_separate(config.task.paths(), into)
    tokenizer = read_tokenizer(work_dir, model.encoder)
    if task is not None:
        config = replace(config, task=config.task.matching(model).with_columns(split, model))
    where = _told_from_elsewhere(config.task, work_dir) if task is None and data is None else ""
    try:
        found = config.open(tokenizer, [split], model.labels)
    except ValueError as error:
        if not where:
            raise
        raise ValueError(f"{error}{where}") from error
    sets = _asked(found, split, work_dir, data)
    source = f"{config.task.source_of(split)} by {work_dir.resolve()}"
    if into is not None:
        files = [file for name, each in sets.items() for file in each.file_names(name)]
        check_files(into, files, source)
    examples = {name: each.fingerprint for name, each in sets.items()}
    check_same(
        {"the config": to_plain(config), "the examples": examples, "the versions": versions()}
    )

    lengths = (
        identity["row_lengths"] if task is None else _row_lengths(config.max_shapes, model, sets)
    )
    mesh = _mesh(config.mesh)
    learned = task_of(model, config.compute.resolve(jax.devices()[0], model.encoder))
    rows = -(-config.rows_evaluated // batch_extent(mesh)) * batch_extent(mesh)
    steps = make_prediction_step(learned, mesh), make_metrics_step(learned, mesh)
    scorer = Scorer(mesh, learned, *steps, rows, lengths)
    definition = learned.definition
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    params = load_parameters(work_dir / CHECKPOINTS_NAME, definition, shardings, step)
    told = unknown_lines({name: each.features for name, each in sets.items()}, tokenizer)
    if task is None:
        return Evaluation(work_dir, step, sets, labeled, source, scorer, params, told)
    names = next(iter(sets.values())).labels_in_files
    places = score_places(model, found.head, names, work_dir)
    params = params if places is None else with_scores_in_order(params, places)
    told += unnamed_told(model, found.head)
    return Evaluation(work_dir, step, sets, labeled, source, scorer, params, told)


def _asked(
    found: TaskData, split: Split, work_dir: Path, data: str | None
) -> Mapping[str, ExampleSet]:
    """The sets to be asked, by name. ValueError if there are none."""
    sets = found.validation if split == "validation" else found.test
    if not sets and data is not None:
        raise ValueError(
            f"{data} holds no {split} files of the task; expected a directory with them as GLUE "
            "hands it out, or one file"
        )
    if not sets:
        raise ValueError(
            f"there are no test files for {work_dir}: its config names none, or they are gone; "
            "give one as --data"
        )
    return sets if data is None else named_after(data, sets)


_FORMATS = (
    *(".tsv", ".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq", ".txt", ".text"),
    *(".conll", ".conll03", ".conll2003", ".conllu", ".bio", ".iob", ".iob2"),
)


def named_after(path: str, sets: Mapping[str, ExampleSet]) -> dict[str, ExampleSet]:
    """Return the set that was read from the file `path`, named after the file.

    The name leaves out the extension of a known format but keeps others, as in "eng.testa". The
    sets of a directory or of TensorFlow Datasets keep their names.
    """
    if is_tfds(path) or Path(path).is_dir():
        return dict(sets)
    (examples,) = sets.values()
    file = Path(path)
    file = file.with_suffix("") if file.suffix.lower() in COMPRESSIONS else file
    return {file.stem if file.suffix.lower() in _FORMATS else file.name: examples}


def _row_lengths(
    max_shapes: int, model: ModelConfig, sets: Mapping[str, ExampleSet]
) -> tuple[int, ...]:
    """Return the row lengths of a run that trains on the first set."""
    features = next(iter(sets.values())).features
    return row_lengths(features, max_shapes, model.encoder.max_positions)


def _config_of(work_dir: Path) -> FinetuneConfig:
    """What the run was given. ValueError if the directory is not one of `finetune`."""
    if not (work_dir / MODEL_NAME).is_file():
        raise ValueError(
            f"{work_dir}: no {MODEL_NAME} in it{path_advice(work_dir)}; expected the work "
            f"directory of a `{FINETUNE}`"
        )
    made_by = read_model(work_dir)[1].get("command", "another command")
    if made_by != FINETUNE:
        raise ValueError(
            f"{work_dir} is a work directory of `{made_by}`: its model has learned no task to be "
            f"scored on here. Name one that it learned elsewhere with --config "
            f"configs/finetune/TASK.py, or fine-tune it first: `{FINETUNE} --config "
            f"configs/finetune/TASK.py --init {work_dir}`"
        )
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        raise ValueError(f"{work_dir}: no {RESOLVED_NAME} in it, which says what the task is")
    return to_dataclass(FinetuneConfig, read_json_object(file), str(file))


def _told_from_elsewhere(task: TaskConfig, work_dir: Path) -> str:
    """Where the run's files are looked for, if they were named relative to another directory."""
    if not task.is_missing():
        return ""
    return (
        f". The run of {work_dir} had its files from the directory it was started in, and this is "
        f"{Path.cwd()}: go there, or name a file with --data"
    )


def _check_separate(paths: Sequence[str], into: Path) -> None:
    """Refuse a directory of the task's files, which predictions named after sets could replace."""
    for path in paths:
        if into.resolve() in (Path(path).resolve(), Path(path).resolve().parent):
            raise ValueError(
                f"--predictions {into} is where the task has its files ({path}), and could replace "
                "one: give another directory"
            )


def _mesh(config: MeshConfig) -> Mesh:
    """The run's mesh; where there are other devices than it had, all of them for the batch."""
    try:
        return make_mesh(config)
    except ValueError:
        return make_mesh(MeshConfig())
