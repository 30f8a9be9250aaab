"""Run an Apache Beam pipeline in a separate process, which is killed if a worker dies.

Beam's DirectRunner waits forever for a worker process that was killed, and leaves the other worker
processes behind if it is interrupted. Killing the whole process group avoids both problems.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState

from bert_jax.processes import cause_of_death, end_with_parent

# The name of the thread in which the DirectRunner waits for a worker process to exit.
_WORKER_THREAD = "run_worker"


@dataclass(frozen=True)
class Runner:
    """A Beam runner.

    Attributes:
      name: the runner's name, such as "DirectRunner".
      words: the runner's options, such as ["--direct_num_workers=2"].
    """

    name: str
    words: Sequence[str]

    def pipeline(self) -> beam.Pipeline:
        """Return an empty pipeline.

        Raises:
          ValueError: there is no such runner.
        """
        return beam.Pipeline(options=PipelineOptions(list(self.words), runner=self.name))


def run_pipeline(runner: Runner, build: Callable[..., None], *arguments: Any) -> None:
    """Run a pipeline to its end.

    Args:
      runner: the runner.
      build: a module-level function that adds all steps to the pipeline, its first argument.
      arguments: the function's other arguments, which are pickled.

    Raises:
      OSError: the pipeline failed or was canceled, or a worker of the DirectRunner died.
    """
    context = get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sending, runner, build, arguments))
    process.start()
    sending.close()
    try:
        problem = receiving.recv()
    except EOFError:
        cause = cause_of_death(process, "Use fewer workers or smaller units")
        raise OSError(f"the process that runs the Beam pipeline {cause}") from None
    finally:
        assert process.pid is not None, "the process was started"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # This is needed if the process does not lead its group yet.
        process.join()
        receiving.close()
    if problem:
        raise OSError(f"the Beam pipeline failed: {problem}")


def _serve(
    sending: Connection, runner: Runner, build: Callable[..., None], arguments: Sequence[Any]
) -> None:
    """Run the pipeline, and send a description of the problem, or "" if there is none."""
    os.setsid()  # The parent kills this process and all worker processes as a group.
    end_with_parent()
    default_hook = threading.excepthook

    def report(error: threading.ExceptHookArgs) -> None:
        if error.thread is not None and error.thread.name == _WORKER_THREAD:
            sending.send(f"a worker died: {error.exc_value}")
        default_hook(error)

    threading.excepthook = report
    try:
        pipeline = runner.pipeline()
        build(pipeline, *arguments)
        result = pipeline.run()
        state = result.wait_until_finish() or result.state
    except Exception as error:  # Runners raise errors of many types.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        sending.send(lines[-1] if lines else type(error).__name__)
        raise
    sending.send("" if state == PipelineState.DONE else f"it ended in the state {state}")
