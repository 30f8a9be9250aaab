"""Follow a pretraining run, and fine-tune each of its checkpoints on a few tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bert_jax.downstream.scorer import DownstreamScorer, OpenCheckpoint, open_tasks, scoring
from bert_jax.downstream.tasks import load_tasks
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.runs.followed import FollowedRun, followed_run
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, read_model, read_tokenizer
from bert_jax.storage.errors import StorageError
from bert_jax.training.checkpoint_files import DamagedCheckpoint, steps_in
from bert_jax.training.distributed import StopRequest, StopRequested, launched_together
from bert_jax.training.downstream_log import DownstreamScore, read_downstream_scores
from bert_jax.training.reports import Message, OnReport, discard
from bert_jax.validation import check_list

_POLL_SECONDS = 10.0
_STOP_SECONDS = 0.2  # The interval at which a waiting process checks for a request to stop.


@dataclass(frozen=True)
class FollowResult:
    """The result of `follow`.

    Attributes:
      finished: whether all checkpoints have been scored, except for those that could not be read.
        If False, `follow` was stopped, and the same call resumes it.
      scores: all scores in the log, ordered by step.
    """

    finished: bool
    scores: Sequence[DownstreamScore]


def follow(
    work_dir: str | os.PathLike[str],
    configs: Sequence[str],
    *,
    overrides: Sequence[str] = (),
    every: int = 1,
    once: bool = False,
    poll_seconds: float = _POLL_SECONDS,
    on_report: OnReport | None = None,
    stop: StopRequest | None = None,
) -> FollowResult:
    """Fine-tune the checkpoints of a pretraining run while it is in progress, and log the scores.

    The scores go to `downstream.jsonl` in the run's work directory, to its curves and to its
    TensorBoard events. Checkpoints that have been scored before are skipped, so the same call
    resumes after an interruption. If the run goes back to an earlier step, its new checkpoints for
    the same steps are scored too. A checkpoint that cannot be read is skipped with a warning until
    its files change. The function returns when the run is finished and its last checkpoint has been
    scored.

    Args:
      work_dir: the work directory of the run, or its URL in a bucket.
      configs: names of fine-tuning recipes and paths of config files.
      overrides: overrides such as "--config.num_epochs=1", which apply to every config.
      every: score only the last checkpoint and those whose step is a multiple of this number.
      once: whether to return as soon as all existing checkpoints have been scored, including those
        that the run saves in the meantime.
      poll_seconds: how often to look for new checkpoints, in seconds.
      on_report: called with a message after each fine-tuning run and for each skipped checkpoint.
      stop: a request to stop the function; any thread may call its `request()`.

    Raises:
      ValueError: the directory does not contain a pretraining run, a config does not fit the model
        or the data, a file is missing, or another process is scoring this run's checkpoints.
      StorageError: the bucket of the run cannot be read or written.
    """
    if (processes := launched_together()) > 1:
        raise ValueError(
            f"`follow` must run as a single process that uses all devices, but {processes} "
            "processes are running. Start a single process (under Slurm with srun --ntasks=1)."
        )
    if every < 1:
        raise ValueError(f"every={every}: expected 1 or more.")
    check_list("configs", configs)
    check_list("overrides", overrides)
    with followed_run(work_dir) as run:
        report = run.place.reporting(on_report) or discard
        finished = _follow(run, configs, overrides, every, once, poll_seconds, report, stop)
        run.place.finished = finished
        return FollowResult(finished, read_downstream_scores(run.place.path))


def _follow(
    run: FollowedRun,
    configs: Sequence[str],
    overrides: Sequence[str],
    every: int,
    once: bool,
    poll_seconds: float,
    report: OnReport,
    stop: StopRequest | None,
) -> bool:
    """Score checkpoints as `follow` does, and return whether all of them have been scored."""
    directory, location = run.place.path, run.place.location
    model, _ = read_model(directory)
    if model.classifier is not None:
        raise ValueError(
            f"{location}: this model was fine-tuned (its head is {model.head!r}). Specify the work "
            "directory of a pretraining run."
        )
    tasks = load_tasks(configs, overrides, location, "--config")
    opened = open_tasks(tasks, run.place, model, read_tokenizer(directory, model.encoder))
    with ExitStack() as closing:
        stopping = closing.enter_context(stop or StopRequest())
        scorer = closing.enter_context(
            scoring(
                run.place,
                opened,
                tensorboard=_reports_to_tensorboard(directory),
                stop=stopping,
                report=report,
            )
        )
        finished = _Follower(run, scorer, every, stopping, report).run(once, poll_seconds)
        scorer.scores.update_log()
    if not finished:
        report(Message("stopped; run the same command to resume"))
    return finished


@dataclass(frozen=True)
class _Unread:
    """A checkpoint that could not be read.

    Attributes:
      error: the error.
      files: the checkpoint's files after the last attempt; see `_files_of`.
      reported: whether the error has been reported. It is not reported while the files change,
        since the run may be removing them.
    """

    error: Exception
    files: frozenset[tuple[str, int, int]]
    reported: bool


@dataclass
class _Follower:
    followed: FollowedRun
    scorer: DownstreamScorer
    every: int
    stop: StopRequest
    report: OnReport
    _unread: dict[int, _Unread] = field(default_factory=dict)

    @property
    def _checkpoints(self) -> Path:
        return self.followed.place.path / CHECKPOINTS_NAME

    def run(self, once: bool, poll_seconds: float) -> bool:
        """Score checkpoints until the run is finished; return False if a stop was requested."""
        waiting = False
        while True:
            self.followed.refresh(fully=bool(self._unread))
            total = _total_steps(self.followed.place.path)
            steps = steps_in(self._checkpoints)
            ended = total is None or total in steps
            last = steps[-1] if steps and (ended or once) else None
            due = [x for x in steps if x % self.every == 0 or x == last]
            for step in sorted(self._unread.keys() - set(steps)):
                self._skip_removed(step)
            checkpoint = self._next(due)
            if checkpoint is not None:
                if not self.scorer.score(checkpoint):
                    return False
                waiting = False
                continue
            settled = all(x not in self._unread or self._unread[x].reported for x in due)
            if (ended or once) and settled:
                return True
            if not (waiting or ended or once):
                newest = f"step {steps[-1]:,}" if steps else "the first step"
                self.report(Message(f"waiting for a checkpoint after {newest} of {total:,}"))
                waiting = True
            if not self._wait(poll_seconds):
                return False

    def _next(self, due: Sequence[int]) -> OpenCheckpoint | None:
        """Open the first checkpoint that can be read and is not in the log; None if there is none.

        Checkpoints are compared with the log every time, since a run that goes back to an earlier
        step replaces them.
        """
        for step in due:
            checkpoint = self._open(step)
            if checkpoint is not None and checkpoint.sources:
                return checkpoint
        return None

    def _open(self, step: int) -> OpenCheckpoint | None:
        """Open a checkpoint; return None if it cannot be read or has been removed."""
        files = self._checkpoints / str(step)
        before = self._unread.get(step)
        if before is not None and before.reported and isinstance(before.error, DamagedCheckpoint):
            if before.files == _files_of(files):
                return None
        try:
            checkpoint = self.scorer.open(step)
        except (OSError, ValueError) as error:
            if isinstance(error, StorageError) and error.problem not in ("missing", "conflict"):
                raise
            self.followed.refresh()
            if step not in steps_in(files.parent):
                self._skip_removed(step)
                return None
            if not isinstance(error, (OSError, DamagedCheckpoint)):
                raise
            self._note(step, error, _files_of(files))
            return None
        self.followed.release(step)
        self._unread.pop(step, None)
        return checkpoint

    def _skip_removed(self, step: int) -> None:
        self._unread.pop(step, None)
        text = f"skipped    step {step:,}: the run removed the checkpoint before it was read"
        self.report(Message(f"{text} (checkpoint.keep_every keeps more of them)"))

    def _note(self, step: int, error: Exception, files: frozenset[tuple[str, int, int]]) -> None:
        """Remember an unreadable checkpoint, and report it once its files have stopped changing."""
        before = self._unread.get(step)
        reported = before is not None and before.reported
        if before is not None and before.files == files and not reported:
            self.report(Message(f"warning    step {step:,} is skipped: {error}"))
            reported = True
        self._unread[step] = _Unread(error, files, reported)

    def _wait(self, seconds: float) -> bool:
        """Wait, and return False if a stop was requested in the meantime."""
        end = time.monotonic() + seconds
        try:
            while (left := end - time.monotonic()) > 0:
                self.stop.while_waiting()
                time.sleep(min(left, _STOP_SECONDS))
        except StopRequested:
            return False
        return True


def _files_of(checkpoint: Path) -> frozenset[tuple[str, int, int]]:
    """Return the path, size and change time of every file in a checkpoint."""
    files = set()
    for directory, _, names in os.walk(checkpoint):
        for path in (os.path.join(directory, name) for name in names):
            with suppress(OSError):  # The pretraining run may be removing the file.
                status = os.stat(path)
                files.add((path, status.st_size, status.st_ctime_ns))
    return frozenset(files)


def _total_steps(work_dir: Path) -> int | None:
    """Return the number of steps of the run in `work_dir`; None for an imported model."""
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        return None
    with expecting_fields(file):
        phases = read_json_object(file)["phases"].values()
        return sum(int(phase["num_steps"]) for phase in phases)


def _reports_to_tensorboard(work_dir: Path) -> bool:
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        return False
    with expecting_fields(file):
        return bool(read_json_object(file)["reporting"]["tensorboard"])
