"""Describe, check and load the teacher of a pretraining run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never, cast

from jax.sharding import Mesh

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.devices import Device
from bert_jax.models.model import ModelConfig
from bert_jax.models.options import AttentionBackend
from bert_jax.models.parameters import Parameters
from bert_jax.objectives import SentencePairs
from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.runs.model_location import local_model
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    PAIRS,
    TOKENIZER_NAME,
    read_model,
    read_tokenizer,
)
from bert_jax.tasks.distillation import DistillationConfig, PretrainingTeacher
from bert_jax.tasks.matched_layers import matched_layers
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_files import identity_of
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed
from bert_jax.training.sharding import parameter_shardings
from bert_jax.training.state import fingerprint


@dataclass(frozen=True)
class TeacherSpec:
    """The description of a teacher, without its parameters.

    Attributes:
      config: the distillation losses and the teacher's work directory.
      model: the teacher's encoder and head.
      pairs: the kind of sentence pairs that the teacher was trained on.
      compute: the teacher's compute settings with every "auto" resolved.
      teacher: the teacher in the form that the train step uses.
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
    step: int | None = None,
) -> TeacherSpec:
    """Return the description of a run's teacher on `device`.

    Args:
      distillation: the distillation losses and the teacher's work directory.
      student: the student's encoder.
      compute: the student's compute settings as specified in the config.
      device: the device that the teacher runs on.
      longest_sequence: the longest sequence length of any phase.
      step: the step of the teacher's checkpoint; None for the newest one.

    Raises:
      ValueError: the directory is not a work directory with a masked-LM head, or the teacher does
        not fit the student. The teacher must have the student's vocabulary size and enough
        positions. Depending on the losses, it must also have the same `hidden_dim` or `num_heads`
        and at least as many layers.
    """
    directory = local_model(distillation.teacher, "distillation.teacher")
    try:
        model, origin = read_model(directory, step)
    except ValueError as error:
        raise ValueError(f"distillation.teacher: {error}") from error
    if model.head not in ("pretraining", "masked_lm"):
        raise ValueError(
            f"distillation.teacher={directory}: the teacher's head is {model.head!r}, but the "
            "student needs a teacher with a masked-LM head ('pretraining' or 'masked_lm'). Use a "
            "pretrained model that has not been fine-tuned."
        )
    _check_comparable(distillation, model.encoder, student, longest_sequence)
    dtype = distillation.dtype
    if dtype == "auto":
        dtype = compute.resolve(device, student, longest_sequence).dtype
    without_dropout = replace(model.encoder, attention_dropout=0.0)
    requested = ComputeConfig(dtype=dtype, attention=_attention(compute.attention))
    resolved = requested.resolve(device, without_dropout, longest_sequence)
    pairs = cast(SentencePairs, origin.get(PAIRS, "next_sentence"))
    if model.head == "masked_lm":
        pairs = "none"
    definition = Pretraining(model.encoder, resolved, sentence_pairs=pairs).definition
    layers: list[int] = []
    if distillation.hidden_weight or distillation.attention_weight:
        layers = matched_layers(student.num_layers, model.encoder.num_layers)
    teacher = PretrainingTeacher(definition, distillation, layers)
    return TeacherSpec(distillation, model, pairs, resolved, teacher)


def _attention(requested: AttentionBackend) -> AttentionBackend:
    """Return the attention backend to request for the teacher, given the one for the student."""
    match requested:
        case "xla" | "splash":
            return requested
        case "cudnn" | "flash_gpu" | "flash_tpu" | "auto":
            # The teacher's dtype or head size may not allow a fused kernel. "auto" selects one if
            # they do.
            return "auto"
        case _:
            assert_never(requested)


def _check_comparable(
    distillation: DistillationConfig,
    teacher: EncoderConfig,
    student: EncoderConfig,
    longest_sequence: int,
) -> None:
    """Reject a teacher whose sizes make the distillation losses impossible to compute.

    Raises:
      ValueError: a property of the teacher does not fit the run; the message names it.
    """
    key = f"distillation.teacher={distillation.teacher}"
    if teacher.vocab_size != student.vocab_size:
        raise ValueError(
            f"{key} has model.vocab_size={teacher.vocab_size}, but this run has "
            f"{student.vocab_size}: both models must score the same tokens. Set model.vocab_size "
            "to the teacher's."
        )
    if teacher.max_positions < longest_sequence:
        raise ValueError(
            f"{key} has {teacher.max_positions} positions, but a phase has sequences of "
            f"{longest_sequence} tokens. Use a teacher with more positions, or shorten the "
            "sequences."
        )
    if distillation.cosine_weight and teacher.hidden_dim != student.hidden_dim:
        raise ValueError(
            f"{key} has hidden_dim={teacher.hidden_dim}, but this run has {student.hidden_dim}: "
            "vectors of different sizes have no cosine similarity. Set "
            "distillation.cosine_weight=0, or set model.hidden_dim to the teacher's."
        )
    if distillation.attention_weight and teacher.num_heads != student.num_heads:
        raise ValueError(
            f"{key} has num_heads={teacher.num_heads}, but this run has {student.num_heads}: "
            "attention is compared head by head. Set distillation.attention_weight=0, or set "
            "model.num_heads to the teacher's."
        )


# The key in a student checkpoint's identity under which the teacher's values are stored.
TEACHER_IDENTITY = "distillation"


@dataclass(frozen=True)
class LoadedTeacher:
    """A teacher with the parameters of one checkpoint, sharded over the mesh like the student's."""

    spec: TeacherSpec
    step: int
    params: Parameters


def load_teacher(
    spec: TeacherSpec, mesh: Mesh, tokenizer: Tokenizer, corpus: str, identity: Mapping[str, Any]
) -> LoadedTeacher:
    """Load a teacher's parameters.

    Args:
      spec: the description of the teacher.
      mesh: the device mesh.
      tokenizer: the student's tokenizer.
      corpus: a corpus that was prepared with that tokenizer; the error message names it.
      identity: the `teacher_identity` in the checkpoint that the run resumes from; {} for a new
        run. It records the teacher's step, so that a resumed run loads the same checkpoint even if
        the teacher has been trained further.

    Raises:
      ValueError: the teacher has a different tokenizer, or its checkpoint no longer exists.
    """
    directory = local_model(spec.config.teacher, "distillation.teacher")
    if read_tokenizer(directory, spec.model.encoder).fingerprint != tokenizer.fingerprint:
        raise ValueError(
            f"distillation.teacher={directory}: {corpus} was prepared with a different tokenizer, "
            "so the teacher's predictions would be for other tokens. Prepare the corpus with "
            f"--tokenizer {directory}/{TOKENIZER_NAME}."
        )
    step, checkpoints = identity.get("step"), directory / CHECKPOINTS_NAME
    if step is None:
        step = agreed(default_checkpoint_step(directory))
    else:
        try:
            identity_of(checkpoints, step)
        except ValueError as error:
            raise ValueError(
                f"this run's teacher was the checkpoint at step {step}, but {error}. Restore that "
                "checkpoint, or choose another --config.work_dir to use the current teacher."
            ) from error
    definition = spec.teacher.definition
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    return LoadedTeacher(spec, step, load_parameters(checkpoints, definition, shardings, step))


def teacher_identity(
    config: DistillationConfig | None, teacher: LoadedTeacher | None, saved: Mapping[str, Any]
) -> dict[str, object]:
    """Return the teacher's values that must match a checkpoint for a run to resume from it.

    Args:
      config: the distillation losses; None for a run without a teacher.
      teacher: the teacher; None if the run is finished, since its teacher may no longer exist.
      saved: the values in the run's checkpoint; {} if there is no checkpoint. A finished run keeps
        these values.
    """
    if config is None:
        return {}
    values = {**saved, **dataclasses.asdict(config)}
    del values["teacher"]  # A run may resume after its teacher has been moved.
    if teacher is not None:
        values["step"] = teacher.step
        values["parameters"] = fingerprint(teacher.params)
        values["encoder"] = teacher.spec.model.encoder.identity
    return {TEACHER_IDENTITY: values}
