"""Record new frozen values for all cases or for selected ones.

    python -m tests.golden.record [CASE ...]
    python -m tests.golden.record --texts [CASE ...]
    python -m tests.golden.record --recent
    python -m tests.golden.record --kept

The first command writes frozen/values. The second records only texts, not numbers, and works on any
machine: it keeps all recorded numbers, and fails if a new one differs by more than is allowed
between machines. The third writes frozen/kept/work/recent, a run that was stopped by code which
rounds like the current code. Use it when rounding changes, and then record the case `kept` again.
The fourth writes all directories in frozen/kept, which are used to test that newer code can read
older files. Use it only when the format of these directories has to change, and then record all
values again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .frozen_runs import (
    CASES,
    GROUPS,
    KEPT,
    VALUES,
    draw_no_curves,
    environment,
    lay_out,
    measure,
    run_command,
)
from .frozen_values import fingerprint, with_new_texts

# The pretraining runs in frozen/kept receive SIGTERM when they report this step.
_STOPPED_IN = "step 13/32"
_RECENT = "work/recent"
_KEPT = ("corpora/wordpiece32", "corpora/wordpiece64", "work/pretrain", "work/source", "work/glue")
# Always write these directories to the same place, since their manifests contain the absolute path
# of the text.
_PLACE = Path("/var/tmp/bert_jax_frozen")


def _record(names: Sequence[str], *, texts: bool) -> None:
    machine = VALUES / "fingerprint.json"
    here = fingerprint()
    if not texts and set(names) < set(CASES) and json.loads(machine.read_text("utf-8")) != here:
        sys.exit(
            "The other cases were recorded on a different machine. Record all cases or use --texts."
        )
    results: dict[str, Any] = {} if texts else {"fingerprint": here}
    for group in GROUPS:
        if set(group).isdisjoint(names):
            continue
        last = max(number for number, name in enumerate(group) if name in names)
        with tempfile.TemporaryDirectory() as directory:
            cache = os.environ.get("JAX_COMPILATION_CACHE_DIR")
            measured = measure(group[: last + 1], Path(directory), cache)
        results |= {name: measured[name] for name in group if name in names}
    VALUES.mkdir(exist_ok=True)
    for name, result in results.items():
        if texts:
            result = with_new_texts(
                json.loads((VALUES / f"{name}.json").read_text("utf-8")), result
            )
        text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
        (VALUES / f"{name}.json").write_text(text, encoding="utf-8")


class _Stopping(io.TextIOBase):
    """A wrapper around stderr that sends SIGTERM to this process once a given text is written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def write(self, text: str) -> int:
        if self._text and self._text in text:
            self._text = ""
            os.kill(os.getpid(), signal.SIGTERM)
        return sys.__stderr__.write(text)  # type: ignore[union-attr]


def _record_kept(*, all_directories: bool) -> None:
    """Write a pretraining run that was stopped, and other directories if requested.

    all_directories: whether to write corpora, an older stopped run, and a finished fine-tuning run
      too.
    """
    shutil.rmtree(_PLACE, ignore_errors=True)
    lay_out(_PLACE, kept=False)
    os.chdir(_PLACE)
    os.environ.update(environment(os.environ.get("JAX_COMPILATION_CACHE_DIR")))
    draw_no_curves()
    lengths = [
        command for command in CASES["corpora"].commands if "tokenizers/wordpiece" in command
    ]
    pretrain = "pretrain --config configs/pretrain.py"
    commands = [
        CASES["tokenizers"].commands[0],
        *lengths,
        f"{pretrain} --config.work_dir={_RECENT}",
    ]
    if all_directories:
        commands += [
            pretrain,
            "extract work/pretrain --step newest --output work/source",
            "finetune --config configs/glue.py --init work/source",
        ]
    for command in commands:
        # The command logs its progress to this stream.
        sys.stderr = _Stopping(_STOPPED_IN)  # type: ignore[assignment]
        print(command, run_command(command, _PLACE))
    names = (*_KEPT, _RECENT) if all_directories else (_RECENT,)
    for name in names:
        shutil.rmtree(KEPT / name, ignore_errors=True)
        shutil.copytree(_PLACE / name, KEPT / name)
    for lock in KEPT.rglob(".lock"):
        lock.unlink()
    shutil.rmtree(_PLACE)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recent", action="store_true", help="write frozen/kept/work/recent")
    parser.add_argument("--kept", action="store_true", help="write the directories in frozen/kept")
    parser.add_argument(
        "--texts", action="store_true", help="record only texts, and keep all recorded numbers"
    )
    parser.add_argument(
        "case",
        nargs="*",
        choices=[*CASES, []],
        metavar="CASE",
        help="a case to record (default: all cases)",
    )
    args = parser.parse_args()
    if args.kept or args.recent:
        _record_kept(all_directories=args.kept)
    else:
        _record(args.case or list(CASES), texts=args.texts)


if __name__ == "__main__":
    _main()
