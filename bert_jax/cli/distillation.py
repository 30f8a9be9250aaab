"""A pretraining run's teacher with its parameters, and what a student begins with."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from bert_jax.cli.phases import PhaseCorpus
from bert_jax.cli.run_config import PretrainConfig
from bert_jax.cli.teacher import KnownTeacher, known_teacher, tasks_of
from bert_jax.inference.work_dir import (
    CHECKPOINTS_NAME,
    TOKENIZER_NAME,
    chosen_step,
    read_tokenizer,
)
from bert_jax.models.config import EncoderConfig, computed_otherwise
from bert_jax.models.heads import PAIRS_HEAD
from bert_jax.models.parameters import Parameters
from bert_jax.objectives import SentencePairs
from bert_jax.tasks.distillation import DistillationConfig, chosen_layers
from bert_jax.tasks.protocol import Task
from bert_jax.training.checkpoint_files import identity_of
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed
from bert_jax.training.fingerprint import fingerprint
from bert_jax.training.sharding import parameter_shardings
from bert_jax.training.step import (
    EvaluationStep,
    TrainStep,
    make_evaluation_step,
    make_train_step,
)

IDENTITY = "distillation"  # what a checkpoint of a student keeps of its teacher
_SHOWN = 4  # of parameters that do not fit; the rest are counted
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class OpenTeacher:
    """A teacher with its parameters of one step, split over the mesh as a student's are."""

    known: KnownTeacher
    step: int
    params: Parameters


def open_teacher(
    config: PretrainConfig, corpora: list[PhaseCorpus], mesh: Mesh, kept: Mapping[str, Any]
) -> OpenTeacher | None:
    """The run's teacher; None if it has none.

    kept: the `teachers_identity` of the checkpoint that the run goes on from, whose step of the
      teacher is opened again, however long that one has trained since; {} at the start.

    Raises:
      ValueError: see `known_teacher`, and at a start that begins with its layers `sources`;
        another tokenizer; that step is no longer there.
    """
    known = known_teacher(config, jax.devices()[0])
    if known is None:
        return None
    directory = Path(known.config.teacher)
    theirs = read_tokenizer(directory, known.model.encoder)
    if theirs.fingerprint != corpora[0].tokenizer.fingerprint:
        raise ValueError(
            f"distillation.teacher={directory} was trained with another tokenizer than "
            f"{corpora[0].config.corpus} was prepared with: its guesses are of other tokens. "
            f"Prepare the corpus with --tokenizer {directory}/{TOKENIZER_NAME}"
        )
    if known.config.init_layers and not kept:
        task, _ = tasks_of(config, known.compute, known)
        sources(known, config.model, config.sentence_pairs, task.definition.shapes)
    step, checkpoints = kept.get("step"), directory / CHECKPOINTS_NAME
    if step is None:
        step = agreed(chosen_step(directory))
    else:
        try:
            identity_of(checkpoints, step)
        except ValueError as error:
            raise ValueError(
                f"this run's teacher was step {step}, but {error}. Put that teacher back, or give "
                "another --config.work_dir to learn from this one"
            ) from error
    definition = known.teacher.definition
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    return OpenTeacher(known, step, load_parameters(checkpoints, definition, shardings, step))


def teachers_identity(
    config: DistillationConfig | None, opened: OpenTeacher | None, kept: Mapping[str, Any]
) -> dict[str, object]:
    """What a checkpoint of a student must share with a run that goes on from it.

    opened: None where nothing is learned any more, and the teacher may be gone: it is as `kept`.
    """
    if config is None:
        return {}
    values = {**kept, **dataclasses.asdict(config)}
    del values["teacher"]  # which may move
    if opened is not None:
        values["step"] = opened.step
        values["parameters"] = fingerprint(opened.params)
        values["encoder"] = dataclasses.asdict(opened.known.model.encoder)
    return {IDENTITY: values}


# What a student may have otherwise than the teacher it takes parameters from: their shapes tell, or
# they are no part of what it takes.
_MAY_DIFFER = (
    "num_layers",
    "num_segments",
    "max_positions",
    "sharing",
    "num_groups",
    "pooler_activation",
    "pooler_dropout",
)


def sources(
    known: KnownTeacher,
    student: EncoderConfig,
    pairs: SentencePairs,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, str | None]:
    """For each parameter of a student the teacher's that it starts from; None for none.

    Layers from evenly spaced ones, all else from what has its name, but for the head of pairs of
    one that tells others apart than `pairs`.

    Raises:
      ValueError: a parameter has another shape in the teacher, or means something else there, or
        it has too few layers.
    """
    theirs, where = known.model.encoder, known.config.teacher
    _check_meaning(theirs, student, where)
    layers = chosen_layers(student.num_layers, theirs.num_layers)
    found: dict[str, str | None] = {}
    odd, given = [], known.teacher.definition.shapes
    for name, shape in shapes.items():
        number, source = _LAYER.match(name), name
        if number:
            source = f"encoder.layers.{layers[int(number[1])]}.{name[number.end() :]}"
        if source not in given or (name.startswith(PAIRS_HEAD) and known.pairs != pairs):
            found[name] = None
            continue
        found[name], there = source, given[source].shape
        if there != shape.shape:
            odd.append(f"  {name} {list(shape.shape)}, the teacher's {source} {list(there)}")
    if len(odd) > _SHOWN:
        odd = [*odd[:_SHOWN], f"  and {len(odd) - _SHOWN} more"]
    if odd:
        raise ValueError(
            f"distillation.init_layers=True, but parameters of {where} have other shapes than the "
            "student's:\n" + "\n".join(odd) + "\nSet the model's sizes as there, or "
            "distillation.init_layers=False"
        )
    return found


def from_teacher(
    opened: OpenTeacher,
    student: EncoderConfig,
    pairs: SentencePairs,
    fresh: Mapping[str, jax.Array],
) -> tuple[Parameters, str]:
    """A student's first parameters out of its teacher's, by `sources`; `fresh` where it has none.

    Returns: the parameters, on the devices of `fresh`, and what is said of them.
    """
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in fresh.items()}
    params, taken = {}, set()
    found = sources(opened.known, student, pairs, shapes)
    for name, source in found.items():
        if source is None:
            params[name] = fresh[name]
            continue
        # A copy: the step takes the student's buffers away, and the teacher keeps its own.
        params[name] = jnp.copy(jax.device_put(opened.params[source], fresh[name].sharding))
        if layer := _LAYER.match(source):
            taken.add(int(layer[1]))
    new = [name for name, source in found.items() if source is None]
    told = f"the teacher's parameters, its layers {', '.join(map(str, sorted(taken)))} of 0 to "
    told += f"{opened.known.model.encoder.num_layers - 1}"
    return params, told + (f"; randomly initialized: {', '.join(new)}" if new else "")


def _check_meaning(theirs: EncoderConfig, student: EncoderConfig, where: str) -> None:
    """Raises ValueError where the teacher's parameters are none that a student can use."""
    if theirs.sharing != "none":
        raise ValueError(
            f"distillation.teacher={where} has layers that share parameters "
            f"(sharing={theirs.sharing!r}): none can be taken out; set distillation.init_layers="
            "False"
        )
    alike = dataclasses.replace(theirs, **{name: getattr(student, name) for name in _MAY_DIFFER})
    # Sizes are told by the shapes, parameter by parameter.
    sizes = ("hidden_dim", "ffn_dim", "embedding_dim")
    lines = [line for line in computed_otherwise(alike, student) if not line.startswith(sizes)]
    if lines:
        raise ValueError(
            f"distillation.init_layers=True, but {where} computes other things with its parameters "
            "than the student (there -> here):\n  " + "\n  ".join(lines) + "\n"
            "Set model.* as there, or distillation.init_layers=False"
        )


def steps_of(
    config: PretrainConfig,
    learned: Task,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    opened: OpenTeacher | None,
) -> tuple[TrainStep, EvaluationStep]:
    """The steps of a run, with its teacher's parameters, if it has one, in their arguments."""
    parts = config.accumulation_steps
    if opened is None:
        step = make_train_step(learned, optimizer, mesh, accumulation_steps=parts)
        return step, make_evaluation_step(learned, mesh)
    teacher, params = opened.known.teacher, opened.params
    taught = make_train_step(learned, optimizer, mesh, accumulation_steps=parts, teacher=teacher)
    judged = make_evaluation_step(learned, mesh, teacher=teacher)
    return (
        lambda state, batch, dials: taught(state, batch, dials._replace(teacher=params)),
        lambda ours, batch: judged(ours, batch, params),
    )
