r"""Compute a run's goodput with Google's library, from the run's own ledger.

    python -m venv google && google/bin/pip install ml-goodput-measurement
    google/bin/python experiments/long_run/with_google.py runs/long-run/killed

The library usually reads its entries from Google Cloud Logging. Here, it reads them from the ledger
of a run, converted to the entries that its recorder would have written: the start of every step,
and the start and end of every other activity. An entry in the ledger covers several steps, so these
steps are assumed to take equally long, and the other activities are assumed to follow them. The
script needs no package other than the library, and prints the results of the ledger and of the
library as JSON.
"""

from __future__ import annotations

import datetime
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from ml_goodput_measurement.src.goodput import GoodputCalculator  # noqa: E402

from bert_jax.goodput.account import Account  # noqa: E402
from bert_jax.goodput.categories import CUSTOM  # noqa: E402
from bert_jax.goodput.entries import GOODPUT_NAME, Entry, read_entries  # noqa: E402

JOB = {"job_name": "run"}
# Activities that the recorder writes as pairs of entries.
PAIRS = {
    "tpu_initialization": "tpu_init",
    "training_prep": "training_prep",
    "data_loading_sync": "data_loading",
}
CHECKPOINTS = {
    "unproductive_checkpoint_save_time": "save",
    "unproductive_checkpoint_restore_time": "restore",
}


class Entries:
    """A substitute for the library's connection to Google Cloud Logging."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = entries

    def read_cloud_logging_entries(self, *_: object, **__: object) -> Any:
        now = datetime.datetime.now(datetime.UTC)
        return self._entries, (now, "last")


def converted(entries: list[Entry]) -> Iterator[dict[str, Any]]:
    """Yield the entries that the library's recorder would have written."""
    now, step, first, newest, number = 0.0, 0, 0, -1, 0
    for entry in entries:
        if entry.event == "start":
            assert entry.began is not None
            now, step = entry.began, entry.step
            first, newest = step, step - 1  # `newest` is the newest step that has begun.
            yield JOB | {"job_start_time": now}
        number += 1
        seconds = dict(entry.seconds)
        for name, key in PAIRS.items():
            if duration := seconds.pop(name, 0.0):
                yield JOB | {f"{key}_start_time": now}
                now += duration
                yield JOB | {f"{key}_end_time": now}
        # Compilation is part of the first step. The library finds it by comparing this step with
        # the other ones. Later compilations, such as the one for the evaluation, become custom
        # events.
        compiling = seconds.pop("program_startup", 0.0) if step == first else 0.0
        each = seconds.pop("productive", 0.0) / max(entry.step - step, 1)
        for current in range(step, max(entry.step, step + 1)) if compiling or each else ():
            if current > newest:
                yield JOB | {"step_count": current, "step_start_time": now}
                newest = current
            now += each + compiling
            compiling = 0.0
        for name, key in CHECKPOINTS.items():
            if duration := seconds.pop(name, 0.0):
                yield checkpoint(key, f"{entry.step}-{number}", duration)
                now += duration
        for name, duration in seconds.items():
            if duration > 0:
                event = {"custom_badput_event_type": name}
                yield JOB | event | {"custom_badput_event_start_time": now}
                now += duration
                yield JOB | event | {"custom_badput_event_end_time": now}
        step = entry.step
        if entry.event == "end":
            yield JOB | {"step_count": step, "step_start_time": now}
    yield JOB | {"job_end_time": now}


def checkpoint(kind: str, step: str, duration: float) -> dict[str, Any]:
    """Return an entry like those that Orbax writes."""
    durations = {
        "wait_for_prev_duration_secs": 0.0,
        "checkpointer_blocking_duration_secs": duration,
        "checkpointer_duration_secs": duration,
        "get_old_steps_duration_secs": 0.0,
        "checkpoint_manager_blocking_duration_secs": duration,
        "checkpoint_manager_duration_secs": duration,
        "broadcast_duration_secs": 0.0,
    }
    return JOB | {"event_type": kind, "step": step, "directory": "checkpoints"} | durations


def main(work_dir: str) -> None:
    """Print goodput and badput as computed from the ledger, and as computed by the library."""
    entries = read_entries(Path(work_dir, GOODPUT_NAME))
    ours = Account(entries).goodput()
    assert ours is not None
    with tempfile.TemporaryDirectory() as directory:
        cloud: Any = Entries(list(converted(entries)))
        calculator = GoodputCalculator("run", "log", cloud, cache_dir=directory)
        goodput, badput, last = calculator.get_job_goodput(include_badput_breakdown=True)
    total = ours.total_seconds
    theirs = {kind.name.lower(): value for kind, value in badput.items()}
    theirs["custom_badput_events"] = {
        name.lower(): value for name, value in theirs["custom_badput_events"].items()
    }
    in_percent = {
        name: 100 * seconds / total for name, seconds in ours.seconds.items() if name not in CUSTOM
    }
    in_percent["custom_badput_events"] = {name: 100 * ours.seconds[name] / total for name in CUSTOM}
    print(
        json.dumps(
            {
                "ledger": {"goodput": 100 * ours.goodput, "step": ours.step, **in_percent},
                "library": {"goodput": goodput, "step": last, **theirs},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
