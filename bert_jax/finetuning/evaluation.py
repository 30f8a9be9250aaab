"""Evaluate a fine-tuned work directory on its own task or on the task of another config."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.finetuning.config import (
    SECTIONS,
    FinetuneConfig,
    named_after,
    paths_of,
    source_of,
    with_columns,
    with_file,
)
from bert_jax.finetuning.outcome import check_files, claim_files
from bert_jax.finetuning.programs import unknown_lines
from bert_jax.finetuning.scoring import Scorer, row_lengths
from bert_jax.finetuning.task_data import ExampleSet, HeadConfig, TaskData
from bert_jax.json_files import read_json_object
from bert_jax.labeled_data.files import Split, has_file
from bert_jax.models.model import Head, ModelConfig
from bert_jax.models.parameters import Parameters
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.runtime import versions
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    MODEL_NAME,
    chosen_step,
    read_model,
    read_tokenizer,
    what_it_is,
)
from bert_jax.tasks.finetuning import task_of
from bert_jax.training.checkpoint_files import identity_of
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed, check_same
from bert_jax.training.sharding import MeshConfig, batch_extent, make_mesh, parameter_shardings
from bert_jax.training.step import make_metrics_step, make_prediction_step

_UNNAMED = re.compile(r"LABEL_\d+")


_HEADS: dict[str, Head] = {
    "glue": "classification",
    "sentences": "classification",
    "choices": "multiple_choice",
    "tags": "tagging",
    "spans": "span",
}


def check_head(config: FinetuneConfig, model: ModelConfig, work_dir: Path) -> None:
    """Raises ValueError if the model's head is not that of the config's section.

    Before the files are read: they would be blamed for labels that are another task's.
    """
    section = next(name for name in SECTIONS if getattr(config, name) is not None)
    if model.head != _HEADS[section]:
        raise ValueError(
            f"the model of {work_dir} is for {model.head} ({model.problem}), the config's section "
            f"{section!r} for {_HEADS[section]}: give the config of a task that it has learned"
        )


def check_positions(config: FinetuneConfig, model: ModelConfig, work_dir: Path) -> None:
    """Raises ValueError if the task's sequences are longer than the model can read."""
    positions = model.encoder.max_positions
    if config.max_length > positions:
        raise ValueError(
            f"max_length={config.max_length}, but the model of {work_dir} has {positions} "
            f"positions: set --config.max_length to that at most"
        )


def tagged_alike(config: FinetuneConfig, model: ModelConfig) -> FinetuneConfig:
    """Return the config with the model's tag scheme: as written for BIOES, BILOU and BMES.

    IOB1 is known by a type that is never parted from the one before: there is I-X and no B-X. Where
    every type has both, only who made the model knows, and says learn_as='IOB1': what the config
    says other than the default is left as it is.
    """
    if config.tags is None or config.tags.files.learn_as != "IOB2":
        return config
    parted = {label[2:] for label in model.labels if label.startswith("B-")}
    if any(label.startswith(("S-", "E-", "U-", "L-", "M-")) for label in model.labels):
        files = replace(config.tags.files, learn_as="as_written")
    elif any(label.startswith("I-") and label[2:] not in parted for label in model.labels):
        files = replace(config.tags.files, learn_as="IOB1")
    else:
        return config
    return replace(config, tags=replace(config.tags, files=files))


def score_places(
    model: ModelConfig, head: HeadConfig, names: Sequence[str], work_dir: Path
) -> tuple[int, ...] | None:
    """Which of the model's scores is which label of the task; None if they are in its order.

    By name, else by name whatever its case: models of one task have their labels in any order.
    Labels without a name (LABEL_0, ...) are taken in the task's; see `unnamed`.

    head, names: the task's; `names` is what its files call the labels of `head`.

    Raises:
      ValueError: the model has another kind of head or other labels.
    """
    if (model.head, model.problem) != (head.head, head.problem):
        raise ValueError(
            f"the model of {work_dir} is for {model.head} ({model.problem}), the config for "
            f"{head.head} ({head.problem}): give the config of a task that it has learned"
        )
    same_size = len(model.labels) == len(head.labels)
    if model.labels == head.labels or (head.problem == "regression" and same_size):
        return None
    for called in (head.labels, names):
        for name_of in (str, str.casefold):
            theirs, wanted = ([name_of(x) for x in each] for each in (model.labels, called))
            if len(set(theirs)) == len(theirs) and sorted(theirs) == sorted(wanted):
                return tuple(map(theirs.index, wanted))
    if same_size and unnamed(model):
        return None
    raise ValueError(
        f"the model of {work_dir} tells the labels {', '.join(map(repr, model.labels))}, the "
        f"config {', '.join(map(repr, head.labels))}: give the config of a task that it has learned"
    )


def unnamed(model: ModelConfig) -> bool:
    """Whether several labels are called as Hugging Face calls those that nobody has named."""
    return len(model.labels) > 1 and all(map(_UNNAMED.fullmatch, model.labels))


def unnamed_told(model: ModelConfig, head: HeadConfig) -> list[str]:
    """A line that says what labels without a name are taken for."""
    if not unnamed(model) or model.labels == head.labels:
        return []
    taken = (f"{label} for {name!r}" for label, name in zip(model.labels, head.labels, strict=True))
    return [f"NOTE  the model's labels have no names: {', '.join(taken)}, the task's order"]


def with_scores_in_order(params: Parameters, places: Sequence[int]) -> Parameters:
    """The parameters of a classifier whose scores stand as `score_places` found them."""
    chosen = jnp.array(places)
    parts = ("classifier.kernel", "classifier.bias")
    return {**params, **{name: jnp.take(params[name], chosen, axis=-1) for name in parts}}


FINETUNE = "bert-jax finetune"


@dataclass(frozen=True)
class SetScores:
    """What a model does on a set; see `ExampleSet` for the types. scores: none without labels."""

    examples: int
    scores: dict[str, float]
    by_type: dict[str, dict[str, float]]
    type_is: str
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Evaluation:
    """A checkpoint and the sets to evaluate it on, which are all labelled or all unlabelled.

    source: the input of the predictions, as returned by `source_of`, and their work directory.
    """

    work_dir: Path
    step: int
    sets: Mapping[str, ExampleSet]
    labelled: bool
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
            if self.labelled:
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
    labelled: bool = True,
    into: Path | None = None,
    task: FinetuneConfig | None = None,
) -> Evaluation:
    """Reads a work directory, and its validation set or the file `data` in its place.

    labelled: if not, its test sets, or `data` in their place, whose labels are not known. into:
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
        check_head(task, model, work_dir)
    check_positions(config, model, work_dir)
    step = agreed(chosen_step(work_dir)) if step is None else step
    identity = identity_of(work_dir / CHECKPOINTS_NAME, step)
    split: Split = "validation" if labelled else "test"
    if data is not None:
        config = with_file(config, data, split)
    if into is not None:
        _check_separate(config, into)
    tokenizer = read_tokenizer(work_dir, model.encoder)
    if task is not None:
        config = with_columns(tagged_alike(config, model), split, model)
    where = _told_from_elsewhere(config, work_dir) if task is None and data is None else ""
    try:
        found = config.open(tokenizer, [split], model.labels)
    except ValueError as error:
        if not where:
            raise
        raise ValueError(f"{error}{where}") from error
    sets = _asked(found, split, work_dir, data)
    source = f"{source_of(config, split)} by {work_dir.resolve()}"
    if into is not None:
        files = [file for name, each in sets.items() for file in each.file_names(name)]
        check_files(into, files, source)
    examples = {name: each.fingerprint for name, each in sets.items()}
    check_same(
        {"the config": to_plain(config), "the examples": examples, "the versions": versions()}
    )

    lengths = identity["row_lengths"] if task is None else _row_lengths(config, model, sets)
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
        return Evaluation(work_dir, step, sets, labelled, source, scorer, params, told)
    names = next(iter(sets.values())).labels_in_files
    places = score_places(model, found.head, names, work_dir)
    params = params if places is None else with_scores_in_order(params, places)
    told += unnamed_told(model, found.head)
    return Evaluation(work_dir, step, sets, labelled, source, scorer, params, told)


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


def _row_lengths(
    config: FinetuneConfig, model: ModelConfig, sets: Mapping[str, ExampleSet]
) -> tuple[int, ...]:
    """As of a run that learns from the first set."""
    features = next(iter(sets.values())).features
    return row_lengths(features, config.max_shapes, model.encoder.max_positions)


def _config_of(work_dir: Path) -> FinetuneConfig:
    """What the run was given. ValueError if the directory is not one of `finetune`."""
    if not (work_dir / MODEL_NAME).is_file():
        raise ValueError(
            f"{work_dir}: no {MODEL_NAME} in it{what_it_is(work_dir)}; expected the work directory "
            f"of a `{FINETUNE}`"
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


def _told_from_elsewhere(config: FinetuneConfig, work_dir: Path) -> str:
    """Where the run's files are looked for, if they were named relative to another directory."""
    relative = [Path(path) for path in paths_of(config) if not Path(path).is_absolute()]
    directory = Path(config.glue.directory if config.glue else "")
    if not relative or any(map(has_file, relative)) or (config.glue and directory.is_dir()):
        return ""
    return (
        f". The run of {work_dir} had its files from the directory it was started in, and this is "
        f"{Path.cwd()}: go there, or name a file with --data"
    )


def _check_separate(config: FinetuneConfig, into: Path) -> None:
    """Predictions are called after their sets: none may come to lie over a file of the task."""
    for path in paths_of(config):
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
