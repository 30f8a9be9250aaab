"""A pretraining run's teacher as its model.json tells it, checked against the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from bert_jax.analysis.flops import pretraining_flops
from bert_jax.cli.phases import training_flops
from bert_jax.cli.run_config import PhaseConfig, PretrainConfig
from bert_jax.inference.work_dir import PAIRS, read_model
from bert_jax.models.config import ComputeConfig, Device
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import count
from bert_jax.objectives import SentencePairs
from bert_jax.tasks.distillation import Distillation, DistillationConfig, PretrainingTeacher
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.protocol import Task
from bert_jax.tasks.transfer import matched_layers


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
