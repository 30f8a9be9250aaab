"""Test the lock that allows only one run at a time in a work directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.runs import ownership
from bert_jax.runs.ownership import LOCK_NAME, only_writer


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with only_writer(tmp_path):
        with (
            pytest.raises(ValueError, match="another run is using this directory"),
            only_writer(tmp_path),
        ):
            pass
        assert (tmp_path / LOCK_NAME).is_file()
    with only_writer(tmp_path):
        pass
    assert (tmp_path / "metrics.jsonl").is_file()


def test_a_run_that_died_releases_the_lock(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path;"
        "from bert_jax.runs.ownership import only_writer;"
        "held = only_writer(Path(sys.argv[1])); held.__enter__(); os._exit(9)"
    )
    died = subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")])
    assert died.returncode == 9 and (tmp_path / "run" / LOCK_NAME).is_file()
    with only_writer(tmp_path / "run"):
        pass


def test_no_empty_directory_is_left(tmp_path: Path) -> None:
    with only_writer(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_file_that_was_removed_before_it_was_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Remove the lock file after it is opened but before it is locked, as a rejected run may do."""
    flock, removed = ownership.fcntl.flock, []

    def late(lock: int, operation: int) -> None:
        if not removed:
            os.unlink(tmp_path / LOCK_NAME)
            removed.append(lock)
        flock(lock, operation)

    monkeypatch.setattr(ownership.fcntl, "flock", late)
    with only_writer(tmp_path):
        assert removed
        with (
            pytest.raises(ValueError, match="another run is using this directory"),
            only_writer(tmp_path),
        ):
            pass
