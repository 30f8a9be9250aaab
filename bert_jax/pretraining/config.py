"""Define the config of a pretraining run, which the recipes in `configs/pretrain` fill in."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Literal

from bert_jax.local_paths import PathOrUrl, check_config_paths
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.devices import Device
from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.examples import ExampleConfig
from bert_jax.pipeline.masking import MaskingConfig
from bert_jax.pretraining.evaluation_config import EvaluationConfig
from bert_jax.pretraining.phase_config import LoaderConfig, PhaseConfig
from bert_jax.pretraining.stable_phase import DECAY_IDENTITY
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.storage.locations import absolute
from bert_jax.storage.urls import parse_location
from bert_jax.tasks.distillation import DistillationConfig
from bert_jax.tasks.pretraining import metric_names
from bert_jax.tasks.replaced_token import REPLACED_TOKEN_METRICS, ReplacedTokenConfig
from bert_jax.tracking.tracker import TrackerName
from bert_jax.training.averaging import AveragingConfig
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.divergence import DivergenceConfig
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.phase import Intervals
from bert_jax.training.reports import AVERAGE_PREFIX
from bert_jax.training.sharding import MeshConfig
from bert_jax.validation import check_at_least, check_seed

Vocabulary = Literal["any", "wordpiece", "byte_bpe", "sentencepiece"]

# Increment this number whenever a change alters the pairs that a seed yields, or the weights of
# pairs in the loss. Older runs then refuse to resume instead of training on a mixture of old and
# new batches.
_PAIRS_VERSION = 3


@dataclass(frozen=True)
class ReportingConfig:
    """The logging and profiling settings of a run.

    Attributes:
      every_steps: the number of steps between progress lines.
      tensorboard: whether to write TensorBoard event files as well.
      trackers: the tracking services that also receive the metrics and the config: "wandb" (Weights
        & Biases), "mlflow", or both. Each service is configured by its own environment variables
        and needs the pip extra of the same name.
      profile_steps: the number of steps to profile, starting ten steps after the run starts or
        resumes. The trace is written to `profile` in the work directory, for XProf and its
        TensorBoard plugin. 0 disables profiling.
      notify: a shell command that the first process executes when the run starts, ends, diverges or
        fails; "" for none. It receives the details as JSON on its standard input, and in the
        environment variables BERT_JAX_EVENT (start, end, divergence or failure), BERT_JAX_WORK_DIR,
        BERT_JAX_STEP and BERT_JAX_MESSAGE. The run continues even if the command fails or takes
        longer than a minute.
    """

    every_steps: int = 50
    tensorboard: bool = True
    trackers: tuple[TrackerName, ...] = ()
    profile_steps: int = 0
    notify: str = ""

    def __post_init__(self) -> None:
        check_at_least(1, "reporting.", every_steps=self.every_steps)
        check_at_least(0, "reporting.", profile_steps=self.profile_steps)


@dataclass(frozen=True)
class PretrainConfig:
    """The config of a pretraining run.

    Attributes:
      work_dir: the directory that the run writes to, or its URL in a bucket.
      phases: the phases, which run in the order of their names (phase2 before phase10). One
        learning-rate schedule spans all of them.
      model: the encoder.
      seed: the random seed for parameters, dropout and training examples.
      init_from: a work directory to load the initial parameters from; if empty, the parameters are
        randomly initialized. If the loaded model has fewer positions than this config's model, its
        position embeddings are repeated.
      decay_from: the step of a checkpoint in `init_from`. The run starts with the full state of
        this checkpoint (parameters, optimizer state and step), and consists only of the decay
        phase of the "wsd" schedule, which must begin at this step. The result is exactly the same
        as if one run had trained all steps with this config. 0 to start at step 0, with the newest
        parameters in `init_from`.
      sentence_pairs: "next_sentence" or "sentence_order" to train on segment pairs with that loss;
        "none" to train with only the masked-LM loss.
      join_documents: whether the documents packed into a row attend to each other (RoBERTa). If
        False, each document attends only to itself. Requires sentence_pairs="none".
      vocabulary: the kind of vocabulary that the corpora must have: "wordpiece" (BERT), "byte_bpe"
        (RoBERTa), "sentencepiece" (ALBERT), or "any".
      distillation: the teacher and the distillation losses; None to train without a teacher.
      replaced_token: the generator and the loss weight for training a model to detect replaced
        tokens (ELECTRA); None to train it to predict masked tokens. Requires sentence_pairs="none".
      accumulation_steps: the number of parts that each batch is split into. They are processed one
        after the other, and their gradients are accumulated into one update.
      masking: how tokens are masked.
      compute: the dtype and the implementation of the model.
      optimizer: the optimizer and its learning-rate schedule.
      averaging: the average of the parameters over the steps of the run.
      divergence: how the run handles loss spikes and non-finite values.
      mesh: the number of devices on each mesh axis.
      checkpoint: how often to save checkpoints and how many to keep.
      evaluation: the evaluation on held-out text.
      reporting: the logging and profiling settings.
      loader: how batches are made.
    """

    work_dir: PathOrUrl
    phases: dict[str, PhaseConfig]
    model: EncoderConfig
    seed: int = 0
    init_from: PathOrUrl = ""
    decay_from: int = 0
    sentence_pairs: SentencePairs = "next_sentence"
    join_documents: bool = False
    vocabulary: Vocabulary = "any"
    distillation: DistillationConfig | None = None
    replaced_token: ReplacedTokenConfig | None = None
    accumulation_steps: int = 1
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    averaging: AveragingConfig = field(default_factory=AveragingConfig)
    divergence: DivergenceConfig = field(default_factory=DivergenceConfig)
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
            raise ValueError("phases is empty: add at least one phase, such as phases.phase1.")
        if not self.work_dir:
            raise ValueError("work_dir is empty: set it to the directory that the run writes to.")
        self._check_rotary()
        self._check_decay()
        self._check_distillation()
        self._check_replaced_token()
        assert self.examples  # ExampleConfig rejects invalid combinations
        self._check_best_metric()

    def _check_rotary(self) -> None:
        for name, phase in self.phases.items():
            if phase.rotary_theta and self.model.positions != "rotary":
                raise ValueError(
                    f"phases.{name}.rotary_theta={phase.rotary_theta}: has no effect with "
                    f"model.positions={self.model.positions!r}. Set model.positions='rotary', or "
                    "leave it at 0."
                )

    def _check_decay(self) -> None:
        check_at_least(0, "", decay_from=self.decay_from)
        if not self.decay_from:
            return
        if not self.init_from:
            raise ValueError(
                f"decay_from={self.decay_from} without init_from: set init_from to the work "
                "directory of the run that saved the checkpoint."
            )
        if absolute(parse_location(self.init_from)) == absolute(parse_location(self.work_dir)):
            raise ValueError(
                f"work_dir={self.work_dir} is also init_from, the run to start from. Choose "
                "another work_dir for the decay."
            )
        total = self.total_steps
        begin = self.optimizer.decay_start(total)
        if begin is None:
            raise ValueError(
                f"decay_from={self.decay_from} with optimizer.schedule="
                f"{self.optimizer.schedule!r}: this schedule has no decay that begins at a given "
                "step. Set optimizer.schedule='wsd'."
            )
        if begin != self.decay_from:
            fix = f"optimizer.decay_steps={total - self.decay_from} and decay_fraction=0, or change"
            fix = fix if total > self.decay_from else "a larger"
            raise ValueError(
                f"decay_from={self.decay_from}: expected {begin}, because the decay takes the last "
                f"{total - begin} of {total} steps. Set {fix} "
                f"phases.{self.ordered_phases()[-1][0]}.num_steps."
            )

    def _check_distillation(self) -> None:
        if self.distillation is None:
            return
        if self.distillation.init_layers and self.init_from and not self.decay_from:
            raise ValueError(
                f"init_from={self.init_from} and distillation.init_layers=True both set the "
                "student's initial parameters. Leave out one of them."
            )
        if self.sentence_pairs == "none" and (weight := self.distillation.pairs_weight) != 1.0:
            raise ValueError(
                f"distillation.pairs_weight={weight} with sentence_pairs='none': the examples have "
                "no sentence pairs. Leave it at 1.0, or set sentence_pairs."
            )

    def _check_replaced_token(self) -> None:
        if self.replaced_token is None:
            return
        if self.sentence_pairs != "none":
            raise ValueError(
                f"sentence_pairs={self.sentence_pairs!r} with a replaced_token section: a model "
                "that detects replaced tokens has no sentence-pair head. Set sentence_pairs='none'."
            )
        if self.distillation is not None:
            raise ValueError(
                "distillation and replaced_token: a run cannot have both a teacher and a "
                "generator. Remove one of the two sections."
            )

    def _check_best_metric(self) -> None:
        kept, metric = self.checkpoint.keep_best, self.checkpoint.best_metric
        if not kept:
            return
        if not self.evaluation.every_steps:
            raise ValueError(
                f"checkpoint.keep_best={kept} with evaluation.every_steps=0: without evaluations, "
                "the best checkpoint is unknown. Set checkpoint.keep_best=0."
            )
        names = metric_names(self.sentence_pairs)
        if self.replaced_token is not None:
            names = REPLACED_TOKEN_METRICS
        metrics = (*names, "mlm_perplexity", *self.distillation_losses)
        metrics += tuple(self.evaluation.language_metrics)
        if self.averaging.ema_decay:
            metrics += tuple(f"{AVERAGE_PREFIX}{name}" for name in metrics)
        if metric not in metrics:
            raise ValueError(
                f"checkpoint.best_metric={metric!r} is not a held-out metric of this run. Choose "
                f"one of {', '.join(metrics)}, or set checkpoint.keep_best=0."
            )
        if metric.removeprefix(AVERAGE_PREFIX).startswith("mlm_") and not (self.trains_masked_lm):
            raise ValueError(
                f"checkpoint.best_metric={metric!r} measures the masked-LM head, which is not "
                "trained if distillation.mlm_weight=0 and soft_weight=0. Set it to one of "
                f"{', '.join(self.distillation_losses)}."
            )

    @property
    def distillation_losses(self) -> tuple[str, ...]:
        """The names of the distillation losses; empty if there is no teacher."""
        return () if self.distillation is None else self.distillation.losses

    @property
    def trains_masked_lm(self) -> bool:
        """Whether any loss trains the masked-LM head."""
        weights = self.distillation
        return weights is None or weights.mlm_weight > 0 or weights.soft_weight > 0

    @property
    def examples(self) -> ExampleConfig:
        """The settings that, together with the corpora, determine the training examples."""
        return ExampleConfig(self.seed, self.sentence_pairs, self.masking, self.join_documents)

    @property
    def total_steps(self) -> int:
        """The total number of steps in all phases."""
        return sum(phase.num_steps for phase in self.phases.values())

    @property
    def longest_sequence(self) -> int:
        """The longest sequence length of any phase, in tokens."""
        return max(phase.sequence_length for phase in self.phases.values())

    @property
    def intervals(self) -> Intervals:
        """The intervals, in steps, between reports, evaluations and checkpoints."""
        return Intervals(
            self.reporting.every_steps,
            self.evaluation.every_steps,
            self.checkpoint.every_steps,
            save_evaluated=self.checkpoint.keep_best > 0,
        )

    def ordered_phases(self) -> list[tuple[str, int, PhaseConfig]]:
        """Return (name, first step, config) for each phase, in running order."""
        first_step, result = 0, []
        for name in sorted(self.phases, key=_natural_order):
            result.append((name, first_step, self.phases[name]))
            first_step += self.phases[name].num_steps
        return result

    def evaluation_batch_size(self, phase: PhaseConfig) -> int:
        """Return the number of sequences in an evaluation batch of a phase.

        The default is the number of sequences that a train step processes at once.
        """
        return self.evaluation.batch_size or phase.batch_size // self.accumulation_steps

    def step_setup(self, device: Device) -> StepSetup:
        """Return the train-step settings for a kind of device, without a teacher."""
        return StepSetup(
            model=self.model,
            sentence_pairs=self.sentence_pairs,
            masking=self.masking,
            requested_compute=self.compute,
            compute=self.compute.resolve(device, self.model, self.longest_sequence),
            optimizer=self.optimizer,
            accumulation_steps=self.accumulation_steps,
            distillation=self.distillation,
            replaced_token=self.replaced_token,
            averaging=self.averaging,
            divergence=self.divergence,
        )

    def identity(self) -> dict[str, object]:
        """Return the values that must match a checkpoint for this run to resume from it.

        `phases_identity` returns the values that depend on the corpora and batch sizes.
        """
        # If the masking rate changes over the run, it depends on the total number of steps.
        changing = {"total_steps": self.total_steps} if self.masking.changes else {}
        pairs = {"pairs": _PAIRS_VERSION} if self.sentence_pairs != "none" else {}
        decay = {DECAY_IDENTITY: self.decay_from} if self.decay_from else {}
        settings = self.replaced_token
        replaced = {} if settings is None else {"replaced_token": dataclasses.asdict(settings)}
        return {
            **changing,
            **pairs,
            **decay,
            **replaced,
            "model": {**self.model.identity, "sentence_pairs": self.sentence_pairs},
            "optimizer": self.optimizer.name,
            "seed": self.seed,
            "masking": self.masking.identity,
            "join_documents": self.join_documents,
        }


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares sequences of digits as numbers: phase2 precedes phase10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
