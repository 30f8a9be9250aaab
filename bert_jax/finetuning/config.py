"""The config of a fine-tuning run, which `configs/finetune/*.py` fill in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from fractions import Fraction

from bert_jax.conversion import one_section_of
from bert_jax.finetuning.registry import task_sections
from bert_jax.finetuning.task_data import TaskData
from bert_jax.finetuning.task_kind import TaskConfig
from bert_jax.labeled_data.files import Split
from bert_jax.local_paths import LocalPath, check_config_paths
from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import ModelConfig
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.loop import Intervals
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.sharding import MeshConfig
from bert_jax.training.tuning import TuningConfig
from bert_jax.validation import check_seed


def default_optimizer() -> OptimizerConfig:
    """AdamW with bias correction and a tenth of warm-up.

    Without either, small tasks collapse to one answer on some seeds (Mosbach et al. 2021, "On the
    Stability of Fine-tuning BERT"; Zhang et al. 2021, "Revisiting Few-sample BERT Fine-tuning").
    """
    return OptimizerConfig(peak_learning_rate=3e-5, warmup_steps=0, warmup_fraction=0.1)


@dataclass(frozen=True)
class EvaluationSettings:
    """The part of a fine-tuning config with which a model is evaluated.

    max_length: most tokens of a sequence. batch_size: most examples computed at once. max_shapes:
    most lengths that rows are padded to.
    """

    max_length: int
    batch_size: int
    max_shapes: int
    compute: ComputeConfig
    mesh: MeshConfig


@dataclass(frozen=True)
class FinetuneConfig:
    """A fine-tuning run. One of the sections glue, sentences, choices, tags and spans is the task.

    init_from: the work directory of `pretrain`, `import` or `finetune` whose parameters and
      tokenizer are taken; a run that has begun goes on without it. from_scratch: its sizes and
      tokenizer only, all parameters randomly initialized.
    seed: of random parameters, the order of the examples and dropout.
    max_length: tokens of a sequence; longer ones are cut or, with spans and tags, windowed.
    num_epochs, batch_size: examples a step, over all devices.
    evaluation_batch_size: the most examples at once; 0 takes four batches of training. On a CPU
      batches of long examples are smaller (`Scorer`).
    max_shapes: lengths that rows are padded to, at most: each compiles a program. They are chosen
      for the training examples; of a set with a longer one to be scored the last is longer.
    dropout: of the encoder and its attention; -1 takes what `init_from` was trained with.
      head_dropout: on what the classifier reads; -1 is 0.1, or 0 for a head that has none.
    evaluations_per_epoch: on the validation set, evenly spaced, the last at the epoch's end; each
      may prove the best.
    best_metric: by which the kept checkpoint is chosen; empty for the task's own.
    patience: end when so many evaluations in a row were no better than the best; 0: never. Of
      equal evaluations the last is kept, but does not count as better.
    report_every_steps: steps between progress lines.
    allow_unknown: whether more than a fifth of the tokens of a set may be unknown to the tokenizer.
    """

    work_dir: LocalPath
    init_from: LocalPath
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
    tuning: TuningConfig = field(default_factory=TuningConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    optimizer: OptimizerConfig = field(default_factory=default_optimizer)
    mesh: MeshConfig = field(default_factory=MeshConfig)

    def __post_init__(self) -> None:
        check_config_paths(self)
        for name in ("work_dir", "init_from"):
            if not getattr(self, name):
                hint = " (--init on the command line)" if name == "init_from" else ""
                raise ValueError(f"{name} is empty; expected a directory{hint}")
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
        """Examples in a batch of evaluation: without gradients there is room for more of them."""
        return self.evaluation_batch_size or 4 * (self.batch_size // self.accumulation_steps)

    @property
    def evaluation_settings(self) -> EvaluationSettings:
        """The settings with which the run's model is evaluated."""
        return EvaluationSettings(
            self.max_length, self.rows_evaluated, self.max_shapes, self.compute, self.mesh
        )

    def intervals(self, steps_per_epoch: int) -> Intervals:
        """When the run reports and evaluates; it saves what it has evaluated, and its end."""
        return Intervals(
            report=self.report_every_steps,
            evaluate=Fraction(steps_per_epoch, self.evaluations_per_epoch),
            save=self.num_epochs * steps_per_epoch,
            save_evaluated=True,
        )

    def open(
        self, tokenizer: Tokenizer, splits: Collection[Split], labels: tuple[str, ...] = ()
    ) -> TaskData:
        """Read the task's files of these splits; see `TaskConfig.open`."""
        return self.task.open(tokenizer, self.max_length, splits, labels)

    def with_file(self, path: str, split: Split) -> FinetuneConfig:
        """Return the config with another file of the task; see `TaskConfig.with_file`."""
        return replace(self, task=self.task.with_file(path, split))

    def with_columns(
        self, split: Split = "train", model: ModelConfig | None = None
    ) -> FinetuneConfig:
        """Return the config with detected columns; see `TaskConfig.with_columns`."""
        task = self.task.with_columns(split, model)
        return self if task is self.task else replace(self, task=task)
