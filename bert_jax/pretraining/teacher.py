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
import optax
from jax.sharding import Mesh

from bert_jax.analysis.counts import pretraining_flops
from bert_jax.models.config import ComputeConfig, Device, EncoderConfig, computed_otherwise
from bert_jax.models.heads import PAIRS_HEAD
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters, count
from bert_jax.objectives import SentencePairs
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.pretraining.phases import PhaseCorpus, training_flops
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    PAIRS,
    TOKENIZER_NAME,
    chosen_step,
    read_model,
    read_tokenizer,
)
from bert_jax.tasks.distillation import (
    Distillation,
    DistillationConfig,
    PretrainingTeacher,
    chosen_layers,
    matched_layers,
)
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import Task
from bert_jax.training.checkpoint_files import identity_of
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import agreed
from bert_jax.training.sharding import parameter_shardings
from bert_jax.training.step import (
    EvaluationStep,
    TrainStep,
    fingerprint,
    make_evaluation_step,
    make_train_step,
)


@dataclass(frozen=True)
class KnownTeacher:
    """A teacher without its parameters: what it computes, and how.

    pairs: what its head of pairs tells apart.
    """

    config: DistillationConfig
    model: ModelConfig
    pairs: SentencePairs
    compute: ComputeConfig
    teacher: PretrainingTeacher

    def forward_flops(self, run: PretrainConfig, phase: PhaseConfig) -> int:
        """Of a step of a phase."""
        everywhere = self.config.soft_targets == "all"
        seen = phase.sequence_length if everywhere else run.max_predictions(phase)
        flops = pretraining_flops(
            self.model.encoder, phase.sequence_length, seen, next_sentence=False
        )
        return phase.batch_size * flops.forward

    def lines(self, run: PretrainConfig, width: int = 11) -> list[str]:
        """What the teacher is, costs beside the student's step, and shows of its inside.

        width: of the title before each line.
        """
        shares = []
        for name, _, phase in run.ordered_phases():
            forward = self.forward_flops(run, phase)
            share = forward / training_flops(run, phase, pieces=1)
            shares.append(f"{forward:.3g} FLOPs a step of {name}, {share:.0%} on top")
        lines = [
            f"{'teacher':{width}}{self.config.teacher}: "
            f"{count(self.teacher.definition.shapes):,} parameters, {self.compute.dtype}, "
            f"{self.compute.attention} attention, forward {'; '.join(shares)}"
        ]
        layers = ", ".join(map(str, self.teacher.layers))
        if self.config.hidden_weight:
            here, there = run.model.hidden_dim, self.model.encoder.hidden_dim
            maps = f", through learned maps from {here} to {there} features" * (here != there)
            lines.append(f"{'':{width}}hidden states: embeddings and its layers {layers}{maps}")
        if self.config.attention_weight:
            lines.append(f"{'':{width}}attention scores: its layers {layers}")
        return lines


def step_flops(
    config: PretrainConfig, phase: PhaseConfig, pieces: int, known: KnownTeacher | None
) -> int:
    """Model FLOPs of a step of a phase, with its teacher's forward pass."""
    added = 0 if known is None else known.forward_flops(config, phase)
    return training_flops(config, phase, pieces) + added


def known_teacher(config: PretrainConfig, device: Device) -> KnownTeacher | None:
    """The run's teacher on `device`; None if it has none.

    Raises:
      ValueError: it is no work directory with a masked-LM head, has another vocabulary size or too
        few positions; or, where what is compared depends on it, another `hidden_dim`, other
        `num_heads` or fewer layers.
    """
    if config.distillation is None:
        return None
    wanted, directory = config.distillation, Path(config.distillation.teacher)
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
    _check(config, wanted, model)
    dtype = wanted.dtype
    if dtype == "auto":
        dtype = config.compute.resolve(device, config.model).dtype
    # Nothing drops out of a teacher; what the run was told of attention holds for both.
    undropped = replace(model.encoder, attention_dropout=0.0)
    asked = ComputeConfig(dtype=dtype)
    if config.compute.attention == "xla":
        asked = replace(asked, attention="xla")
    compute = asked.resolve(device, undropped)
    pairs = cast(SentencePairs, origin.get(PAIRS, "next_sentence"))
    if model.head == "masked_lm":
        pairs = "none"
    definition = Pretraining(model.encoder, compute, sentence_pairs=pairs).definition
    layers: list[int] = []
    if wanted.hidden_weight or wanted.attention_weight:
        layers = matched_layers(config.model.num_layers, model.encoder.num_layers)
    teacher = PretrainingTeacher(definition, wanted, layers)
    return KnownTeacher(wanted, model, pairs, compute, teacher)


def _check(config: PretrainConfig, wanted: DistillationConfig, model: ModelConfig) -> None:
    """Raises ValueError naming what of the teacher does not fit the run."""
    where = f"distillation.teacher={wanted.teacher}"
    theirs, ours = model.encoder, config.model
    if theirs.vocab_size != ours.vocab_size:
        raise ValueError(
            f"{where} has model.vocab_size={theirs.vocab_size}, this run {ours.vocab_size}: a "
            "student scores the same tokens; set it as there"
        )
    longest = max(phase.sequence_length for phase in config.phases.values())
    if theirs.max_positions < longest:
        raise ValueError(
            f"{where} reads {theirs.max_positions} positions, a phase has sequences of {longest}: "
            "take a teacher of more positions, or shorter sequences"
        )
    if wanted.cosine_weight and theirs.hidden_dim != ours.hidden_dim:
        raise ValueError(
            f"{where} has hidden_dim={theirs.hidden_dim}, this run {ours.hidden_dim}: vectors of "
            "different sizes have no angle between them; set distillation.cosine_weight=0, or the "
            "same hidden_dim"
        )
    if wanted.attention_weight and theirs.num_heads != ours.num_heads:
        raise ValueError(
            f"{where} has num_heads={theirs.num_heads}, this run {ours.num_heads}: attention is "
            "compared head by head; set distillation.attention_weight=0, or as many heads"
        )


def tasks_of(
    config: PretrainConfig, compute: ComputeConfig, known: KnownTeacher | None
) -> tuple[Pretraining, Task]:
    """What a run is judged by, and what it learns, which is more if it has a teacher."""
    dim = None if known is None else known.model.encoder.hidden_dim
    maps = config.distillation is not None and config.distillation.hidden_weight > 0
    task = Pretraining(
        config.model,
        compute,
        sentence_pairs=config.sentence_pairs,
        teacher_dim=dim if maps and dim != config.model.hidden_dim else None,
    )
    return task, task if known is None else Distillation(task, known.config)


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
