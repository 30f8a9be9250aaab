"""Create a run's first state: resumed, random, or loaded from another run or a teacher."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig, incompatible_fields
from bert_jax.models.heads import GENERATOR, PAIRS_HEAD
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.parameters import ModelDefinition, Parameters, define
from bert_jax.models.replaced_token import ReplacedTokenPair
from bert_jax.models.sentence_embedding import SETTINGS_DROPPED
from bert_jax.objectives import SentencePairs
from bert_jax.pretraining.phases import PhaseCorpus
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.pretraining.teacher import LoadedTeacher, TeacherSpec
from bert_jax.runs.model_location import local_model
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    PAIRS,
    TOKENIZER_NAME,
    read_generator,
    read_model,
    read_sentence_embedding,
    read_tokenizer,
)
from bert_jax.tasks.matched_layers import chosen_layers
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import newest_step
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.sharding import parameter_shardings
from bert_jax.training.state import TrainState, abstract_state, init_state

_ANGLES = ("rotary_theta", "local_rotary_theta")
_POSITIONS = "encoder.embeddings.position"
# Parameter names and shapes do not depend on the compute settings.
_ANY_COMPUTE = ComputeConfig(dtype="float32", attention="xla")
_MAX_LISTED = 4  # The maximum number of mismatched parameters in a message.
_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


def first_state(
    setup: StepSetup,
    mesh: Mesh,
    checkpointer: Checkpointer,
    *,
    seed: int,
    init_from: str = "",
    teacher: LoadedTeacher | None = None,
) -> tuple[TrainState, str]:
    """Return the state to start from, and a line that says where it comes from.

    If the run has checkpoints, the newest is restored. Otherwise the state is randomly initialized,
    except for parameters that are loaded from `init_from` or copied from a teacher.

    Args:
      setup: the train-step settings.
      mesh: the device mesh.
      checkpointer: the run's checkpoints.
      seed: the seed for randomly initialized parameters.
      init_from: a work directory to load parameters from; "" for none.
      teacher: the run's teacher; None if it has none.

    Raises:
      ValueError: a checkpoint does not fit the run.
    """
    definition, optimizer = setup.task.definition, setup.transformation
    step = checkpointer.latest_step()
    if step is not None:
        abstract = abstract_state(definition, optimizer, mesh)
        return checkpointer.restore(abstract), f"this run's checkpoint at step {step:,}"
    return initial_state(setup, mesh, seed=seed, init_from=init_from, teacher=teacher)


def initial_state(
    setup: StepSetup,
    mesh: Mesh,
    *,
    seed: int,
    init_from: str = "",
    teacher: LoadedTeacher | None = None,
) -> tuple[TrainState, str]:
    """Return the state of a run that has no checkpoints; see `first_state`."""
    state = init_state(setup.task.definition, setup.transformation, mesh, seed)
    if teacher is not None and teacher.spec.config.init_layers:
        params, line = student_parameters(
            teacher, setup.model, setup.sentence_pairs, initial=state.params
        )
        return TrainState(state.step, params, state.opt_state), line
    if not init_from:
        return state, f"random parameters (seed {seed})"
    params, line = _parameters_of(init_from, setup, mesh)
    # Parameters that exist only to train a student are never loaded, so they stay random.
    return TrainState(state.step, state.params | params, state.opt_state), line


def check_source(init_from: str, encoder: EncoderConfig, corpora: Sequence[PhaseCorpus]) -> None:
    """Reject an `init_from` whose parameters would have a different meaning in this run.

    Raises:
      ValueError: the directory is not a work directory, its tokenizer differs from the corpora's,
        or its model computes different outputs from the same parameters.
    """
    if not init_from:
        return
    source = local_model(init_from, "init_from")
    model, _ = read_model(source)
    tokenizer = read_tokenizer(source, model.encoder)
    if tokenizer.fingerprint != corpora[0].tokenizer.fingerprint:
        raise ValueError(
            f"init_from={init_from}: {corpora[0].config.corpus} was prepared with a different "
            "tokenizer, so this model's token embeddings belong to other tokens. Prepare the "
            f"corpus with --tokenizer {init_from}/{TOKENIZER_NAME}."
        )
    lines = incompatible_fields(model.encoder, with_positions_of(encoder, model.encoder))
    if lines:
        raise ValueError(
            f"init_from={init_from}: this model differs from the config (model's value -> value in "
            "the config):\n  " + "\n  ".join(lines) + "\n"
            "Set model.* to the model's values (max_positions may be larger, and rotary_theta may "
            "differ)."
        )
    newest_step(source / CHECKPOINTS_NAME)


def with_positions_of(encoder: EncoderConfig, source: EncoderConfig) -> EncoderConfig:
    """Return the encoder with the source's rotary angles, and no more positions than the source.

    Positions that are computed rather than learned have no parameters. The run itself may therefore
    have more of them than its source, and use other angles (Warner et al. 2024, "ModernBERT",
    section 2.2).
    """
    if encoder.max_positions > source.max_positions:
        encoder = dataclasses.replace(encoder, max_positions=source.max_positions)
    if encoder.positions != source.positions or encoder.attention_window != source.attention_window:
        return encoder
    angles = {name: getattr(source, name) for name in _ANGLES}
    return dataclasses.replace(encoder, **angles)


def changed_angles(source: EncoderConfig, encoder: EncoderConfig) -> str:
    """Describe the differences between the rotary angles of a run and its initial model.

    Args:
      source: the encoder of the initial model.
      encoder: the run's encoder.

    Returns:
      The description, which begins with a semicolon, or "" if there is no difference.
    """
    if encoder.positions != "rotary":
        return ""
    names = _ANGLES if encoder.attention_window is not None else _ANGLES[:1]
    bases = {name: (_base(encoder, name), _base(source, name)) for name in names}
    return "".join(
        f"; {name} {base:,g} instead of {former:,g}"
        for name, (base, former) in bases.items()
        if base != former
    )


def _base(encoder: EncoderConfig, name: str) -> float:
    theta: float | None = getattr(encoder, name)
    return encoder.rotary_theta if theta is None else theta


def _parameters_of(init_from: str, setup: StepSetup, mesh: Mesh) -> tuple[Parameters, str]:
    """Return the parameters in `init_from` that the run can use, and a line that describes them."""
    source = local_model(init_from, "init_from")
    model, origin = read_model(source)
    line = f"the parameters of {init_from}" + changed_angles(model.encoder, setup.model)
    saved_encoder = with_positions_of(setup.model, model.encoder)
    generator = _common_generator(source, setup)
    saved = _definition_on(saved_encoder, model, generator)
    # The loaded position table is sharded like the run's own table, which may be longer.
    larger = _definition_on(setup.model, model, generator)
    shardings = parameter_shardings(larger.shapes, larger.logical_axes, mesh)
    params = load_parameters(source / CHECKPOINTS_NAME, saved, shardings)
    if saved_encoder != setup.model and _POSITIONS in params:
        positions = _repeated(params[_POSITIONS], setup.model, shardings[_POSITIONS])
        params = params | {_POSITIONS: positions}
        first_copy = model.encoder.max_positions
        line += f"; positions from {first_copy} on are copies of earlier ones"
    definition = setup.task.on(setup.model).definition
    replaced: set[str] = set()
    saved_pairs = origin.get(PAIRS, setup.sentence_pairs)
    if "none" not in (saved_pairs, setup.sentence_pairs) and saved_pairs != setup.sentence_pairs:
        params = {n: value for n, value in params.items() if not n.startswith(PAIRS_HEAD)}
        line += f"; the {saved_pairs} head is replaced with a randomly initialized one"
        replaced = {name for name in definition.shapes if name.startswith(PAIRS_HEAD)}
    missing = sorted(definition.shapes.keys() - params.keys() - replaced)
    if missing:
        listed = [name for name in missing if not name.startswith(GENERATOR)]
        if len(listed) < len(missing):
            listed.append("the generator")
        line += f"; missing and therefore randomly initialized: {', '.join(listed)}"
    unused = sorted(params.keys() - definition.shapes.keys())
    if unused:
        line += f"; not trained in this run and therefore left out: {', '.join(unused)}"
    if read_sentence_embedding(source) is not None:
        line += f"; {SETTINGS_DROPPED}"
    return {name: params[name] for name in params.keys() & definition.shapes.keys()}, line


def _common_generator(source: Path, setup: StepSetup) -> EncoderConfig | None:
    """Return the run's generator if the source has one of the same size, otherwise None."""
    saved, own = read_generator(source), setup.generator
    if saved is None or own is None:
        return None
    return None if incompatible_fields(saved, with_positions_of(own, saved)) else own


def _definition_on(
    encoder: EncoderConfig, model: ModelConfig, generator: EncoderConfig | None
) -> ModelDefinition[Any]:
    """Return the definition of `model` with another encoder, and with a generator if given."""
    if generator is None:
        return define_model(dataclasses.replace(model, encoder=encoder), _ANY_COMPUTE)
    return define(lambda rngs: ReplacedTokenPair(encoder, generator, _ANY_COMPUTE, rngs))


def _repeated(
    table: jax.Array, encoder: EncoderConfig, sharding: jax.sharding.Sharding
) -> jax.Array:
    """Return a position table for the encoder, made by repeating the rows of a shorter table.

    An attention head that attends to neighboring tokens still does so within each copy. It only has
    to learn to tell the copies apart (Beltagy et al. 2020, "Longformer", section 5).
    """
    offset, length = encoder.position_offset, encoder.max_positions
    copies = -(-length // (len(table) - offset))

    def repeat(table: jax.Array) -> jax.Array:
        rows = jnp.tile(table[offset:], (copies, 1))[:length]
        return jnp.concatenate([table[:offset], rows])

    return jax.jit(repeat, out_shardings=sharding)(table)


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
