"""Follow a pretraining run: fine-tune each of its checkpoints on a few tasks."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bert_jax.downstream.scorer import DownstreamScorer, open_tasks, scoring
from bert_jax.downstream.tasks import load_tasks
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, read_model, read_tokenizer
from bert_jax.training.checkpoint_checksums import Unreadable
from bert_jax.training.checkpoint_files import steps_in
from bert_jax.training.distributed import StopRequest, StopRequested, launched_together
from bert_jax.training.downstream_log import DownstreamScore, read_downstream_scores
from bert_jax.training.reports import Message, OnReport, discard

_POLL_SECONDS = 10.0
_STOP_SECONDS = 0.2  # how often a request to stop is checked while waiting
_REMOVAL_CHECKS = 10  # how often an unreadable checkpoint is looked for before it is reported


@dataclass(frozen=True)
class FollowResult:
    """The result of following a run.

    Attributes:
      finished: whether all checkpoints have been scored. If False, `follow` was stopped, and the
        same call resumes it.
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
    resumes after an interruption. The function returns when the run is finished and its last
    checkpoint has been scored.

    Args:
      work_dir: the work directory of the run.
      configs: names of fine-tuning recipes and paths of config files.
      overrides: overrides such as "--config.num_epochs=1", which apply to every config.
      every: score only the last checkpoint and those whose step is a multiple of this number.
      once: whether to return once the current checkpoints have been scored.
      poll_seconds: how often to look for new checkpoints, in seconds.
      on_report: called with a message after each fine-tuning run.
      stop: a request to stop; any thread may call its `request()`.

    Raises:
      ValueError: the directory does not contain a pretraining run, a config does not fit the model
        or the data, a file is missing, or another process is scoring this run's checkpoints.
    """
    if (processes := launched_together()) > 1:
        raise ValueError(
            f"follow must be a single process that uses all devices, but this is one of "
            f"{processes} processes. Start a single process (under Slurm with srun --ntasks=1)."
        )
    if every < 1:
        raise ValueError(f"every={every}: expected 1 or more.")
    directory, report = Path(work_dir), on_report or discard
    model, _ = read_model(directory)
    if model.classifier is not None:
        raise ValueError(
            f"{work_dir}: this model was fine-tuned (its head is {model.head!r}). Specify the work "
            "directory of a pretraining run."
        )
    tasks = load_tasks(configs, overrides, directory, "--config")
    opened = open_tasks(tasks, directory, model, read_tokenizer(directory, model.encoder))
    with ExitStack() as closing:
        stopping = closing.enter_context(stop or StopRequest())
        scorer = closing.enter_context(
            scoring(
                directory,
                opened,
                tensorboard=_reports_to_tensorboard(directory),
                stop=stopping,
                report=report,
            )
        )
        finished = _Follower(directory, scorer, every, stopping, report).run(once, poll_seconds)
    if not finished:
        report(Message("stopped; run the same command to resume"))
    return FollowResult(finished, read_downstream_scores(directory))


@dataclass
class _Follower:
    work_dir: Path
    scorer: DownstreamScorer
    every: int
    stop: StopRequest
    report: OnReport

    def run(self, once: bool, poll_seconds: float) -> bool:
        """Score checkpoints until the run is finished; return False if a stop was requested."""
        done: set[int] = set()
        waiting = False
        while True:
            total = _total_steps(self.work_dir)
            steps = steps_in(self.work_dir / CHECKPOINTS_NAME)
            ended = total is None or total in steps
            last = steps[-1] if steps and (ended or once) else None
            due = [x for x in steps if (x % self.every == 0 or x == last) and x not in done]
            if due:
                done.add(due[0])
                if not self._score(due[0]):
                    return False
                waiting = False
                continue
            if ended or once:
                return True
            if not waiting:
                newest = f"step {steps[-1]:,}" if steps else "the first step"
                self.report(Message(f"waiting for a checkpoint after {newest} of {total:,}"))
                waiting = True
            if not self._wait(poll_seconds):
                return False

    def _score(self, step: int) -> bool:
        """Score a checkpoint unless the run removes it first; return False if asked to stop."""
        try:
            checkpoint = self.scorer.open(step)
        except (OSError, ValueError, Unreadable):
            if not self._was_removed(step):
                raise
            text = f"skipped    step {step:,}: the run removed the checkpoint before it was read"
            self.report(Message(f"{text} (checkpoint.keep_every keeps more of them)"))
            return True
        return self.scorer.score(checkpoint)

    def _was_removed(self, step: int) -> bool:
        """Wait briefly for the run to remove a checkpoint, and return whether it did."""
        for _ in range(_REMOVAL_CHECKS):
            if step not in steps_in(self.work_dir / CHECKPOINTS_NAME):
                return True
            time.sleep(_STOP_SECONDS)
        return False

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
