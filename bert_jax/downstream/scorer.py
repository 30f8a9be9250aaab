"""Fine-tune checkpoints of a pretraining run, and log the scores alongside the run's metrics."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.outcome import read_outcome
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.source import Source
from bert_jax.finetuning.sweep_run import OUTPUT_NAME, reports_to
from bert_jax.finetuning.training import train
from bert_jax.local_paths import make_directory
from bert_jax.models.model import ModelConfig
from bert_jax.runs.bucket_layout import DOWNSTREAM_NAME
from bert_jax.runs.bucket_scores import Scores, open_scores
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, read_model
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_checksums import PARAMETERS, Unreadable, recorded_checksum
from bert_jax.training.checkpoint_files import damaged, steps_in
from bert_jax.training.distributed import StopRequest
from bert_jax.training.downstream_log import DownstreamLog, DownstreamScore
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.metrics_log import LOG_NAME
from bert_jax.training.reporting import TENSORBOARD_NAME, Curves, TensorBoard
from bert_jax.training.reports import Message, OnReport
from bert_jax.training.sharding import make_mesh

_STEP = "step-"  # The directories of fine-tuning runs have this prefix.


def open_tasks(
    tasks: Mapping[str, FinetuneConfig], place: WorkDir, model: ModelConfig, tokenizer: Tokenizer
) -> dict[str, FinetuneRun]:
    """Read the data of all tasks, and check that it fits the model.

    Args:
      tasks: the configs, keyed by the names of the tasks.
      place: the work directory of the pretraining run.
      model: the run's model.
      tokenizer: the model's tokenizer.

    Raises:
      ValueError: a file is missing or damaged, or a config does not fit the model or the data.
    """
    opened: dict[str, FinetuneRun] = {}
    for name, config in tasks.items():
        mesh = make_mesh(config.mesh)
        init_from = str(place.location)
        source = Source(init_from, config.from_scratch, place.path, model, tokenizer, None, mesh)
        try:
            own = place / DOWNSTREAM_NAME / name
            run = FinetuneRun.open(config, mesh, list(opened.values()), source, own)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        opened[name] = replace(run, data=replace(run.data, test={}))
    return opened


@dataclass(frozen=True)
class OpenCheckpoint:
    """A checkpoint that has been read into memory.

    Attributes:
      step: the checkpoint's step.
      checksum: a checksum of its parameters.
      sources: the model that each task starts from, keyed by task, without the tasks that have
        already been scored. Once a task's fine-tuning run has saved its own checkpoint, the model
        is kept without its parameters.
    """

    step: int
    checksum: str
    sources: Mapping[str, Source]


@dataclass
class DownstreamScorer:
    """Fine-tunes checkpoints on a few tasks; use `scoring` to create it.

    Each task has its own directory under `downstream` in the run's work directory. The directory of
    a fine-tuning run is removed after its scores have been logged.

    Attributes:
      place: the work directory of the pretraining run.
      opened: the tasks, with their data and compiled programs.
      checksums: a checksum of each task's config and examples.
      scores: the files with the scores.
      log: the log of the scores.
      board: the writer for TensorBoard events; None to write none.
      stop: a request to stop.
      report: called with a message after each fine-tuning run.
    """

    place: WorkDir
    opened: Mapping[str, FinetuneRun]
    checksums: Mapping[str, str]
    scores: Scores
    log: DownstreamLog
    board: TensorBoard | None
    stop: StopRequest
    report: OnReport

    @property
    def work_dir(self) -> Path:
        """The local directory with the run's files."""
        return self.place.path

    def open(self, step: int) -> OpenCheckpoint:
        """Read a checkpoint, which may be removed afterwards.

        Raises:
          DamagedCheckpoint: a file is missing or damaged.
          OSError: the checkpoint is intact but cannot be loaded.
          ValueError: the checkpoint is missing or does not fit the model.
        """
        checkpoints = self.work_dir / CHECKPOINTS_NAME
        try:
            checksum = recorded_checksum(checkpoints, step, PARAMETERS)
        except Unreadable as error:
            raise damaged(checkpoints, step, str(error)) from error
        unscored = {
            name: run
            for name, run in self.opened.items()
            if not self.log.has(name, step, checkpoint=checksum, config=self.checksums[name])
        }
        if not unscored:
            return OpenCheckpoint(step, checksum, {})
        theta = read_model(self.work_dir, step)[0].encoder.rotary_theta
        sources: dict[str, Source] = {}
        held: Source | None = None
        for name, run in unscored.items():
            model = run.source.model
            model = replace(model, encoder=replace(model.encoder, rotary_theta=theta))
            needed = None if run.source.from_scratch else step
            source = replace(run.source, step=needed, model=model, held=None)
            begun = _has_begun(self._run_directory(name, step, checksum).path)
            if needed is not None and not begun:
                held = held or source.hold()
                source = replace(source, held=held.held)
            sources[name] = source
        return OpenCheckpoint(step, checksum, sources)

    def score(self, checkpoint: OpenCheckpoint) -> bool:
        """Fine-tune a checkpoint on every task; return False if a stop was requested.

        Tasks that the checkpoint has already been scored on are skipped, and a fine-tuning run that
        was stopped is resumed.

        Raises:
          ValueError: a file is damaged, or does not fit the config.
        """
        for name, source in checkpoint.sources.items():
            if self.stop.stop_now():
                return False
            run = self.opened[name].with_source(source)
            # Keep the run, so that later checkpoints reuse its compiled programs.
            self.opened = {**self.opened, name: run}
            if not self._finetune(name, run, checkpoint):
                return False
        return True

    def _finetune(self, name: str, run: FinetuneRun, checkpoint: OpenCheckpoint) -> bool:
        """Fine-tune on one task and log the scores; return False if a stop was requested."""
        step, directory = checkpoint.step, self.work_dir / DOWNSTREAM_NAME / name
        target = self._run_directory(name, step, checkpoint.checksum)
        run = run.with_hyperparameters(target, run.hyperparameters)
        scores: Mapping[str, float] = {}
        began = time.monotonic()
        make_directory(target.path)
        with reports_to(directory / OUTPUT_NAME) as report:
            report(Message(f"fine-tuning after step {step:,}"))
            try:
                if not train(run, self.stop, on_report=report):
                    return False
                outcome = read_outcome(target.path)
                assert outcome is not None
                scores = outcome.scores
            except TrainingDiverged as error:
                report(Message(str(error)))
        score = DownstreamScore(
            name,
            step,
            run.compared_by.metric,
            scores,
            seconds=round(time.monotonic() - began, 3),
            checkpoint=checkpoint.checksum,
            config=self.checksums[name],
        )
        self.log.append(score)
        # Remove the directories of runs that were never resumed, too.
        for other in directory.glob(f"{_STEP}*"):
            shutil.rmtree(other, ignore_errors=True)
        if self.board is not None:
            self.board.add(score.tagged(), step)
        self.scores.update_log()
        if (self.work_dir / LOG_NAME).is_file():
            Curves(self.work_dir).draw()
        self.scores.publish()
        self.report(Message(str(score)))
        return True

    def _run_directory(self, name: str, step: int, checksum: str) -> WorkDir:
        number = xxhash.xxh3_64_hexdigest(f"{checksum} {self.checksums[name]}".encode())
        return self.place / DOWNSTREAM_NAME / name / f"{_STEP}{step}-{number[:8]}"


@contextmanager
def scoring(
    place: WorkDir,
    opened: Mapping[str, FinetuneRun],
    *,
    tensorboard: bool,
    stop: StopRequest,
    report: OnReport,
) -> Iterator[DownstreamScorer]:
    """Open the log of a run's downstream scores, and lock it against other processes.

    Args:
      place: the work directory of the pretraining run.
      opened: the tasks; see `open_tasks`.
      tensorboard: whether to write TensorBoard events to a subdirectory of the work directory.
      stop: a request to stop.
      report: called with a message after each fine-tuning run.

    Raises:
      ValueError: another process is scoring this run's checkpoints.
    """
    with open_scores(place) as scores:
        log = DownstreamLog(place.path)
        checksums = {name: _checksum_of(run) for name, run in opened.items()}
        name = f"{TENSORBOARD_NAME}/{DOWNSTREAM_NAME}"
        board = TensorBoard(place.path, log.last_step, name) if tensorboard else None
        try:
            yield DownstreamScorer(place, opened, checksums, scores, log, board, stop, report)
        finally:
            if board is not None:
                board.close()


def _checksum_of(run: FinetuneRun) -> str:
    """Return a checksum of the values that determine a fine-tuning run's scores."""
    assert run.data.train is not None
    skipped = ("work_dir", "init_from", "mesh", "tensorboard", "trackers", "report_every_steps")
    config = {name: x for name, x in run.resolved.as_read().items() if name not in skipped}
    config["compute"]["dtype"] = run.compute.dtype  # The meaning of "auto" depends on the device.
    values = {
        "config": config,
        "train": run.data.train.fingerprint,
        "validation": {name: each.fingerprint for name, each in run.data.validation.items()},
    }
    return xxhash.xxh3_128_hexdigest(json.dumps(values, sort_keys=True).encode())


def _has_begun(directory: Path) -> bool:
    """Return whether a fine-tuning run has saved a checkpoint."""
    return bool(steps_in(directory / CHECKPOINTS_NAME))
