"""Initialize the parameters of a student from its teacher."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from bert_jax.models.config import EncoderConfig, incompatible_fields
from bert_jax.models.heads import PAIRS_HEAD
from bert_jax.models.parameters import Parameters
from bert_jax.objectives import SentencePairs
from bert_jax.pretraining.teacher import LoadedTeacher, TeacherSpec
from bert_jax.tasks.matched_layers import chosen_layers

_MAX_LISTED = 4  # The maximum number of mismatched parameters in a message.
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
# Fields in which a student may differ from the teacher that initializes it: either the difference
# shows up in the parameter shapes, or it affects only parameters that are not copied.
_MAY_DIFFER = (
    "num_layers",
    "num_segments",
    "max_positions",
    "sharing",
    "num_groups",
    "pooler_activation",
    "pooler_dropout",
)


def teacher_sources(
    spec: TeacherSpec,
    student: EncoderConfig,
    pairs: SentencePairs,
    shapes: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, str | None]:
    """Return which teacher parameter initializes each student parameter.

    The student's layers are initialized from evenly spaced teacher layers, and its other
    parameters from the teacher's parameters with the same names. The sentence-pair head is copied
    only if both models are trained on the same kind of pairs.

    Args:
      spec: the description of the teacher.
      student: the student's encoder.
      pairs: the student's kind of sentence pairs.
      shapes: a dict from the student's parameter names to their shapes.

    Returns:
      A dict from the student's parameter names to the teacher's, with None for parameters that
      are randomly initialized.

    Raises:
      ValueError: one of the teacher's parameters has a different shape or meaning, or the teacher
        has too few layers.
    """
    teacher, directory = spec.model.encoder, spec.config.teacher
    _check_meaning(teacher, student, directory)
    layers = chosen_layers(student.num_layers, teacher.num_layers)
    sources: dict[str, str | None] = {}
    different, available = [], spec.teacher.definition.shapes
    for name, shape in shapes.items():
        number, source = _LAYER.match(name), name
        if number:
            source = f"encoder.layers.{layers[int(number[1])]}.{name[number.end() :]}"
        if source not in available or (name.startswith(PAIRS_HEAD) and spec.pairs != pairs):
            sources[name] = None
            continue
        sources[name], expected = source, available[source].shape
        if expected != shape.shape:
            different.append(
                f"  {name} {list(shape.shape)}, the teacher's {source} {list(expected)}"
            )
    if len(different) > _MAX_LISTED:
        different[_MAX_LISTED:] = [f"  and {len(different) - _MAX_LISTED} more"]
    if different:
        raise ValueError(
            f"distillation.init_layers=True, but some parameters in {directory} differ in shape "
            "from the student's:\n" + "\n".join(different) + "\nSet the model's sizes to the "
            "teacher's, or set distillation.init_layers=False."
        )
    return sources


def student_parameters(
    teacher: LoadedTeacher, student: EncoderConfig, pairs: SentencePairs, *, initial: Parameters
) -> tuple[Parameters, str]:
    """Return initial student parameters copied from the teacher, and a line describing them.

    Args:
      teacher: the teacher.
      student: the student's encoder.
      pairs: the student's kind of sentence pairs.
      initial: randomly initialized parameters, used where the teacher has no counterpart. The
        result is sharded like them.

    Raises:
      ValueError: see `teacher_sources`.
    """
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in initial.items()}
    params, layers = {}, set()
    sources = teacher_sources(teacher.spec, student, pairs, shapes)
    for name, source in sources.items():
        if source is None:
            params[name] = initial[name]
            continue
        # Make a copy, because the train step donates the student's buffers but not the teacher's.
        params[name] = jnp.copy(jax.device_put(teacher.params[source], initial[name].sharding))
        if layer := _LAYER.match(source):
            layers.add(int(layer[1]))
    missing = [name for name, source in sources.items() if source is None]
    line = (
        f"the teacher's parameters, with layers {', '.join(map(str, sorted(layers)))} (of 0 to "
        f"{teacher.spec.model.encoder.num_layers - 1})"
    )
    return params, line + (f"; randomly initialized: {', '.join(missing)}" if missing else "")


def _check_meaning(teacher: EncoderConfig, student: EncoderConfig, directory: str) -> None:
    """Reject a teacher whose parameters would have a different meaning in the student.

    Raises:
      ValueError: the teacher's layers share parameters, or its settings differ; the message names
        the differences.
    """
    if teacher.sharing != "none":
        raise ValueError(
            f"distillation.teacher={directory} has layers that share parameters "
            f"(sharing={teacher.sharing!r}), so individual layers cannot be copied. Set "
            "distillation.init_layers=False."
        )
    alike = dataclasses.replace(teacher, **{name: getattr(student, name) for name in _MAY_DIFFER})
    # Differences in these sizes are caught when the shape of each parameter is compared.
    sizes = ("hidden_dim", "ffn_dim", "embedding_dim")
    lines = [line for line in incompatible_fields(alike, student) if not line.startswith(sizes)]
    if lines:
        raise ValueError(
            f"distillation.init_layers=True, but {directory} computes different outputs from its "
            "parameters than the student (teacher -> student):\n  " + "\n  ".join(lines) + "\n"
            "Set model.* to the teacher's values, or set distillation.init_layers=False."
        )
