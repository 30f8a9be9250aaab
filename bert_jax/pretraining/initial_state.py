"""Create a run's first state: resumed, random, or loaded from another run or a teacher."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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
from bert_jax.pretraining.phases import PhaseCorpus
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.pretraining.student_parameters import student_parameters
from bert_jax.pretraining.teacher import LoadedTeacher
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
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import newest_step
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.sharding import parameter_shardings
from bert_jax.training.state import TrainState, abstract_state, init_state

_ANGLES = ("rotary_theta", "local_rotary_theta")
_POSITIONS = "encoder.embeddings.position"
# Parameter names and shapes do not depend on the compute settings.
_ANY_COMPUTE = ComputeConfig(dtype="float32", attention="xla")


def first_state(
    setup: StepSetup,
    mesh: Mesh,
    checkpointer: Checkpointer,
    *,
    seed: int,
    init_from: str = "",
    first_encoder: EncoderConfig | None = None,
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
      first_encoder: the encoder of the first phase, if its rotary angles differ from the run's.
        They are compared with the angles of the loaded model.
      teacher: the run's teacher; None if it has none.

    Raises:
      ValueError: a checkpoint does not fit the run.
    """
    definition, optimizer = setup.task.definition, setup.transformation
    step = checkpointer.latest_step()
    if step is not None:
        abstract = abstract_state(definition, optimizer, mesh)
        return checkpointer.restore(abstract), f"this run's checkpoint at step {step:,}"
    return initial_state(
        setup, mesh, seed=seed, init_from=init_from, first_encoder=first_encoder, teacher=teacher
    )


def initial_state(
    setup: StepSetup,
    mesh: Mesh,
    *,
    seed: int,
    init_from: str = "",
    first_encoder: EncoderConfig | None = None,
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
    params, line = _parameters_of(init_from, setup, mesh, first_encoder or setup.model)
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
    """Describe how the rotary angles of a run's first phase differ from its initial model's.

    Args:
      source: the encoder of the initial model.
      encoder: the encoder of the run's first phase.

    Returns:
      The description, which begins with a semicolon, or "" if there is no difference.
    """
    if encoder.positions != "rotary":
        return ""
    names = _ANGLES if encoder.attention_window is not None else _ANGLES[:1]
    bases = {name: (_base(encoder, name), _base(source, name)) for name in names}
    return "".join(
        f"; {name} {base:,.0f} instead of {former:,.0f}"
        for name, (base, former) in bases.items()
        if base != former
    )


def _base(encoder: EncoderConfig, name: str) -> float:
    theta: float | None = getattr(encoder, name)
    return encoder.rotary_theta if theta is None else theta


def _parameters_of(
    init_from: str, setup: StepSetup, mesh: Mesh, first_encoder: EncoderConfig
) -> tuple[Parameters, str]:
    """Return the parameters in `init_from` that the run can use, and a line that describes them."""
    source = local_model(init_from, "init_from")
    model, origin = read_model(source)
    line = f"the parameters of {init_from}" + changed_angles(model.encoder, first_encoder)
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
