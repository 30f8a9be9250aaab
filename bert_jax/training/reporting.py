"""Report a run: progress lines, a JSON Lines log, TensorBoard, and drawn curves."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from bert_jax.files import writing
from bert_jax.local_paths import make_directory
from bert_jax.training.curves import draw_curves
from bert_jax.training.metrics_log import LOG_NAME, MetricsLog
from bert_jax.training.progress import Progress, format_metric, progress_line

logger = logging.getLogger(__name__)

TENSORBOARD_NAME = "tensorboard"


class TensorBoard:
    """An event file in `work_dir`/tensorboard, written immediately.

    If the file cannot be written, for example because the disk is full, it is abandoned with one
    warning: `metrics.jsonl` has the same values. (tensorboardX's own writer uses a thread that such
    an error would end with a traceback, and the run would then wait for it forever.)

    Args:
      start_step: the step from which the run resumes; later events are hidden.
    """

    def __init__(self, work_dir: Path, start_step: int) -> None:
        # Imported late, since it imports PyTorch if installed, which takes two seconds.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        self._directory = work_dir / TENSORBOARD_NAME
        self._writer: Any = None
        try:
            with writing(self._directory):
                make_directory(self._directory)
                # A relative path that begins with "gs:" or "s3:" would be treated as a bucket.
                self._writer = EventsWriter(str(self._directory.absolute() / "events"))
        except OSError as error:
            self._give_up(error)
        self._write(start_step + 1, file_version="brain.Event:2")
        self._write(start_step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars by their tags."""
        from tensorboardX.summary import scalar

        for tag, value in values.items():
            self._write(step, summary=scalar(tag, value))

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            try:
                with writing(self._directory):
                    self._writer.close()
            except OSError as error:
                self._give_up(error)

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        if self._writer is None:
            return
        try:
            with writing(self._directory):
                self._writer.write_event(Event(step=step, wall_time=time.time(), **content))
                self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        logger.warning("%s. Training continues without TensorBoard's events.", error)
        self._writer = None


CURVES_NAME = "curves.png"


class Reporter:
    """Reports a run to `work_dir` and to a stream. To be made on process 0 alone.

    Args:
      work_dir: where `metrics.jsonl`, `curves.png` and `tensorboard/` go.
      steps_and_costs: of each phase of the run, in order, its optimizer steps and what one of them
        costs, in any unit, for the ETA.
      start_step: the step this process goes on from; what the log and TensorBoard hold beyond it is
        dropped, so that both tell one history.
      peak_flops: FLOP/s all devices could do together, None where unknown: utilisation is then
        not reported.
      tensorboard: whether to write TensorBoard event files too.
      stream: where progress lines go; standard error as it is now, if not given.
      clock: seconds from any origin, for the ETA.
    """

    def __init__(
        self,
        work_dir: str | os.PathLike[str],
        steps_and_costs: Sequence[tuple[int, float]],
        *,
        start_step: int,
        peak_flops: float | None,
        tensorboard: bool,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work_dir = Path(work_dir)
        self._total_steps = sum(steps for steps, _ in steps_and_costs)
        self._peak_flops = peak_flops
        self._stream = stream or sys.stderr
        self._progress = Progress(steps_and_costs, clock=clock)
        self._compiling = True
        self._drawn = False
        self._undrawn = False
        self._log = MetricsLog(self._work_dir / LOG_NAME, start_step=start_step)
        self._board = TensorBoard(self._work_dir, start_step) if tensorboard else None

    def train(
        self,
        step: int,
        metrics: Mapping[str, float],
        *,
        learning_rate: float,
        real_tokens: float,
        flops: float,
        seconds: float,
        stall_seconds: float,
        steps: int,
    ) -> None:
        """Report the `steps` optimizer steps since the last report, of which `step` was the last.

        Args:
          step: optimizer steps done in the whole run.
          metrics: their means over the interval.
          learning_rate: of the last step.
          real_tokens: tokens of the interval that are not padding, over all devices.
          flops: model FLOPs of the interval, over all devices.
          seconds: wall time of those steps.
          stall_seconds: how much of it the loop waited for batches.
          steps: number of steps in the interval.
        """
        assert steps > 0 and seconds > 0, (steps, seconds)
        rates = {"tokens_per_second": real_tokens / seconds, "stall": stall_seconds / seconds}
        utilisation = None
        if self._peak_flops is not None:
            utilisation = flops / seconds / self._peak_flops
            rates["utilisation"] = utilisation
        line = progress_line(
            step,
            self._total_steps,
            metrics,
            learning_rate=learning_rate,
            tokens_per_second=rates["tokens_per_second"],
            utilisation=utilisation,
            stall=rates["stall"],
            seconds_left=self._progress.seconds_left(step),
        )
        self._say(line + "  (with compilation)" * self._compiling)
        values = {**metrics, "learning_rate": learning_rate, **rates}
        extra = {"seconds": seconds, "steps": steps, "compiling": self._compiling}
        self._log.append("train", step, {**values, **extra})
        self._write_board("train", step, values)
        self._compiling = False
        self._drawn = False

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report metrics of the held-out split after `step` steps, and draw the curves so far."""
        shown = "  ".join(f"{name} {format_metric(name, v)}" for name, v in metrics.items())
        self._say(f"held out, after step {step:,}:  {shown}")
        self._log.append("evaluation", step, metrics)
        self._write_board("held_out", step, metrics)
        self._draw()

    def close(self) -> None:
        """Close the files, and draw the curves where they lack the last steps."""
        self._log.close()
        if self._board is not None:
            self._board.close()
        if not self._drawn and (self._work_dir / LOG_NAME).is_file():
            self._draw()

    def _say(self, line: str) -> None:
        try:
            print(line, file=self._stream, flush=True)
        except OSError as error:
            # The reader has exited: a `tee` that received the same Ctrl-C, or the terminal of a
            # dropped connection. The checkpoint must still be saved; the log has the entries.
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def _write_board(self, prefix: str, step: int, values: Mapping[str, float]) -> None:
        if self._board is not None:
            self._board.add({f"{prefix}/{name}": x for name, x in values.items()}, step)

    def _draw(self) -> None:
        log, curves = self._work_dir / LOG_NAME, self._work_dir / CURVES_NAME
        self._drawn = True
        try:
            draw_curves(log, curves, title=self._work_dir.resolve().name)
        except OSError as error:  # a missing image must not stop the run
            if not self._undrawn:
                logger.warning("%s. Training continues without the curves.", error)
            self._undrawn = True
