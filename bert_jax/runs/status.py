"""Find out whether a run is alive, how far it has progressed, and how it has spent its time."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_never, get_args

from bert_jax.corpus.workspace import SWEEP_NAME, directory_kind
from bert_jax.goodput.account import Account, Goodput
from bert_jax.goodput.entries import GOODPUT_NAME, EndState, read_entries
from bert_jax.goodput.text import goodput_lines
from bert_jax.json_files import check_kinds, expecting_fields, read_json_object
from bert_jax.local_paths import naming_urls, shown
from bert_jax.runs.ownership import is_locked
from bert_jax.runs.views import is_leased, is_view, local_run
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.storage.urls import Location, parse_location
from bert_jax.training.checkpoint_files import steps_in
from bert_jax.training.heartbeat import HEARTBEAT_NAME
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.training.reports import EvaluationReport, format_duration, format_metric

# The state "ended" is for runs of earlier versions, which did not record how they ended.
State = Literal["not started", "running", "finished", "stopped", "failed", "killed", "ended"]
_BEATING_SECONDS = 30.0  # A running run writes a heartbeat at least every ten seconds.
_STUCK_SECONDS = 60.0
# The values in a log entry that are not metrics.
_DETAILS = {
    *("kind", "step", "learning_rate", "tokens_per_second"),
    *("stall", "utilisation", "seconds", "steps", "compiling"),
}


@dataclass(frozen=True)
class RunStatus:
    """The state of a run; `str()` describes it in several lines.

    Attributes:
      work_dir: the run's work directory.
      state: "running" if a process holds the lock of the work directory, or if a process on another
        machine has written a heartbeat in the last half minute. Otherwise, the state describes how
        the newest start ended. The cause of "killed" may be a signal, the system, or a power
        failure.
      step: the number of optimizer steps completed, including steps that a killed run has to
        repeat.
      total_steps: the number of optimizer steps in the whole run; None if unknown.
      checkpoint: the step of the newest checkpoint; None if there is none.
      activity: the activity of a running run according to its heartbeat, such as "saving"; "" if
        unknown.
      last_seen: the time of the last sign of life, in seconds since 1970; None if unknown.
      progress_time: the time of the last change of the step or the activity, in seconds since 1970;
        None if unknown.
      host: the machine that the newest start runs or ran on; "" if unknown.
      pid: the process ID of the newest start's first process; None if unknown.
      error: the error that ended the run; "" if there was none.
      train: the metrics in the newest progress report.
      evaluation: the newest evaluation; None if there is none.
      goodput: the summary of how the run has spent its time; None if the run has not recorded it.
    """

    work_dir: Location
    state: State
    step: int
    total_steps: int | None
    checkpoint: int | None
    activity: str
    last_seen: float | None
    progress_time: float | None
    host: str
    pid: int | None
    error: str
    train: Mapping[str, float]
    evaluation: EvaluationReport | None
    goodput: Goodput | None

    def __str__(self) -> str:
        lines = [f"run        {self.work_dir}: {self._described()}"]
        if not self.step and self.goodput is None:
            return lines[0]
        saved = "none" if self.checkpoint is None else f"step {self.checkpoint:,}"
        lines.append(f"progress   {self.progress}; newest checkpoint: {saved}")
        if self.train:
            shown = [f"{key} {format_metric(key, x)}" for key, x in self.train.items()]
            lines.append(f"train      {'  '.join(shown)}")
        if self.evaluation is not None:
            lines.append(str(self.evaluation))
        if self.goodput is None:
            lines.append(f"goodput    unknown, since there is no {GOODPUT_NAME}")
        else:
            lines += goodput_lines(self.goodput)
        return "\n".join(lines)

    @property
    def progress(self) -> str:
        """The number of completed steps, and the fraction of the run if it is known."""
        if not self.total_steps:
            return f"step {self.step:,}"
        return f"step {self.step:,} of {self.total_steps:,} ({self.step / self.total_steps:.1%})"

    def _described(self) -> str:
        process = f" (process {self.pid} on {self.host})" if self.pid else ""
        match self.state:
            case "not started":
                if isinstance(self.work_dir, Path) and not self.work_dir.is_dir():
                    return "not started: there is no such directory"
                return "not started: the directory contains no run"
            case "running":
                doing = f", {self.activity}" * bool(self.activity)
                return f"running{doing}{process}{self._seen('; last sign of life')}{self._stuck()}"
            case "finished":
                return f"finished{self._seen('')}"
            case "stopped":
                return f"stopped{self._seen('')}; the same command resumes it"
            case "failed":
                return f"failed{self._seen('')}: {self.error}"
            case "killed":
                return f"killed{process}{self._seen(', last seen')}; the same command resumes it"
            case "ended":
                return "not running"
            case _:
                assert_never(self.state)

    def _seen(self, before: str) -> str:
        if self.last_seen is None:
            return ""
        return f"{before} {format_duration(max(0.0, time.time() - self.last_seen))} ago"

    def _stuck(self) -> str:
        if self.progress_time is None or time.time() - self.progress_time < _STUCK_SECONDS:
            return ""
        return f"; no progress for {format_duration(time.time() - self.progress_time)}"

    def to_json(self) -> dict[str, Any]:
        """Return the status as plain JSON values."""
        return {
            "work_dir": str(self.work_dir),
            "state": self.state,
            "alive": self.state == "running",
            "step": self.step,
            "total_steps": self.total_steps,
            "checkpoint": self.checkpoint,
            "activity": self.activity,
            "last_seen": self.last_seen,
            "progress_time": self.progress_time,
            "host": self.host,
            "pid": self.pid,
            "error": self.error,
            "train": dict(self.train),
            "held_out": {} if self.evaluation is None else dict(self.evaluation.metrics),
            "goodput": None if self.goodput is None else self.goodput.to_json(),
        }


@dataclass(frozen=True)
class SweepStatus:
    """The state of all runs in a sweep; `str()` prints a line for each of them.

    Attributes:
      output: the sweep's directory.
      runs: the states of the runs that have started.
    """

    output: Location
    runs: Sequence[RunStatus]

    def __str__(self) -> str:
        counts = Counter(run.state for run in self.runs)
        states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
        lines = [f"sweep      {self.output}: {states or 'no run has started'}"]
        width = max((len(run.work_dir.name) for run in self.runs), default=0)
        for run in self.runs:
            goodput = "" if run.goodput is None else f"  goodput {run.goodput.goodput:.1%}"
            lines.append(f"  {run.work_dir.name:{width}s}  {run.state:9s}  {run.progress}{goodput}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the states as plain JSON values."""
        return {"output": str(self.output), "runs": [run.to_json() for run in self.runs]}


@naming_urls()
def read_status(path: str | Path) -> RunStatus | SweepStatus:
    """Return the status of a run, or of all runs in a sweep.

    The run may be in progress on this or another machine. Nothing is written.

    Args:
      path: the work directory of a pretraining or fine-tuning run, or the output of a sweep. A
        directory that does not exist counts as a run that has not started.

    Raises:
      ValueError: the path is a file or a directory of another kind, or a file in it is damaged.
    """
    directory = local_run(path)
    if directory.is_file():
        raise ValueError(f"{directory}: this is a file. Specify the work directory of a run.")
    if (directory / SWEEP_NAME).is_file():
        runs = sorted(path for path in (directory / "runs").glob("*") if path.is_dir())
        return SweepStatus(parse_location(shown(directory)), [_run_status(run) for run in runs])
    kind = directory_kind(directory)
    if kind not in (None, "work directory"):
        article = "an" if kind == "exported model" else "a"
        raise ValueError(
            f"{directory}: this is {article} {kind}. Specify the work directory of a run."
        )
    return _run_status(directory)


def _run_status(work_dir: Path) -> RunStatus:
    beat = _heartbeat(work_dir)
    beating = beat is not None and beat.state not in get_args(EndState)
    recent = beating and beat is not None and time.time() - beat.time < _BEATING_SECONDS
    # On some file systems, the locks of other machines are invisible.
    elsewhere = beat is not None and beat.host != socket.gethostname()
    alive = is_locked(work_dir) or (recent and elsewhere)
    if is_view(work_dir):
        alive = is_leased(work_dir)
    ledger, log = work_dir / GOODPUT_NAME, work_dir / LOG_NAME
    goodput = Account(read_entries(ledger)).goodput() if ledger.is_file() else None
    entries = read_metrics(log) if log.is_file() else []
    saved = steps_in(work_dir / CHECKPOINTS_NAME)
    train = _newest(entries, "train")
    # The log may be ahead of the ledger, and older runs have no ledger.
    known = [int(train.get("step", 0)), *(saved[-1:] if goodput is None else [goodput.step])]
    start = None if goodput is None else goodput.last_start
    seen = [] if goodput is None else [goodput.last_seen]
    seen += [] if beat is None else [beat.time]
    return RunStatus(
        work_dir=parse_location(shown(work_dir)),
        state=_state(goodput, alive=alive, begun=bool(saved or entries)),
        step=max(known),
        total_steps=None if goodput is None else goodput.total_steps or None,
        checkpoint=saved[-1] if saved else None,
        activity=beat.state if alive and beating and beat is not None else "",
        last_seen=max(seen, default=None),
        progress_time=beat.progress_time if alive and beating and beat is not None else None,
        host="" if start is None or start.host is None else start.host,
        pid=None if start is None else start.pid,
        error="" if goodput is None else goodput.error or "",
        train={name: x for name, x in train.items() if name not in _DETAILS},
        evaluation=_evaluation(_newest(entries, "evaluation")),
        goodput=goodput,
    )


@dataclass(frozen=True)
class _Beat:
    """The heartbeat of a run; see `Heartbeat`."""

    time: float
    progress_time: float
    state: str
    host: str


def _heartbeat(work_dir: Path) -> _Beat | None:
    """Return a run's newest heartbeat, or None if it has never written one."""
    file = work_dir / HEARTBEAT_NAME
    if not file.is_file():
        return None
    with expecting_fields(file):
        content = read_json_object(file, "The run writes it again")
        check_kinds(content, state=str, host=str)
        times = float(content["time"]), float(content["progress_time"])
        return _Beat(*times, content["state"], content["host"])


def _state(goodput: Goodput | None, *, alive: bool, begun: bool) -> State:
    if alive:
        return "running"
    if goodput is None:
        return "ended" if begun else "not started"
    return goodput.state or "killed"


def _evaluation(entry: Mapping[str, Any]) -> EvaluationReport | None:
    metrics = {name: value for name, value in entry.items() if name not in _DETAILS}
    return EvaluationReport(entry["step"], metrics) if entry else None


def _newest(entries: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    """Return the newest log entry of a kind, without its empty values; {} if there is none."""
    for entry in reversed(entries):
        if entry["kind"] == kind:
            return {name: value for name, value in entry.items() if value is not None}
    return {}
