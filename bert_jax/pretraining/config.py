"""The config tree of a pretraining run: what `configs/pretrain/*.py` fill in."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Literal

from bert_jax.corpus.inputs import MAX_LENGTH
from bert_jax.local_paths import LocalPath, check_config_paths
from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.model import Head, ModelConfig
from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.examples import ExampleConfig
from bert_jax.pipeline.masking import MaskingConfig
from bert_jax.tasks.distillation import DistillationConfig
from bert_jax.tasks.pretraining import metric_names
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.sharding import MeshConfig
from bert_jax.validation import check_seed

Vocabulary = Literal["any", "wordpiece", "byte_bpe", "sentencepiece"]


_MOST = 2**63 - 1  # the largest integer that every library accepts


def _at_least(minimum: int, section: str, **values: int) -> None:
    for name, value in values.items():
        if value < minimum:
            raise ValueError(f"{section}{name}={value}: must be at least {minimum}")
        if value > _MOST:
            raise ValueError(f"{section}{name}={str(value)[:30]}...: must be at most {_MOST:,}")


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts digits as numbers: phase2 comes before phase10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


@dataclass(frozen=True)
class PhaseConfig:
    """A stretch of the run on one corpus.

    corpus: a directory made by `bert-jax prepare`.
    sequence_length: tokens, as the corpus was prepared with (`--max-length`).
    batch_size: sequences a step, over all devices.
    """

    corpus: LocalPath
    num_steps: int
    sequence_length: int = 128
    batch_size: int = 256

    def __post_init__(self) -> None:
        _at_least(1, "phase ", num_steps=self.num_steps, batch_size=self.batch_size)
        _at_least(8, "phase ", sequence_length=self.sequence_length)
        if self.sequence_length > MAX_LENGTH:
            raise ValueError(
                f"phase sequence_length={self.sequence_length}: expected at most {MAX_LENGTH:,}, "
                "the maximum length of a corpus's records"
            )


@dataclass(frozen=True)
class EvaluationConfig:
    """every_steps: between evaluations on the held-out split (and one at the end); 0 makes none.

    batch_size: sequences a batch; 0 takes what a train step has at once: the phase's batch_size
      over accumulation_steps. max_records: that are scored, the same every time, drawn at random
      from a large split; 0 takes all.
    """

    every_steps: int = 1_000
    batch_size: int = 0
    max_records: int = 0

    def __post_init__(self) -> None:
        sizes = {"batch_size": self.batch_size, "max_records": self.max_records}
        _at_least(0, "evaluation.", every_steps=self.every_steps, **sizes)


@dataclass(frozen=True)
class ReportingConfig:
    """every_steps: between progress lines. tensorboard: write event files too.

    profile_steps: so many steps, after the first ten of a start, are traced into the work
      directory's `profile`, for XProf and its TensorBoard plugin (0: none).
    """

    every_steps: int = 50
    tensorboard: bool = True
    profile_steps: int = 0

    def __post_init__(self) -> None:
        _at_least(1, "reporting.", every_steps=self.every_steps)
        _at_least(0, "reporting.", profile_steps=self.profile_steps)


@dataclass(frozen=True)
class LoaderConfig:
    """num_workers: processes that make batches; 0 makes them in a thread of this process.

    prefetch: batches made ahead of the step. Held-out batches are made in a thread in any case.
    """

    num_workers: int = 0
    prefetch: int = 4

    def __post_init__(self) -> None:
        _at_least(0, "loader.", num_workers=self.num_workers)
        _at_least(1, "loader.", prefetch=self.prefetch)


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
        _at_least(1, "", accumulation_steps=self.accumulation_steps)
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

    def model_config(self) -> ModelConfig:
        """The encoder with the heads that the run trains."""
        head: Head = "masked_lm" if self.sentence_pairs == "none" else "pretraining"
        return ModelConfig(self.model, head)

    def model_identity(self) -> dict[str, object]:
        """What a checkpoint's parameters depend on, as plain values."""
        return {**dataclasses.asdict(self.model), "sentence_pairs": self.sentence_pairs}
