"""Run commands for the experiments, and check that all runs in a folder have the same settings."""

from __future__ import annotations

import copy
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
sys.path.insert(0, str(ROOT))  # Make an uninstalled checkout importable.

from bert_jax.files import write_file  # noqa: E402
from bert_jax.validation import differences  # noqa: E402

_CONFIG = """from ml_collections import ConfigDict


def get_config():
    return ConfigDict({0!r})
"""


def run_words(*words: str | Path) -> None:
    """Run a command with this Python interpreter; exit if it fails, and stop it on SIGTERM."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = subprocess.Popen([sys.executable, *map(str, words)], env=environment, cwd=ROOT)
    before = signal.signal(signal.SIGTERM, lambda *_: command.terminate())
    try:
        code = command.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
    if code:
        raise SystemExit(f"{' '.join(map(str, words))} failed with exit code {code}")


def bert_jax(*words: str | Path) -> None:
    """Run a `bert-jax` command from this checkout."""
    run_words("-m", "bert_jax.cli.main", *words)


def write_config(values: dict[str, Any], file: Path) -> None:
    """Write a config file for `bert-jax`."""
    write_file(file, _CONFIG.format(values))


def overlaid(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a config with changed values; sections are merged."""
    merged = copy.deepcopy(config)
    for name, value in changes.items():
        current = merged.get(name)
        merges = isinstance(value, dict) and isinstance(current, dict)
        merged[name] = overlaid(current, value) if merges else value
    return merged


@contextmanager
def locked(file: Path, *, wait: bool = True) -> Iterator[bool]:
    """Lock a file exclusively, and yield whether it was locked.

    If another process holds the lock, wait for it, or yield False if `wait` is False.
    """
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


def claim(work: Path, settings: dict[str, Any]) -> None:
    """Record the settings for a folder's runs; exit if it contains runs with other settings."""
    work.mkdir(parents=True, exist_ok=True)
    file = work / "settings.json"
    if not file.is_file():
        write_file(file, json.dumps(settings, indent=1))
    stored = json.loads(file.read_text(encoding="utf-8"))
    if lines := differences(stored, json.loads(json.dumps(settings))):
        raise SystemExit(
            f"{work} contains runs with other settings ({'; '.join(lines)}). Use another --work "
            "folder"
        )


def claim_config(values: dict[str, Any], file: Path) -> None:
    """Write a run's config; exit if the run was started with a different config."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_file():
        write_config(values, file)
    if file.read_text(encoding="utf-8") != _CONFIG.format(values):
        raise SystemExit(
            f"{file.parent} contains a run with a different config. Use another --work folder"
        )
