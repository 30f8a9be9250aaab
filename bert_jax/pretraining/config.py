"""The config tree of a pretraining run: what `configs/pretrain/*.py` fill in."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Literal

from bert_jax.local_paths import LocalPath, check_config_paths
from bert_jax.models.config import ComputeConfig, Device, EncoderConfig
from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.examples import ExampleConfig
from bert_jax.pipeline.masking import MaskingConfig
from bert_jax.pretraining.sections import (
    EvaluationConfig,
    LoaderConfig,
    PhaseConfig,
    ReportingConfig,
    check_at_least,
)
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.tasks.distillation import DistillationConfig
from bert_jax.tasks.pretraining import metric_names
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.sharding import MeshConfig
from bert_jax.validation import check_seed

Vocabulary = Literal["any", "wordpiece", "byte_bpe", "sentencepiece"]


# Increased whenever a seed draws other pairs than before, or pairs are weighted differently in the
# loss, so that earlier runs are refused instead of mixed.
_PAIRS = 3


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts digits as numbers: phase2 comes before phase10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


@dataclass(frozen=True)
class PretrainConfig:
    """A pretraining run.

    seed: of parameters, dropout and examples.
    init_from: a work directory to take parameters from; empty starts from random ones. Its model
      may have fewer positions: those it has are repeated.
    sentence_pairs: "next_sentence" or "sentence_order", pairs of segments and their loss; "none",
      MLM alone.
    join_documents: the documents of a row read on into each other (RoBERTa); False: each sees
      itself alone. For rows without pairs.
    vocabulary: the kind that the corpora must have: "wordpiece" (BERT), "byte_bpe" (RoBERTa),
      "sentencepiece" (ALBERT), or "any".
    distillation: a teacher to learn from as well; None for none.
    accumulation_steps: parts a batch is processed in, one after the other, for one update.
    phases: run in the order of their names (phase2 before phase10); one learning-rate schedule
      spans all of them.
    """

    work_dir: LocalPath
    phases: dict[str, PhaseConfig]
    model: EncoderConfig
    seed: int = 0
    init_from: LocalPath = ""
    sentence_pairs: SentencePairs = "next_sentence"
    join_documents: bool = False
    vocabulary: Vocabulary = "any"
    distillation: DistillationConfig | None = None
    accumulation_steps: int = 1
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    reporting: ReportingConfig = field(default_factory=ReportingConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)

    def __post_init__(self) -> None:
        check_config_paths(self)
        check_at_least(1, "", accumulation_steps=self.accumulation_steps)
        check_seed(self.seed)
        if not self.phases:
            raise ValueError("phases is empty: a run needs at least one, such as phases.phase1")
        if not self.work_dir:
            raise ValueError("work_dir is empty: name the directory the run writes to")
        if self.distillation is not None and self.distillation.init_layers and self.init_from:
            raise ValueError(
                f"init_from={self.init_from} and distillation.init_layers=True both say what the "
                "student begins with: leave out one of them"
            )
        if self.distillation is not None and self.sentence_pairs == "none":
            if (weight := self.distillation.pairs_weight) != 1.0:
                raise ValueError(
                    f"distillation.pairs_weight={weight} with sentence_pairs='none': there are no "
                    "pairs to learn; leave it at 1.0, or set sentence_pairs"
                )
        assert self.examples  # refuses what makes no examples
        if self.checkpoint.keep_best and not self.evaluation.every_steps:
            raise ValueError(
                f"checkpoint.keep_best={self.checkpoint.keep_best}, but evaluation.every_steps=0 "
                "makes no evaluations to tell which is best by: set checkpoint.keep_best=0"
            )
        held_out = (*metric_names(self.sentence_pairs), "mlm_perplexity")
        held_out += self.distillation_losses
        if self.checkpoint.keep_best and self.checkpoint.best_metric not in held_out:
            raise ValueError(
                f"checkpoint.best_metric={self.checkpoint.best_metric!r} is no held-out metric of "
                f"this run: expected one of {', '.join(held_out)}; or set checkpoint.keep_best=0"
            )
        if self.checkpoint.keep_best and self.checkpoint.best_metric.startswith("mlm_"):
            if not self.trains_masked_lm:
                raise ValueError(
                    f"checkpoint.best_metric={self.checkpoint.best_metric!r} is of the masked-LM "
                    "head, which learns nothing with distillation.mlm_weight=0 and soft_weight=0: "
                    f"set it to one of {', '.join(self.distillation_losses)}"
                )

    @property
    def distillation_losses(self) -> tuple[str, ...]:
        """Losses against the teacher; none without one."""
        return () if self.distillation is None else self.distillation.losses

    @property
    def trains_masked_lm(self) -> bool:
        """Whether anything that is learned reaches the masked-LM head."""
        wanted = self.distillation
        return wanted is None or wanted.mlm_weight > 0 or wanted.soft_weight > 0

    @property
    def examples(self) -> ExampleConfig:
        """What decides the examples, besides the corpora."""
        return ExampleConfig(self.seed, self.sentence_pairs, self.masking, self.join_documents)

    @property
    def total_steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.num_steps for phase in self.phases.values())

    def ordered_phases(self) -> list[tuple[str, int, PhaseConfig]]:
        """(name, first step, phase) in running order."""
        first, result = 0, []
        for name in sorted(self.phases, key=_natural):
            result.append((name, first, self.phases[name]))
            first += self.phases[name].num_steps
        return result

    def evaluation_batch_size(self, phase: PhaseConfig) -> int:
        """Sequences in an evaluation batch of `phase`; as many as a train step has at once."""
        return self.evaluation.batch_size or phase.batch_size // self.accumulation_steps

    def max_predictions(self, phase: PhaseConfig) -> int:
        """Positions a sequence of `phase` is predicted at, at most."""
        return self.masking.max_predictions(phase.sequence_length)

    @property
    def longest_sequence(self) -> int:
        """Tokens of a sequence in the phase with the longest ones."""
        return max(phase.sequence_length for phase in self.phases.values())

    def step_setup(self, device: Device) -> StepSetup:
        """Return the settings of the train step on a kind of device, still without a teacher."""
        return StepSetup(
            model=self.model,
            sentence_pairs=self.sentence_pairs,
            masking=self.masking,
            requested_compute=self.compute,
            compute=self.compute.resolve(device, self.model),
            optimizer=self.optimizer,
            accumulation_steps=self.accumulation_steps,
            distillation=self.distillation,
        )

    def identity(self) -> dict[str, object]:
        """Return what a checkpoint must share with this run besides its corpora and batches."""
        # A rate that changes with the run changes otherwise in a run of another length.
        changing = {"total_steps": self.total_steps} if self.masking.final_rate else {}
        pairs = {"pairs": _PAIRS} if self.sentence_pairs != "none" else {}
        return {
            **changing,
            **pairs,
            "model": {**dataclasses.asdict(self.model), "sentence_pairs": self.sentence_pairs},
            "optimizer": self.optimizer.name,
            "seed": self.seed,
            "masking": vars(self.masking),
            "join_documents": self.join_documents,
        }
