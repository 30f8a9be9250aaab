"""What experiments share: commands of this interpreter, and folders that hold the runs of one."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the package by a checkout that is not installed

from bert_jax.files import write_file  # noqa: E402

_CONFIG = """from ml_collections import ConfigDict


def get_config():
    return ConfigDict({0!r})
"""


def run_words(*words: str | Path) -> None:
    """Runs a command of this interpreter; ends when it does not succeed, and SIGTERM ends both."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = subprocess.Popen([sys.executable, *map(str, words)], env=environment, cwd=ROOT)
    before = signal.signal(signal.SIGTERM, lambda *_: command.terminate())
    try:
        ended = command.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    if ended:
        raise SystemExit(f"{' '.join(map(str, words))} ended early ({ended})")


def bert_jax(*words: str | Path) -> None:
    """Runs a `bert-jax` command of this checkout."""
    run_words("-m", "bert_jax.cli.main", *words)


def write_config(values: dict[str, Any], file: Path) -> None:
    """A config file for `bert-jax` with these values."""
    write_file(file, _CONFIG.format(values))


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds `file`; who comes second waits."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def claim(work: Path, settings: dict[str, Any]) -> None:
    """Keeps what a folder's runs are of; refuses one that holds runs of something else."""
    work.mkdir(parents=True, exist_ok=True)
    file = work / "settings.json"
    if not file.is_file():
        write_file(file, json.dumps(settings, indent=1))
    if json.loads(file.read_text(encoding="utf-8")) != settings:
        raise SystemExit(f"{work} holds runs of other settings ({file}): give another --work")


def claim_config(values: dict[str, Any], file: Path) -> None:
    """Keeps the config of the run beside it; refuses another one than it was begun with."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_file():
        write_config(values, file)
    if file.read_text(encoding="utf-8") != _CONFIG.format(values):
        raise SystemExit(f"{file.parent} holds a run of another config: give another --work")
