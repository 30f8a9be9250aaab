"""Run a user's command when a run starts, ends, diverges or fails."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from bert_jax.goodput.ledger import Ledger
from bert_jax.training.distributed import lost_process
from bert_jax.training.reports import DivergenceReport, EvaluationReport, Report

logger = logging.getLogger(__name__)

NotifiedEvent = Literal["start", "end", "divergence", "failure"]
# A command that takes longer is killed.
_TIMEOUT_SECONDS = 60.0
_KILL_SECONDS = 5.0
_MESSAGE_LENGTH = 4_000
_MAX_WAITING = 8


class Notifier:
    """Runs a shell command for each event, one at a time, in a thread of its own.

    The command gets the facts as one JSON object on its standard input, and the most important
    ones in the environment variables BERT_JAX_EVENT, BERT_JAX_WORK_DIR, BERT_JAX_STEP and
    BERT_JAX_MESSAGE. A command that fails or takes longer than a minute is logged, and never stops
    the run or delays a step.

    Args:
      command: the shell command; "" for none.
      ledger: provides the run's step.
      work_dir: the run's work directory.
      total_steps: the number of steps in the whole run.
      timeout: the number of seconds after which the command is killed.
    """

    def __init__(
        self,
        command: str,
        ledger: Ledger,
        work_dir: Path,
        total_steps: int,
        *,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        self._command, self._ledger, self._timeout = command, ledger, timeout
        self._facts = {
            "work_dir": str(work_dir.absolute()),
            "total_steps": total_steps,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._metrics: Mapping[str, float] = {}
        self._newest: threading.Thread | None = None
        self._waiting = 0
        self._counting = threading.Lock()

    def __call__(self, report: Report) -> None:
        """Send an event for a rollback, and remember the metrics of an evaluation."""
        if isinstance(report, EvaluationReport):
            self._metrics = report.metrics
        elif isinstance(report, DivergenceReport) and report.kind == "rollback":
            self.send("divergence", str(report), report.step)

    @contextmanager
    def notifying(self) -> Iterator[None]:
        """Send an event now, and another one when the block ends or fails.

        At its end, the block waits for the last command, but no longer than one command may take.
        """
        self.send("start", f"started at step {self._ledger.step:,}")
        try:
            yield
            self.send("end", self._ledger.state or "stopped")
        except BaseException as error:
            self.send("failure", lost_process(error) or f"{type(error).__name__}: {error}")
            raise
        finally:
            if self._newest is not None:
                self._newest.join(self._timeout + _KILL_SECONDS)
                if self._newest.is_alive():
                    logger.warning("reporting.notify: %d commands never ran", self._waiting - 1)

    def send(self, event: NotifiedEvent, message: str, step: int | None = None) -> None:
        """Start the command once the commands for earlier events have ended.

        Args:
          event: the name of the event.
          message: a sentence that describes the event.
          step: the number of completed steps; None for the ledger's step.
        """
        if not self._command:
            return
        if self._waiting >= _MAX_WAITING:
            logger.warning(
                "reporting.notify: %d earlier commands have not ended, so there is none for: %s",
                self._waiting,
                message,
            )
            return
        with self._counting:
            self._waiting += 1
        facts = {
            "event": event,
            "message": message[:_MESSAGE_LENGTH],
            "time": time.time(),
            "step": self._ledger.step if step is None else step,
            **self._facts,
            "metrics": dict(self._metrics),
        }
        arguments = facts, self._newest
        self._newest = threading.Thread(target=self._run, args=arguments, name="notify")
        self._newest.daemon = True
        self._newest.start()

    def _run(self, facts: Mapping[str, Any], earlier: threading.Thread | None) -> None:
        if earlier is not None:
            earlier.join()
        try:
            problem = run_command(self._command, facts, self._timeout)
        except (OSError, ValueError) as error:
            problem = str(error)
        with self._counting:
            self._waiting -= 1
        if problem:
            logger.warning(
                "the command in reporting.notify for the event %r %s. The run is not affected.",
                facts["event"],
                problem,
            )


def run_command(command: str, facts: Mapping[str, Any], timeout: float) -> str:
    """Run a shell command with facts, and return a phrase that explains its failure, or "".

    Args:
      command: the command.
      facts: the values for its standard input and its environment.
      timeout: the number of seconds after which the command and its children are killed.

    Raises:
      OSError: the shell cannot be started.
    """
    environment = {
        f"BERT_JAX_{name.upper()}": str(facts[name]).replace("\0", " ")
        for name in ("event", "work_dir", "step", "message")
    }
    # Use files instead of pipes, since a grandchild may keep a pipe open.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(facts).encode() + b"\n")
        given.seek(0)
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"took longer than {timeout:g} s and was killed"
        if code == 0:
            return ""
        errors.seek(0)
        lines = errors.read()[-_MESSAGE_LENGTH:].decode(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        return f"failed with exit code {code}{last}"
