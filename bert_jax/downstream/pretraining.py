"""Pretrain a model, and fine-tune its checkpoints on downstream tasks along the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import jax

from bert_jax.downstream.scorer import DownstreamScorer, open_tasks, scoring
from bert_jax.downstream.tasks import load_tasks
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.local_paths import naming_urls
from bert_jax.models.model import ModelConfig
from bert_jax.pretraining import run
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.prepared_run import PretrainResult
from bert_jax.runs.locations import WorkDir
from bert_jax.storage.urls import parse_location
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.distributed import StopRequest
from bert_jax.training.reports import OnReport
from bert_jax.validation import check_config

_KEY = "evaluation.downstream"


@naming_urls()
def pretrain(
    config: PretrainConfig,
    *,
    from_step: int | None = None,
    on_report: OnReport | None = None,
    stop: StopRequest | None = None,
) -> PretrainResult:
    """Pretrain a model, or resume the run in the config's work directory.

    This function can be called from any thread. In the main thread, SIGTERM, SIGHUP and Ctrl-C make
    the run save a checkpoint at the next step and stop.

    Args:
      config: the run's config.
      from_step: the step of the checkpoint to resume from; None for the newest.
      on_report: called with every message, progress report and evaluation; if None, nothing is
        reported.
      stop: an object for stopping the run. Calling its `request()` from any thread has the same
        effect as the signals.

    Returns:
      A `PretrainResult` with the run's progress and metrics. Its `model` is the newest model.

    Raises:
      ValueError: the run cannot start or resume; the message names the key to change.
    """
    check_config(config, PretrainConfig)
    downstream = None
    if config.evaluation.downstream:
        downstream = _load(config)
    return run.pretrain(
        config, from_step=from_step, on_report=on_report, stop=stop, downstream=downstream
    )


def _load(config: PretrainConfig) -> _InProcess:
    if (processes := jax.process_count()) > 1:
        raise ValueError(
            f"{_KEY}: fine-tuning needs a run with a single process, but this run has {processes} "
            f"processes. Remove the key, and start `bert-jax follow {config.work_dir} --config "
            "...` alongside the run."
        )
    work_dir = parse_location(config.work_dir, "work_dir")
    return _InProcess(config, load_tasks(config.evaluation.downstream, (), work_dir, _KEY))


@dataclass
class _InProcess:
    """Fine-tunes checkpoints within the pretraining run's own process; see `Downstream`."""

    config: PretrainConfig
    tasks: Mapping[str, FinetuneConfig]
    _opened: Mapping[str, FinetuneRun] = field(default_factory=dict)

    def check(self, model: ModelConfig, tokenizer: Tokenizer, place: WorkDir) -> None:
        """See `Downstream.check`."""
        try:
            self._opened = open_tasks(self.tasks, place, model, tokenizer)
        except ValueError as error:
            raise ValueError(f"{_KEY}: {error}") from error

    @contextmanager
    def scoring(self, place: WorkDir, stop: StopRequest, report: OnReport) -> Iterator[_AfterSave]:
        """See `Downstream.scoring`."""
        with scoring(
            place,
            self._opened,
            tensorboard=self.config.reporting.tensorboard,
            stop=stop,
            report=report,
        ) as scorer:
            yield _AfterSave(self.config, scorer)


@dataclass
class _AfterSave:
    config: PretrainConfig
    scorer: DownstreamScorer

    def due(self, step: int) -> bool:
        """See `AfterSave.due`."""
        return self.config.evaluation.fine_tunes_after(step, self.config.total_steps)

    def __call__(self, step: int) -> bool:
        """See `AfterSave.__call__`."""
        return self.scorer.score(self.scorer.open(step))
