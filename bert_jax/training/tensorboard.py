"""Write event files for TensorBoard, which are optional for a run."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.files import writing
from bert_jax.local_paths import make_directory

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
