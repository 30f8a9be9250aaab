"""Define the config of a fine-tuning run; its values are set in `configs/finetune/*.py`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from fractions import Fraction

from bert_jax.conversion import one_section_of
from bert_jax.finetuning.hyperparameters import Hyperparameters
from bert_jax.finetuning.registry import kind_of_task, task_sections
from bert_jax.finetuning.task_data import TaskData
from bert_jax.finetuning.task_kind import TaskConfig
from bert_jax.labeled_data.files import Split
from bert_jax.local_paths import PathOrUrl, check_config_paths
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tracking.tracker import TrackerName
from bert_jax.training.divergence import DivergenceConfig
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.phase import Intervals
from bert_jax.training.sharding import MeshConfig
from bert_jax.training.tuning import TuningConfig
from bert_jax.validation import check_seed


def default_optimizer() -> OptimizerConfig:
    """Return the settings for AdamW with bias correction and warm-up over a tenth of the steps.

    Without bias correction or without warm-up, models fine-tuned on small datasets collapse to a
    single answer with some seeds (Mosbach et al. 2021, "On the Stability of Fine-tuning BERT";
    Zhang et al. 2021, "Revisiting Few-sample BERT Fine-tuning").
    """
    return OptimizerConfig(peak_learning_rate=3e-5, warmup_steps=0, warmup_fraction=0.1)


@dataclass(frozen=True)
class EvaluationConfig:
    """The part of a fine-tuning config that is used to evaluate the model.

    Attributes:
      task: the task's section.
      max_length: the maximum number of tokens per sequence.
      batch_size: the maximum number of examples per batch.
      max_shapes: the maximum number of different lengths that rows are padded to.
      compute: the model's dtype and implementation.
      mesh: the number of devices along each mesh axis.
    """

    task: TaskConfig
    max_length: int = 128
    batch_size: int = 128
    max_shapes: int = 6
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        kind_of_task(self.task)
        check_config_paths(self)
        for name in ("batch_size", "max_shapes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")


@dataclass(frozen=True)
class Monitoring:
    """Settings for a run's evaluations and progress reports.

    Attributes:
      evaluations_per_epoch: the number of evaluations on the validation set per epoch.
      best_metric: the metric that selects the best checkpoint; "" means the task's primary metric.
      patience: the number of consecutive evaluations without improvement after which the run ends;
        0 disables early stopping.
      report_every_steps: the number of steps between progress lines.
      tensorboard: whether to write event files for TensorBoard.
      trackers: the tracking services that also receive the metrics and the config: "wandb" (Weights
        & Biases), "mlflow", or both. They are configured by their own environment variables, and
        need the extra of the same name.
      notify: a shell command that is run when the run starts, ends, diverges or fails; "" for none.
    """

    evaluations_per_epoch: int
    best_metric: str
    patience: int
    report_every_steps: int
    tensorboard: bool
    trackers: tuple[TrackerName, ...]
    notify: str = ""

    def intervals(self, num_epochs: int, steps_per_epoch: int) -> Intervals:
        """Return the intervals at which the run reports progress, evaluates and saves.

        A checkpoint is saved at every evaluation and at the end.
        """
        return Intervals(
            report=self.report_every_steps,
            evaluate=Fraction(steps_per_epoch, self.evaluations_per_epoch),
            save=num_epochs * steps_per_epoch,
            save_evaluated=True,
        )


@dataclass(frozen=True)
class FinetuneConfig:
    """The config of a run. Its task is one section: glue, sentences, choices, tags or spans.

    Attributes:
      work_dir: the directory that the run writes to, or its URL in a bucket.
      init_from: the work directory of `pretrain`, `import` or `finetune` that provides the initial
        parameters and the tokenizer. You may delete that directory once the run has saved a
        checkpoint.
      task: the task's section.
      from_scratch: whether to take only the sizes and the tokenizer from `init_from`, and to
        initialize all parameters randomly.
      seed: seed for parameter initialization, shuffling and dropout.
      max_length: maximum number of tokens per sequence; longer sequences are truncated or, for
        spans and tags, split into windows.
      num_epochs: number of epochs.
      batch_size: number of examples per step, across all devices.
      evaluation_batch_size: maximum number of examples per evaluation batch; 0 means four times
        batch_size / accumulation_steps. On a CPU, batches of long examples are smaller (see
        `Scorer`).
      accumulation_steps: number of parts that each batch is split into to save memory.
      max_shapes: maximum number of different lengths that rows are padded to. Each length has its
        own compiled program. The lengths are chosen to fit the training examples; the longest one
        is extended if an evaluation set has longer examples.
      dropout: dropout rate in the encoder and its attention; -1 keeps the rates from `init_from`.
      head_dropout: dropout rate on the classifier's input; -1 means 0.1, or 0 for a head without
        dropout.
      evaluations_per_epoch: number of evaluations on the validation set per epoch. They are evenly
        spaced, with the last one at the end of the epoch.
      best_metric: metric that selects the best checkpoint; "" means the task's primary metric.
      patience: number of consecutive evaluations without improvement after which the run ends; 0
        disables early stopping. A tie replaces the best checkpoint but is not an improvement.
      report_every_steps: number of steps between progress lines.
      allow_unknown: whether to accept sets in which more than a fifth of the tokens are unknown.
      tensorboard: whether to write event files for TensorBoard.
      trackers: the tracking services that also receive the metrics and the config: "wandb" (Weights
        & Biases), "mlflow", or both. They are configured by their own environment variables, and
        need the extra of the same name.
      notify: a shell command that is run when the run starts, ends, diverges or fails; see
        `ReportingConfig.notify`. "" for none.
      tuning: which parameters to train, and the learning rate for each layer.
      compute: the model's dtype and implementation.
      optimizer: the optimizer and its learning-rate schedule.
      divergence: how the run handles loss spikes and values that are not finite.
      mesh: the number of devices along each mesh axis.
    """

    work_dir: PathOrUrl
    init_from: PathOrUrl
    task: TaskConfig = one_section_of(task_sections)
    from_scratch: bool = False
    seed: int = 0
    max_length: int = 128
    num_epochs: int = 3
    batch_size: int = 32
    evaluation_batch_size: int = 0
    accumulation_steps: int = 1
    max_shapes: int = 6
    dropout: float = -1.0
    head_dropout: float = -1.0
    evaluations_per_epoch: int = 1
    best_metric: str = ""
    patience: int = 0
    report_every_steps: int = 50
    allow_unknown: bool = False
    tensorboard: bool = False
    trackers: tuple[TrackerName, ...] = ()
    notify: str = ""
    tuning: TuningConfig = field(default_factory=TuningConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    optimizer: OptimizerConfig = field(default_factory=default_optimizer)
    divergence: DivergenceConfig = field(default_factory=DivergenceConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        # Reject an unknown task here, since it would be missing from config.json.
        kind_of_task(self.task)
        check_config_paths(self)
        for name in ("work_dir", "init_from"):
            if not getattr(self, name):
                hint = " (--init on the command line)" if name == "init_from" else ""
                raise ValueError(f"{name} is empty{hint}. Set it to a directory.")
        for name in (
            *("num_epochs", "batch_size", "accumulation_steps", "max_shapes"),
            *("evaluations_per_epoch", "report_every_steps"),
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("patience", "evaluation_batch_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more")
        for name in ("dropout", "head_dropout"):
            if (x := getattr(self, name)) != -1.0 and not 0.0 <= x < 1.0:
                raise ValueError(f"{name}={x}: expected 0 <= x < 1, or -1")
        check_seed(self.seed)

    @property
    def rows_evaluated(self) -> int:
        """The maximum number of examples per evaluation batch.

        Evaluation needs no memory for gradients, so the default is four times the number of
        examples that training processes at once.
        """
        return self.evaluation_batch_size or 4 * (self.batch_size // self.accumulation_steps)

    @property
    def evaluation(self) -> EvaluationConfig:
        """The config for evaluating the run's model."""
        return EvaluationConfig(
            task=self.task,
            max_length=self.max_length,
            batch_size=self.rows_evaluated,
            max_shapes=self.max_shapes,
            compute=self.compute,
            mesh=self.mesh,
        )

    @property
    def hyperparameters(self) -> Hyperparameters:
        """The hyperparameters that a sweep may vary."""
        rate = self.optimizer.peak_learning_rate
        return Hyperparameters(self.batch_size, rate, self.num_epochs, self.seed)

    @property
    def monitoring(self) -> Monitoring:
        """The settings for the run's evaluations and progress reports."""
        return Monitoring(
            evaluations_per_epoch=self.evaluations_per_epoch,
            best_metric=self.best_metric,
            patience=self.patience,
            report_every_steps=self.report_every_steps,
            tensorboard=self.tensorboard,
            trackers=self.trackers,
            notify=self.notify,
        )

    def open(self, tokenizer: Tokenizer, splits: Collection[Split]) -> TaskData:
        """Read the task's files for the given splits; see `TaskConfig.open`."""
        return self.task.open(tokenizer, self.max_length, splits)

    def with_file(self, path: str, split: Split) -> FinetuneConfig:
        """Return the config with one of the task's files replaced; see `TaskConfig.with_file`."""
        return replace(self, task=self.task.with_file(path, split))

    def with_columns(self) -> FinetuneConfig:
        """Return the config with the columns found in the training file.

        Columns are detected as described in `TaskConfig.with_columns`.
        """
        task = self.task.with_columns("train")
        return self if task is self.task else replace(self, task=task)
