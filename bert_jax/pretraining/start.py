"""Start a pretraining run: claim its work directory and find its first parameters."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bert_jax.files import temporary_beside, writing
from bert_jax.json_files import read_json_object
from bert_jax.models.config import (
    TRAINING_KEYS,
    ComputeConfig,
    EncoderConfig,
    incompatible_fields,
)
from bert_jax.models.heads import PAIRS_HEAD
from bert_jax.models.model import define_model
from bert_jax.models.parameters import Parameters
from bert_jax.models.sentence_embedding import SETTINGS_DROPPED
from bert_jax.pretraining.phases import PhaseCorpus
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.pretraining.teacher import LoadedTeacher, from_teacher
from bert_jax.runs.ownership import REMOVE_CONFIG, RESOLVED_NAME, check_claimable, holds
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    MODEL_NAME,
    PAIRS,
    TOKENIZER_NAME,
    read_model,
    read_sentence_embedding,
    read_tokenizer,
)
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import newest_step
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.sharding import parameter_shardings
from bert_jax.training.step import TrainState, abstract_state, init_state

_POSITIONS = "encoder.embeddings.position"
# Names and shapes do not depend on how a model is computed.
_ANY = ComputeConfig(dtype="float32", attention="xla")


def first_state(
    setup: StepSetup,
    mesh: Mesh,
    checkpointer: Checkpointer,
    *,
    seed: int,
    init_from: str = "",
    teacher: LoadedTeacher | None = None,
) -> tuple[TrainState, str]:
    """Return the state to start from, and a line about its origin.

    It is this run's newest checkpoint if there is one. Otherwise it is random, except for the
    parameters of `init_from` if it is set, or those that a student takes from its teacher.

    Raises:
      ValueError: a checkpoint does not fit the run.
    """
    definition, optimizer = setup.task.definition, setup.transformation
    step = checkpointer.latest_step()
    if step is not None:
        abstract = abstract_state(definition, optimizer, mesh)
        return checkpointer.restore(abstract), f"this run's checkpoint of step {step:,}"
    state = init_state(definition, optimizer, mesh, seed)
    if teacher is not None and teacher.spec.config.init_layers:
        params, line = from_teacher(teacher, setup.model, setup.sentence_pairs, state.params)
        return TrainState(state.step, params, state.opt_state), line
    if not init_from:
        return state, f"random parameters (seed {seed})"
    params, line = _parameters_of(init_from, setup, mesh)
    # Parameters that only the training of a student has are in no other run.
    return TrainState(state.step, state.params | params, state.opt_state), line


def check_source(init_from: str, encoder: EncoderConfig, corpora: Sequence[PhaseCorpus]) -> None:
    """Refuse an `init_from` whose parameters would have another meaning in this run.

    Raises:
      ValueError: it is no work directory, its tokenizer is not the corpora's, or its model computes
        otherwise.
    """
    if not init_from:
        return
    source = Path(init_from)
    model, _ = read_model(source)
    tokenizer = read_tokenizer(source, model.encoder)
    if tokenizer.fingerprint != corpora[0].tokenizer.fingerprint:
        raise ValueError(
            f"init_from={init_from}: its tokenizer is not the one that "
            f"{corpora[0].config.corpus} was prepared with, so its token embeddings belong to "
            f"other tokens. Prepare the corpus with --tokenizer {init_from}/{TOKENIZER_NAME}"
        )
    lines = incompatible_fields(model.encoder, _with_fewer_positions(encoder, model.encoder))
    if lines:
        raise ValueError(
            f"init_from={init_from}: its model differs from this config's (there -> here):\n"
            "  " + "\n  ".join(lines) + "\n"
            "Set model.* as there (max_positions may be larger)"
        )
    newest_step(source / CHECKPOINTS_NAME)


def model_values(source: Path) -> dict[str, object]:
    """Return the values of the `model.*` keys that the parameters of a work directory require.

    Raises:
      ValueError: see `read_model`.
    """
    model, _ = read_model(source)
    values = dataclasses.asdict(model.encoder)
    return {key: value for key, value in values.items() if key not in TRAINING_KEYS}


def _with_fewer_positions(encoder: EncoderConfig, source: EncoderConfig) -> EncoderConfig:
    """Return the encoder with as many learned positions as the source if it has more."""
    if encoder.positions != "learned" or encoder.max_positions <= source.max_positions:
        return encoder
    return dataclasses.replace(encoder, max_positions=source.max_positions)


def _parameters_of(init_from: str, setup: StepSetup, mesh: Mesh) -> tuple[Parameters, str]:
    """Return the parameters of `init_from` that the run can use, and a line about them."""
    model, origin = read_model(Path(init_from))
    encoder = model.encoder
    line = f"the parameters of {init_from}"
    ours = _with_fewer_positions(setup.model, encoder)
    longer = ours != setup.model
    if longer:
        line += f"; positions from {encoder.max_positions} on are copies of those before"
    whole = define_model(dataclasses.replace(model, encoder=ours), _ANY)
    definition = setup.task.on(setup.model).definition
    # Of the model as it is here, whose table of positions may be longer.
    larger = define_model(dataclasses.replace(model, encoder=setup.model), _ANY)
    shardings = parameter_shardings(larger.shapes, larger.logical_axes, mesh)
    source = Path(init_from) / CHECKPOINTS_NAME
    params = load_parameters(source, whole, shardings)
    if longer:
        params = params | {
            _POSITIONS: _repeated(params[_POSITIONS], setup.model, shardings[_POSITIONS])
        }
    known: set[str] = set()
    theirs = origin.get(PAIRS, setup.sentence_pairs)
    if "none" not in (theirs, setup.sentence_pairs) and theirs != setup.sentence_pairs:
        params = {n: value for n, value in params.items() if not n.startswith(PAIRS_HEAD)}
        line += f"; its head for {theirs} is replaced by a randomly initialized one"
        known = {name for name in definition.shapes if name.startswith(PAIRS_HEAD)}
    fresh = sorted(definition.shapes.keys() - params.keys() - known)
    if fresh:
        line += f"; randomly initialized, as it lacks them: {', '.join(fresh)}"
    left = sorted(params.keys() - definition.shapes.keys())
    if left:
        line += f"; left out, of heads that are not trained here: {', '.join(left)}"
    if read_sentence_embedding(Path(init_from)) is not None:
        line += f"; {SETTINGS_DROPPED}"
    return {name: params[name] for name in params.keys() & definition.shapes.keys()}, line


def _repeated(
    table: jax.Array, encoder: EncoderConfig, sharding: jax.sharding.Sharding
) -> jax.Array:
    """The rows of a table of positions over and over, as many as the encoder has.

    A head that looks at its neighbours does so among the copies too, and has to learn no more than
    to tell the copies apart (Beltagy et al. 2020, "Longformer", section 5).
    """
    offset, length = encoder.position_offset, encoder.max_positions
    copies = -(-length // (len(table) - offset))

    def repeat(table: jax.Array) -> jax.Array:
        rows = jnp.tile(table[offset:], (copies, 1))[:length]
        return jnp.concatenate([table[:offset], rows])

    return jax.jit(repeat, out_shardings=sharding)(table)


def check_work_dir(
    work_dir: Path, corpora: Sequence[PhaseCorpus], init_from: str, *, begun: bool
) -> None:
    """Refuse a work directory that is a corpus of the run or belongs to something else.

    Raises:
      ValueError: it is a corpus, cannot be claimed (see `check_claimable`), or holds a run that
        started from another `init_from`.
    """
    for corpus in corpora:
        if Path(corpus.config.corpus).resolve() == work_dir.resolve():
            raise ValueError(
                f"work_dir={work_dir} is the corpus of phase {corpus.name}, whose tokenizer the "
                "run would write its own over: choose a directory of its own"
            )
    check_claimable(work_dir, corpora[0].tokenizer, begun=begun)
    if begun:
        _check_same_source(work_dir, init_from)


def _check_same_source(work_dir: Path, init_from: str) -> None:
    """Refuse another `init_from` than the one that the run in `work_dir` started from.

    A run that has a checkpoint never reads it again, so another one would be ignored.
    """
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        return
    began = read_json_object(file, REMOVE_CONFIG).get("init_from", "")
    if isinstance(began, str) and _resolved(began) != _resolved(init_from):
        origin = began or "random parameters"
        raise ValueError(
            f"init_from={init_from}: the run in {work_dir} started from {origin}. Set "
            f'init_from="{began}" to resume it, or choose another work_dir.'
        )


def _resolved(path: str) -> Path | None:
    return Path(path).resolve() if path else None


def discard_stale_metadata(work_dir: Path, tokenizer: Tokenizer) -> None:
    """Removes what a start that was killed before its first checkpoint left of its corpora.

    Nothing binds the next start to them; from the first checkpoint on, the run's identity does.

    tokenizer: the run's. The same one stays as it is: it may be whose the corpus was prepared with.
    """
    if not (work_dir / MODEL_NAME).is_file():
        return
    if not holds(work_dir, tokenizer):
        shutil.rmtree(work_dir / TOKENIZER_NAME, ignore_errors=True)
    for manifest in work_dir.glob("manifest-*.json"):
        manifest.unlink()


def copy_once(source: Path, target: Path) -> None:
    """Copy a file or directory under a temporary name and rename it, unless `target` exists.

    A run resumes only with the corpora it began with, so an existing target is the same.
    """
    if target.exists():
        return
    with writing(target), temporary_beside(target, directory=source.is_dir()) as temporary:
        if source.is_dir():
            shutil.copytree(source, temporary, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, temporary)
        temporary.rename(target)
