"""Describe, check and load a pretraining run's teacher.

A student can start from its teacher's layers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.models.config import ComputeConfig, Device, EncoderConfig, incompatible_fields
from bert_jax.models.heads import PAIRS_HEAD
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters
from bert_jax.objectives import SentencePairs
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    PAIRS,
    TOKENIZER_NAME,
    default_checkpoint_step,
    read_model,
    read_tokenizer,
)
from bert_jax.tasks.distillation import (
    DistillationConfig,
    PretrainingTeacher,
    chosen_layers,
    matched_layers,
)
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_files import identity_of
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed
from bert_jax.training.sharding import parameter_shardings
from bert_jax.training.step import (
    fingerprint,
)


@dataclass(frozen=True)
class TeacherSpec:
    """The description of a teacher, without its parameters.

    pairs: the kind of sentence pairs that its head tells apart.
    """

    config: DistillationConfig
    model: ModelConfig
    pairs: SentencePairs
    compute: ComputeConfig
    teacher: PretrainingTeacher


def describe_teacher(
    distillation: DistillationConfig,
    student: EncoderConfig,
    compute: ComputeConfig,
    device: Device,
    longest_sequence: int,
) -> TeacherSpec:
    """Return the description of a run's teacher on `device`.

    Args:
      compute: of the student, as in its config.
      longest_sequence: tokens of a sequence in the phase with the longest ones.

    Raises:
      ValueError: it is no work directory with a masked-LM head, has another vocabulary size or too
        few positions; or, where what is compared depends on it, another `hidden_dim`, other
        `num_heads` or fewer layers.
    """
    directory = Path(distillation.teacher)
    try:
        model, origin = read_model(directory)
    except ValueError as error:
        raise ValueError(f"distillation.teacher: {error}") from error
    if model.head not in ("pretraining", "masked_lm"):
        raise ValueError(
            f"distillation.teacher={directory} has the head {model.head!r}; expected a masked-LM "
            "head ('pretraining' or 'masked_lm'), whose guesses are learned. Give a pretrained "
            "model that has not been fine-tuned"
        )
    _check(distillation, model.encoder, student, longest_sequence)
    dtype = distillation.dtype
    if dtype == "auto":
        dtype = compute.resolve(device, student).dtype
    # The teacher has no dropout; a request for XLA's attention holds for both models.
    without_dropout = replace(model.encoder, attention_dropout=0.0)
    requested = ComputeConfig(dtype=dtype)
    if compute.attention == "xla":
        requested = replace(requested, attention="xla")
    resolved = requested.resolve(device, without_dropout)
    pairs = cast(SentencePairs, origin.get(PAIRS, "next_sentence"))
    if model.head == "masked_lm":
        pairs = "none"
    definition = Pretraining(model.encoder, resolved, sentence_pairs=pairs).definition
    layers: list[int] = []
    if distillation.hidden_weight or distillation.attention_weight:
        layers = matched_layers(student.num_layers, model.encoder.num_layers)
    teacher = PretrainingTeacher(definition, distillation, layers)
    return TeacherSpec(distillation, model, pairs, resolved, teacher)


def _check(
    distillation: DistillationConfig,
    teacher: EncoderConfig,
    student: EncoderConfig,
    longest_sequence: int,
) -> None:
    """Raise ValueError naming the property of the teacher that does not fit the run."""
    where = f"distillation.teacher={distillation.teacher}"
    if teacher.vocab_size != student.vocab_size:
        raise ValueError(
            f"{where} has model.vocab_size={teacher.vocab_size}, this run {student.vocab_size}: a "
            "student scores the same tokens; set it as there"
        )
    if teacher.max_positions < longest_sequence:
        raise ValueError(
            f"{where} reads {teacher.max_positions} positions, a phase has sequences of "
            f"{longest_sequence}: take a teacher of more positions, or shorter sequences"
        )
    if distillation.cosine_weight and teacher.hidden_dim != student.hidden_dim:
        raise ValueError(
            f"{where} has hidden_dim={teacher.hidden_dim}, this run {student.hidden_dim}: vectors "
            "of different sizes have no angle between them; set distillation.cosine_weight=0, or "
            "the same hidden_dim"
        )
    if distillation.attention_weight and teacher.num_heads != student.num_heads:
        raise ValueError(
            f"{where} has num_heads={teacher.num_heads}, this run {student.num_heads}: attention "
            "is compared head by head; set distillation.attention_weight=0, or as many heads"
        )


IDENTITY = "distillation"  # what a checkpoint of a student keeps of its teacher
_SHOWN = 4  # of parameters that do not fit; the rest are counted
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class LoadedTeacher:
    """A teacher with its parameters of one step, sharded over the mesh like a student's."""

    spec: TeacherSpec
    step: int
    params: Parameters


def load_teacher(
    spec: TeacherSpec, mesh: Mesh, tokenizer: Tokenizer, corpus: str, kept: Mapping[str, Any]
) -> LoadedTeacher:
    """Load a teacher's parameters.

    Args:
      tokenizer: of the student.
      corpus: the directory that was prepared with it, for the message.
      kept: the `teachers_identity` of the checkpoint that the run resumes from, whose step of the
        teacher is loaded again, however long the teacher was trained since; {} at the start.

    Raises:
      ValueError: the teacher has another tokenizer, or its step no longer exists.
    """
    directory = Path(spec.config.teacher)
    if read_tokenizer(directory, spec.model.encoder).fingerprint != tokenizer.fingerprint:
        raise ValueError(
            f"distillation.teacher={directory} was trained with another tokenizer than "
            f"{corpus} was prepared with: its guesses are of other tokens. "
            f"Prepare the corpus with --tokenizer {directory}/{TOKENIZER_NAME}"
        )
    step, checkpoints = kept.get("step"), directory / CHECKPOINTS_NAME
    if step is None:
        step = agreed(default_checkpoint_step(directory))
    else:
        try:
            identity_of(checkpoints, step)
        except ValueError as error:
            raise ValueError(
                f"this run's teacher was step {step}, but {error}. Put that teacher back, or give "
                "another --config.work_dir to learn from this one"
            ) from error
    definition = spec.teacher.definition
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    return LoadedTeacher(spec, step, load_parameters(checkpoints, definition, shardings, step))


def teachers_identity(
    config: DistillationConfig | None, opened: LoadedTeacher | None, kept: Mapping[str, Any]
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
        values["encoder"] = dataclasses.asdict(opened.spec.model.encoder)
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
    spec: TeacherSpec,
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
    theirs, where = spec.model.encoder, spec.config.teacher
    _check_meaning(theirs, student, where)
    layers = chosen_layers(student.num_layers, theirs.num_layers)
    found: dict[str, str | None] = {}
    odd, given = [], spec.teacher.definition.shapes
    for name, shape in shapes.items():
        number, source = _LAYER.match(name), name
        if number:
            source = f"encoder.layers.{layers[int(number[1])]}.{name[number.end() :]}"
        if source not in given or (name.startswith(PAIRS_HEAD) and spec.pairs != pairs):
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
    opened: LoadedTeacher,
    student: EncoderConfig,
    pairs: SentencePairs,
    fresh: Mapping[str, jax.Array],
) -> tuple[Parameters, str]:
    """A student's first parameters out of its teacher's, by `sources`; `fresh` where it has none.

    Returns: the parameters, on the devices of `fresh`, and what is said of them.
    """
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in fresh.items()}
    params, taken = {}, set()
    found = sources(opened.spec, student, pairs, shapes)
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
    told += f"{opened.spec.model.encoder.num_layers - 1}"
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
    lines = [line for line in incompatible_fields(alike, student) if not line.startswith(sizes)]
    if lines:
        raise ValueError(
            f"distillation.init_layers=True, but {where} computes other things with its parameters "
            "than the student (there -> here):\n  " + "\n  ".join(lines) + "\n"
            "Set model.* as there, or distillation.init_layers=False"
        )
